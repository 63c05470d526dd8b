"""Tunes a decoder's weights on a development split, and records them for later decoding."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import file_digest, read_record, write_record
from asr.records.run_folder import RunFolder
from asr.search.decoder import Decoder, WeightedDecoder, Weights

TUNED = ("lm_weight", "word_score", "size")
STEPS = (1.0, 0.5, 0.25)  # step sizes for the language model weight and the word score
SMALLER = (3, 10)  # divisors of the beam size, tried at the end: a smaller beam is faster


@dataclass(frozen=True)
class Trial:
    """The word errors with some weights."""

    weights: Weights
    errors: int
    length: int  # number of reference words
    cpu_s: float  # CPU time of the search

    @property
    def rate(self) -> float:
        """Word error rate as a fraction."""
        return self.errors / max(self.length, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return a row of the record."""
        return {**asdict(self.weights), "wer": self.rate, "errors": self.errors, "cpu_s": self.cpu_s}


def tune(
    evaluate: Callable[[Weights], Trial], start: Weights, names: Sequence[str]
) -> tuple[Trial, list[Trial]]:
    """Minimise errors by coordinate descent with decreasing steps, then try smaller beams.

    A smaller beam is kept unless it makes more errors.

    Args:
        evaluate: function that decodes with given weights and counts the errors.
        start: initial weights; the descent uses their beam size throughout.
        names: weights to tune besides the size of the beam: `word_score`, `lm_weight`.

    Returns:
        The best trial, and all trials in order.
    """
    trials = {start: evaluate(start)}
    best = trials[start]
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for weights in _neighbours(best.weights, step, names):
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


def _neighbours(weights: Weights, step: float, names: Sequence[str]) -> list[Weights]:
    moves = [
        replace(weights, **{name: getattr(weights, name) + sign * step}) for name in names for sign in (1, -1)
    ]
    return [move for move in moves if move.lm_weight >= 0]


def record(
    run: Path, decoder: WeightedDecoder, best: Trial, trials: list[Trial], about: dict[str, Any]
) -> Path:
    """Write the result to `<run>/decode/tuned.json`, in place of an earlier one for decoder and model."""
    path = RunFolder(run).tuned
    records = _read(path)
    records[_key(decoder)] = {
        "decoder": decoder.name,
        "lm": decoder.lm,
        **about,
        **best.as_dict(),
        "trials": [trial.as_dict() for trial in trials],
    }
    write_record(records, path)
    return path


def tuned(run: Path, decoder: Decoder) -> tuple[Decoder, str | None]:
    """Fill in unset weights with those recorded for this decoder and language model.

    Returns:
        The decoder, and the source of the weights; None if none were used.
    """
    path = RunFolder(run).tuned
    if not path.is_file() or not isinstance(decoder, WeightedDecoder):
        return decoder, None
    stored = _read(path).get(_key(decoder))
    if stored is None:
        return decoder, None
    unset = {name: stored[name] for name in TUNED if getattr(decoder, name) is None}
    return replace(decoder, **unset), f"{path}: {_key(decoder)}" if unset else None


def _key(decoder: WeightedDecoder) -> str:
    """Return the key of a record: the decoder and the hash of the language model."""
    if decoder.lm and not Path(decoder.lm).is_file():
        raise UserError(f"{decoder.lm}: expected an ARPA or KenLM file, found none")
    return f"{decoder.name} lm={file_digest(Path(decoder.lm)) if decoder.lm else 'none'}"


def _read(path: Path) -> dict[str, Any]:
    return read_record(path, "weights recorded by tune=") if path.is_file() else {}
