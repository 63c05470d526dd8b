from dataclasses import asdict, dataclass, fields

import pytest
import torch

from asr import config
from asr.errors import UserError
from asr.search.decoder import Decoder, WeightedDecoder
from asr.search.decoders import DECODERS, AllOptions, joined
from asr.search.options import SearchOptions
from asr.search.path import TokenPath, Word, words_of
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, SentencePieceTokenizer

LEXICON = Lexicon({"GO": [("G", "OW")], "ON": [("AA", "N")]})


def spelled(tokenizer, text):
    """Return [1, T, V] log-probabilities of a text, with a blank after each label."""
    ids = tokenizer.encode(text)
    log_probs = torch.full((1, 2 * len(ids), len(tokenizer)), -9.0)
    log_probs[
        0, torch.arange(2 * len(ids)), torch.tensor([label for index in ids for label in (index, 0)])
    ] = 0.0
    return log_probs


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_gives_words_for_phones(decoder):
    if decoder == "beam":
        pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    tokenizer = PhoneTokenizer(LEXICON)
    search = DECODERS[decoder]().build(tokenizer)
    (path,) = search(spelled(tokenizer, "GO ON"), torch.tensor([8]))
    assert path.text == "GO ON"
    assert path.ids == tokenizer.encode("GO ON")
    assert path.frames == [0, 2, 4, 6]
    assert path.ends == [1, 3, 5, 7]
    assert [(word.start, word.end) for word in path.words] == [(0, 2), (2, 4)]


@pytest.mark.parametrize("decoder", ["greedy", "prefix"])
def test_the_tokenizer_turns_characters_into_text(decoder):
    tokenizer = CharacterTokenizer.train(["go on"])
    (path,) = DECODERS[decoder]().build(tokenizer)(spelled(tokenizer, "go"), torch.tensor([4]))
    assert path.words is None
    assert path.text is None
    assert tokenizer.text(path.ids) == "go"


@pytest.mark.parametrize("text", ["go on", "go", "", "on go on"])
def test_words_of_labels(text):
    characters = CharacterTokenizer.train(["go on"])
    pieces = SentencePieceTokenizer.train(["go on", "on go", "no", "no go"] * 20, 8)
    for tokenizer in (characters, pieces):
        ids = tokenizer.encode(text)
        words = words_of(TokenPath(ids, [], []), tokenizer)
        assert [word.word for word in words] == text.split()
        assert [tokenizer.text(ids[word.start : word.end]) for word in words] == text.split()
    gaps = characters.encode("go on")
    gaps = [2, *gaps[:3], 2, *gaps[3:], 2]
    assert words_of(TokenPath(gaps, [], []), characters) == [Word("go", 1, 3), Word("on", 5, 7)]


def test_the_table_names_each_decoder_by_its_own_name():
    assert {name: kind.name for name, kind in DECODERS.items()} == {name: name for name in DECODERS}
    with pytest.raises(UserError, match=r"decoder=beem: expected one of greedy, beam, prefix"):
        config.parse(SearchOptions, ["decoder=beem"])
    with pytest.raises(UserError, match=r"beam.size=0: expected a number"):
        config.parse(SearchOptions, ["decoder=prefix", "beam.size=0"])
    with pytest.raises(
        UserError, match=r"tune=dev: decoder=greedy has no weights to tune; use beam or prefix"
    ):
        config.parse(SearchOptions, ["tune=dev"])


def test_options_of_the_same_name_are_one_option():
    """They would have one meaning and default on the command line and another in the search."""
    for kind in DECODERS.values():
        for x in fields(kind):
            (shared,) = (y for y in fields(AllOptions) if y.name == x.name)
            assert (shared.type, shared.default) == (x.type, x.default)
            assert {**shared.metadata, "only": ()} == {**x.metadata, "only": ()}


def test_a_decoder_in_the_table_has_its_options_on_the_command_line():
    @dataclass
    class Sparse(Decoder):
        name = "sparse"
        meaning = "labels far above the others"
        margin: float = config.option(0.5, help="least margin", affects="result", maximum=9)

    options = joined(DECODERS | {"sparse": Sparse})
    (margin,) = (x for x in config.describe(options) if x.key == "margin")
    assert margin.kind == "float 0 … 9"
    (own,) = (x for x in fields(options) if x.name == "margin")
    assert [(x.option, x.values) for x in own.metadata["only"]] == [("decoder", ("sparse",))]
    (size,) = (x for x in fields(options) if x.name == "size")
    weighted = tuple(name for name, kind in DECODERS.items() if issubclass(kind, WeightedDecoder))
    assert [(x.option, x.values) for x in size.metadata["only"]] == [("decoder", weighted)]


@pytest.mark.parametrize(
    ("decoder", "unused", "why"),
    [
        ("greedy", "nbest=2", "with decoder=greedy"),
        ("greedy", "size=5", "with decoder=greedy"),
        ("greedy", "lm=x.arpa", r"with decoder=greedy, only with decoder=beam \| prefix"),
        ("beam", "token_threshold=3", "with decoder=beam, only with decoder=prefix"),
        ("beam", "lm_weight=3", "without beam.lm"),
        ("prefix", "lexicon=words.txt", "with decoder=prefix"),
        ("prefix", "word_score=1", "with decoder=prefix without beam.lm"),
    ],
)
def test_options_that_a_decoder_ignores_are_refused(decoder, unused, why):
    with pytest.raises(UserError, match=f"beam.{unused}: has no effect {why}"):
        config.parse(SearchOptions, [f"decoder={decoder}", f"beam.{unused}"])
    for name, kind in DECODERS.items():  # what a decoder completes is stored
        stored = {"decoder": name, "beam": config.to_dict(AllOptions(**asdict(kind().complete())))}
        assert config.from_dict(SearchOptions, stored, "cell.json").decoder == name
    fused = ["beam.lm=x.arpa", "beam.lm_weight=3", "beam.word_score=1"]
    config.parse(SearchOptions, [f"decoder={decoder if decoder == 'beam' else 'prefix'}", *fused])
