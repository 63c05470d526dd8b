"""The protocol of an experiment in words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.console import counted
from asr.experiment.results import Results
from asr.report.words import clock_words


def heading(results: Results) -> str:
    """Return the heading of the page."""
    if "bench" in results.protocol:
        return "Time and memory by length"
    if not results.trainings:
        return f"{', '.join(x.label for x in results.candidates)}: attention exchanged"
    if results.evaluations and "training" not in results.protocol:
        return f"{results.recipe}: trained models evaluated"
    if not results.recipe:  # a single run
        return f"{results.candidates[0].label}: training with {results.candidates[0].attention}"
    return f"{results.recipe}: attention mechanisms compared"


def protocol_words(results: Results) -> str:
    """Return sentences on the conditions that all systems share."""
    if "bench" in results.protocol:
        return "Operations on random input, which take turns at each length."
    if not results.trainings:
        return (
            "Trained models, each run as it was trained and in other variants; nothing was trained again. "
            "Systems run in turn on each batch. Intervals are 95 % bootstrap intervals over inputs; ratios "
            "are on the same resampled inputs."
        )
    if len(results.candidates) == 1 and not results.evaluations:
        return "What this training had logged when the page was written."
    if "training" not in results.protocol:
        return f"Models trained separately, evaluated on the same split. Intervals are over {results.unit}."
    return (
        "All candidates share data, order, seeds, frame budget, optimiser, stopping rule and evaluation, "
        "except for the differences in the table below."
    )


def protocol_line(results: Results) -> str:
    """Return a summary of the protocol: models, budget, data, search and clock."""
    trainings = len([x for x in results.trainings if x.status == "done"])
    parts = [f"{counted(len(results.candidates), 'candidate')}, {counted(trainings, 'training')}"]
    if "bench" in results.protocol:
        parts = [counted(len(results.variants()), "operation")]
    elif not results.trainings:
        models, variants = len(results.candidates), len(results.variants())
        parts = [f"{counted(models, 'model')}, {counted(variants, 'variant')}, nothing trained again"]
    if budget := results.protocol.get("budget"):
        parts.append(f"budget per model: {budget}")
    if results.trainings and (train := results.data.get("train")):
        parts.append(f"{train.hours:.2f} h of training data")
    parts += [
        f"{name}: {counted(count, results.unit.removesuffix('s'))}"
        for name in results.splits()
        if (count := _size(results, name))
    ]
    if results.data:
        parts.append(search_words(results.protocol))
    parts.append(f"times are {clock_words(results.clock)}s")
    return " · ".join(parts)


def _size(results: Results, split: str) -> int:
    """Return the number of utterances or items of a split; 0 for random input, or if it is unknown."""
    if split in results.data and results.trainings:  # an exchange joins utterances into inputs
        return results.data[split].utterances
    return next((x.utterances or 0 for x in results.evaluations if x.split == split and not x.length), 0)


def search_words(protocol: dict[str, Any]) -> str:
    """Return the decoder in words, with beam size and language model if it has them."""
    decoder, beam = protocol.get("decoder", "greedy"), protocol.get("beam") or {}
    if decoder == "greedy":
        return "greedy search"
    words = f"{decoder} search of size {beam['size']}" if beam.get("size") else f"{decoder} search"
    return f"{words}, language model {Path(beam['lm']).name}" if beam.get("lm") else words


def settings(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values of nested settings."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
