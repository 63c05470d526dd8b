"""Pronunciations of English words by g2p_en's neural network (Park & Kim, 2019), an optional extra."""

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.text.cmudict import without_stress
from asr.text.lexicon import Phones

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYMBOLS = ["<pad>", "<unk>", "<s>", "</s>"]  # special symbols of the phones; the letters lack <s>
END_OF_WORD, BEGIN, END = 2, 2, 3  # the first among the letters, the others among the phones
# The network's phones: CMUdict's, with stress.
_PHONES = """
AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2
EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2
UW UW0 UW1 UW2 V W Y Z ZH
"""
PHONES = _PHONES.split()
LONGEST = 20  # maximum number of phones, as in g2p_en: the network may never emit the end

Guess = Callable[[str], Phones]
Weights = dict[str, NDArray[np.float32]]


def installed_model() -> Guess | None:
    """Return a function from a word to its phones (CMUdict's 39, without stress), or None if not installed.

    Only letters are read, so `A:ND*` is pronounced as `AND`. A word without letters has no phones.

    g2p_en itself is not imported, because that downloads data. The network is a letter encoder and a phone
    decoder of one GRU layer each, with greedy search; its weights are in the package.
    """
    package = find_spec("g2p_en")
    if package is None or not package.submodule_search_locations:
        return None
    with np.load(Path(package.submodule_search_locations[0], "checkpoint20.npz")) as file:
        weights = dict(file)

    @cache
    def pronounce(word: str) -> Phones:
        letters = re.sub(r"[^a-z]", "", word.lower())
        return without_stress(_decode(letters, weights)) if letters else ()

    return pronounce


def _decode(letters: str, weights: Weights) -> list[str]:
    state = np.zeros(weights["enc_w_hh"].shape[1], np.float32)
    for letter in [*(3 + LETTERS.index(letter) for letter in letters), END_OF_WORD]:
        state = _gru(weights["enc_emb"][letter], state, weights, "enc")
    phones: list[str] = []
    label = BEGIN
    while len(phones) < LONGEST:
        state = _gru(weights["dec_emb"][label], state, weights, "dec")
        label = int((weights["fc_w"] @ state + weights["fc_b"]).argmax())
        if label < len(SYMBOLS):
            break
        phones.append(PHONES[label - len(SYMBOLS)])
    return phones


def _gru(
    x: NDArray[np.float32], state: NDArray[np.float32], weights: Weights, part: str
) -> NDArray[np.float32]:
    """Return the next state of a GRU cell, with gates in PyTorch's order: reset, update, new."""
    input_gates = np.split(weights[f"{part}_w_ih"] @ x + weights[f"{part}_b_ih"], 3)
    state_gates = np.split(weights[f"{part}_w_hh"] @ state + weights[f"{part}_b_hh"], 3)
    reset, update = (
        1 / (1 + np.exp(-(a + b))) for a, b in zip(input_gates[:2], state_gates[:2], strict=True)
    )
    new = np.tanh(input_gates[2] + reset * state_gates[2])
    return (1 - update) * new + update * state
