"""A small search for the weights of a decoder on a development split, recorded for later decodings."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rapidfuzz.distance import Levenshtein

from asr.errors import UserError
from asr.files import file_digest, write_json
from asr.search.decoder import WEIGHTED, BeamConfig, Weights

FILE = "tuned.json"
STEPS = (1.0, 0.5, 0.25)  # of the language model's weight and of the word score
SMALLER = (3, 10)  # divisors of the beam size that are tried at the end
NO_MODEL = "none"


@dataclass(frozen=True)
class Trial:
    """The errors that some weights make."""

    weights: Weights
    errors: int
    length: int  # words of the reference
    cpu_s: float  # of the search

    @property
    def rate(self) -> float:
        """The word error rate, a fraction."""
        return self.errors / self.length

    def as_dict(self) -> dict[str, Any]:
        """Return a row of the record."""
        return {
            **dataclasses.asdict(self.weights),
            "wer": self.rate,
            "errors": self.errors,
            "cpu_s": self.cpu_s,
        }


def tune(evaluate: Callable[[Weights], Trial], start: Weights, with_lm: bool) -> tuple[Trial, list[Trial]]:
    """Go downhill along each axis, in smaller steps where no neighbour is better; then try smaller beams.

    A smaller beam is taken where it makes no more errors.

    Args:
        evaluate: decodes with some weights and counts the errors.
        start: where to begin; its beam size is used for the weights.
        with_lm: whether there is a language model's weight to find.

    Returns:
        The best trial, and all in the order they were made.
    """
    trials = {start: evaluate(start)}
    best = trials[start]
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for weights in _neighbours(best.weights, step, with_lm):
                if weights not in trials:
                    trials[weights] = evaluate(weights)
                if trials[weights].errors < best.errors:
                    best, moved = trials[weights], True
    for divisor in SMALLER:
        weights = replace(best.weights, size=max(1, start.size // divisor))
        if weights not in trials:
            trials[weights] = evaluate(weights)
        if trials[weights].errors > best.errors:
            break
        best = trials[weights]
    return best, list(trials.values())


def _neighbours(weights: Weights, step: float, with_lm: bool) -> list[Weights]:
    moves = [replace(weights, word_score=weights.word_score + sign * step) for sign in (1, -1)]
    if with_lm:
        moves += [replace(weights, lm_weight=weights.lm_weight + sign * step) for sign in (1, -1)]
    return [move for move in moves if move.lm_weight >= 0]


def word_errors(references: list[str], texts: list[str]) -> tuple[int, int]:
    """Return the edits between words, without regard to case, and the number of reference words."""
    pairs = [
        (reference.casefold().split(), text.casefold().split())
        for reference, text in zip(references, texts, strict=True)
    ]
    return sum(Levenshtein.distance(*pair) for pair in pairs), sum(len(reference) for reference, _ in pairs)


def record(
    run: Path, decoder: str, beam: BeamConfig, best: Trial, trials: list[Trial], about: dict[str, Any]
) -> Path:
    """Write what was found into `<run>/decode/tuned.json`, in place of an earlier search for the same."""
    path = run / "decode" / FILE
    records = _read(path)
    records[_key(decoder, beam)] = {
        "decoder": decoder,
        "lm": beam.lm,
        **about,
        **best.as_dict(),
        "trials": [trial.as_dict() for trial in trials],
    }
    write_json(records, path)
    return path


def tuned(run: Path, decoder: str, beam: BeamConfig) -> tuple[BeamConfig, str | None]:
    """Fill in what the options leave open with what was found for this decoder and language model.

    Returns:
        The options, and where the values come from; None where nothing was found.
    """
    path = run / "decode" / FILE
    if not path.is_file() or decoder not in WEIGHTED:
        return beam, None
    found = _read(path).get(_key(decoder, beam))
    if found is None:
        return beam, None
    names = ("lm_weight", "word_score", "size")
    open_ones = {name: found[name] for name in names if getattr(beam, name) is None}
    return replace(beam, **open_ones), f"{path}: {_key(decoder, beam)}" if open_ones else None


def _key(decoder: str, beam: BeamConfig) -> str:
    """What weights belong to: the decoder and the content of the language model."""
    if beam.lm and not Path(beam.lm).is_file():
        raise UserError(f"{beam.lm}: expected an ARPA or KenLM file, found none")
    return f"{decoder} lm={file_digest(Path(beam.lm)) if beam.lm else NO_MODEL}"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        records = json.loads(path.read_text())
        for found in records.values():
            Weights(float(found["lm_weight"]), float(found["word_score"]), int(found["size"]))
        return dict(records)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: expected what tune= wrote, found {error!r}; delete it and tune again"
        ) from None
