"""Beam search gives the same result again where scores tie: flashlight broke ties by addresses in memory."""

import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import quick
from torch import Tensor

from asr.losses.topology import output_count
from asr.search.beam import BeamSearch
from asr.search.path import TokenPath
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import PhoneTokenizer

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

# Most phone sequences have several readings: homophones, words and their parts, words in another order.
LEXICON = Lexicon(
    {
        "A": [("AH",)],
        "SEE": [("S", "IY")],
        "SEA": [("S", "IY")],
        "SEAS": [("S", "IY", "Z")],
        "EASE": [("IY", "Z")],
        "ASEA": [("AH", "S", "IY")],
        "US": [("AH", "S")],
        "E": [("IY",)],
        "S": [("S",)],
        "Z": [("Z",), ("Z", "IY")],
        "ZZ": [("Z", "Z")],
    }
)
TOKENIZER = PhoneTokenizer(LEXICON)
EQUAL = ("A", "SEE", "SEA", "US", "E")
ARPA = "\n".join(
    [
        "\\data\\",
        f"ngram 1={len(EQUAL) + 3}",
        "ngram 2=1",
        "",
        "\\1-grams:",
        *("-1.5\t<unk>\t0", "-99\t<s>\t-0.25", "-0.5\t</s>"),
        *(f"-1\t{word}\t-0.25" for word in EQUAL),
        "",
        "\\2-grams:",
        "-0.5\tA SEE",
        "",
        "\\end\\",
        "",
    ]
)
# It can't be copied with costs: words that it lacks are unknown ones in a bigram.
OPEN_ARPA = ARPA.replace("ngram 2=1", "ngram 2=2").replace("A SEE", "A SEE\n-0.5\tSEE <unk>")
OPTIONS = [
    {"word_score": 0.0},
    {"word_score": 0.0, "nbest": 5},
    {"nbest": 5},
    {"word_score": 0.0, "beam": 15, "nbest": 5},
    {"word_score": 0.0, "lm": True, "nbest": 5},
    {"beam": 15, "lm": True, "nbest": 5},
    {"word_score": 0.0, "lm": True, "lm_weight": 0.0, "nbest": 5},
    {"word_score": 0.0, "beam": 15, "lm": "open", "nbest": 5},
]


def posteriors(topology: str, flat: bool = False) -> Tensor:
    """Return random log-probabilities, [4, 20, O], or some that take few values and change rarely."""
    shape = (4, 20, output_count(topology, len(TOKENIZER)))
    scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if flat:
        scores = scores.round()[:, ::4].repeat_interleave(4, dim=1)
    return scores.log_softmax(dim=-1)


def found(path: TokenPath) -> list[Any]:
    return [(p.text, p.ids, p.frames, p.ends, p.words, p.score) for p in (path, *path.alternatives)]


def decode(options: dict[str, Any], topology: str, flat: bool, count: int) -> list[Any]:
    """Return the results of `count` new searches, which find the memory in different states."""
    log_probs, results, kept = posteriors(topology, flat), [], []
    for number in range(count):
        search = BeamSearch(TOKENIZER, topology=topology, **options)
        kept.append([bytearray(size) for size in range(16, 400, 1 + 2 * number)][:: 1 + number % 3])
        results.append([found(path) for path in search(log_probs, torch.full((4,), 20))])
    return results


def options_with(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    if not options.get("lm"):
        return options
    path.write_text(OPEN_ARPA if options["lm"] == "open" else ARPA)
    return options | {"lm": path}


@pytest.mark.parametrize(
    ("options", "topology", "flat"),
    [
        *quick(((options, "ctc", False) for options in OPTIONS), lambda case: case[0] in OPTIONS[:2]),
        *((OPTIONS[number], "hmm", False) for number in (1, 5)),
        *((OPTIONS[number], "ctc", True) for number in (1, 5)),
    ],
    ids=str,
)
def test_new_searches_give_the_same_result(
    options: dict[str, Any], topology: str, flat: bool, tmp_path: Path
) -> None:
    results = decode(options_with(tmp_path / "equal.arpa", options), topology, flat, 6)
    assert all(result == results[0] for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[4]], ids=str)
def test_other_processes_give_the_same_result(options: dict[str, Any], tmp_path: Path) -> None:
    arguments = (options_with(tmp_path / "equal.arpa", options), "ctc", False)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        jobs = [pool.apply_async(decode, (*arguments, count)) for count in (1, 1, 2)]
        results = list(itertools.chain(*(job.get(timeout=120) for job in jobs)))
    results += decode(*arguments, 1)
    assert all(result == results[0] for result in results)


def log_probs_of(labels: str) -> tuple[Tensor, Tensor]:
    rows = torch.full((1, len(labels.split()), len(TOKENIZER)), -6.0)
    for frame, label in enumerate(labels.split()):
        rows[0, frame, 0 if label == "_" else TOKENIZER.symbols.index(label)] = -0.01
    return rows, torch.tensor([rows.shape[1]])


def test_fewer_words_and_earlier_homophones_win_ties(tmp_path: Path) -> None:
    """Also with a language model that gives them equal probabilities; at weight 0 there are no homophones."""
    path = tmp_path / "equal.arpa"
    path.write_text(ARPA)
    spoken = log_probs_of("_ S IY Z _")
    assert BeamSearch(TOKENIZER, word_score=0.0)(*spoken)[0].text == "SEAS"
    for weight, second in ((0.0, "S E"), (1.0, "SEA")):
        (best,) = BeamSearch(TOKENIZER, lm=path, lm_weight=weight, nbest=3)(*log_probs_of("_ S IY _"))
        assert [best.text, best.alternatives[0].text] == ["SEE", second]
        assert best.score == best.alternatives[0].score + (weight == 0.0)  # a word costs 1


def test_scores_contain_nothing_that_separates_ties() -> None:
    (best,) = BeamSearch(TOKENIZER, word_score=-0.5)(*log_probs_of("_ S _ IY Z _"))
    assert best.text == "SEAS"
    assert best.score == pytest.approx(-0.56, abs=1e-6)
