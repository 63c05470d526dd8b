from pathlib import Path

import asr_conf
import pytest

from asr.preparation.recipes import has_preparation, preparation_module
from asr.text.prepared import parse_tokenizer_name, tokenizer_name
from asr.training.config import train_options

RECIPES = ["demo", "folder", "librispeech", "prompts", "stamps", "switchboard", "wsj"]
RECIPES += ["wsj_4layers", "wsj_6layers", "wsj_modern"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_tokenizers_of_configurations_are_prepared(recipe):
    """`asr train recipe=…` uses a prepared tokenizer by default."""
    options = train_options([f"recipe={recipe}"]).tokenizer
    prepared = preparation_module(recipe.partition("_")[0]).Options().tokenizers
    assert tokenizer_name(options.kind, options.pieces) in prepared


def test_every_configuration_is_tested():
    named = {path.stem for path in Path(asr_conf.__path__[0], "recipe").glob("*.yaml")}
    assert named - set(RECIPES) == {"copy", "custom", "language", "longrange"}
    assert not has_preparation("copy")
    assert not has_preparation("longrange")


@pytest.mark.parametrize("recipe", ["switchboard", "kaldi", "nemo", "lhotse"])
def test_alternative_tokenizers_are_prepared(recipe):
    kinds = {parse_tokenizer_name(name)[0] for name in preparation_module(recipe).Options().tokenizers}
    assert kinds == {"phone", "character"} | ({"sentencepiece"} if recipe == "switchboard" else set())
