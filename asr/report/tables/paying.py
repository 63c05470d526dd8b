"""What pays: the fastest variant of each axis by length of audio, and the verdict in three lines."""

from collections.abc import Callable, Sequence

from asr.console import Column, Table, TableCell, duration
from asr.experiment.paying import CLOSE, MATTERS, TOGETHER, Rival, Spot, spots
from asr.experiment.results import Results
from asr.report.words import clock_words
from asr.scoring.statistics import DASH

HEADS = {
    "attention": "another attention",
    "frames": "fewer frames",
    "precision": "lower precision",
    "layers": "fewer layers",
    TOGETHER: "several of them",
}
SAVED = f"{100 * (1 - MATTERS):.0f} %"


def table(results: Results) -> Table | None:
    """Return the map of a benchmark of a model, or of an exchange; None for other results."""
    found = spots(results)
    return table_of(found, results.clock) if found else None


def table_of(found: Sequence[Spot], clock: str) -> Table:
    """Return spots of one processor and model, timed by the clock `cpu` or `wall`, as a table."""
    first = found[0]
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    weights = "trained weights" if first.trained else "random weights, so time alone"
    heads = {axis: head for axis, head in HEADS.items() if any(axis in x.rivals for x in found)}
    notes = [
        f"Each cell: the fastest variant, its {clock_words(clock)} divided by that of {first.baseline}, and "
        f"quartiles. A saving is shown if the quartiles differ by {SAVED} or more."
    ]
    if first.trained:
        notes.append(
            f"Variants whose KL from {first.baseline} is at most {CLOSE:g}; without KL, those whose errors "
            "aren't shown to be more."
        )
    notes += [f"{audio_words(x.audio_s)}: {why}." for x in found if (why := _left_out(x))]
    return Table(
        title=f"What pays on {first.processor}, {threads}: {first.model}, {weights}",
        columns=[
            Column("audio", "duration of each input"),
            Column("pass", number=False),
            Column(first.baseline, f"{clock_words(clock)} per input"),
            *(Column(head, number=False) for head in heads.values()),
        ],
        rows=[
            [
                TableCell(audio_words(x.audio_s), sort=x.audio_s),
                TableCell(_pass(x)),
                TableCell(duration(x.baseline_s), sort=x.baseline_s),
                *(TableCell(_cell(x.rivals.get(axis))) for axis in heads),
            ]
            for x in found
        ],
        caption="\n".join(notes),
        key="paying",
        label="What pays",
    )


def audio_words(seconds: float) -> str:
    """Return the length of a recording: `10 s`, `5 min`, `1 h`.

    Example:
        >>> audio_words(29.5), audio_words(300), audio_words(5400)
        ('30 s', '5 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def _pass(spot: Spot) -> str:
    return "encoding" if spot.passes == "forward" else "training step"


def _cell(rival: Rival | None) -> str:
    if rival is None:
        return DASH
    if rival.ratio is None:
        return f"{rival.variant}: {duration(rival.seconds)}"
    text = f"{rival.variant}: {rival.ratio.text('{:.2f}'.format)}"
    text += f", KL {rival.kl:.3f}" if rival.kl is not None else ""
    if not rival.close:
        return f"none close enough ({text})"
    return text if rival.shown else f"no saving shown ({text})"


def _left_out(spot: Spot) -> str:
    reasons = dict.fromkeys(spot.left_out.values())
    return "; ".join(
        f"{', '.join(x for x, why in spot.left_out.items() if why == reason)} {reason}" for reason in reasons
    )


def verdict(found: Sequence[Spot]) -> dict[str, str]:
    """Return in three lines, by heading, when attention pays, when frames and precision do, and when nothing.

    Fewer layers don't count: with random weights nothing says what they cost.
    """
    if not found:
        return {}
    attention = [x for x in found if _saves(x, "attention")]
    others = [x for x in found if _saves(x, "frames", "precision")]
    known = [x for x in found if x.baseline_s is not None]
    nothing = [x for x in known if not _saves(x, "attention", "frames", "precision", TOGETHER)]
    unknown = [x for x in found if x.baseline_s is None and x.rivals]

    def best(*axes: str) -> Callable[[Spot], tuple[str, str]]:
        return lambda x: _share(min(_saves(x, *axes), key=lambda r: r.ratio.value if r.ratio else 0.0))

    said = {
        "Attention pays": _lines(attention, found, best("attention")),
        "Frames and precision pay": _lines(others, found, best("frames", "precision")),
        "Nothing pays": _lines(nothing, found, lambda x: ("", "")) or "(not so at any length measured)",
    }
    said = {head: text or "at no length measured" for head, text in said.items()}
    if unknown:
        times = _lines(unknown, found, lambda x: _seconds(next(iter(x.rivals.values()))))
        said["Attention pays"] += f"; `{found[0].baseline}` would take too long to measure {times}"
    return {head: f"{text}." for head, text in said.items()}


def _saves(spot: Spot, *axes: str) -> list[Rival]:
    return [x for axis in axes if (x := spot.rivals.get(axis)) and x.shown]


def _share(rival: Rival) -> tuple[str, str]:
    assert rival.ratio is not None, "rivals that are shown to save time"
    return f"{rival.ratio.value:.2f}", f"with `{rival.variant}`"


def _seconds(rival: Rival) -> tuple[str, str]:
    return duration(rival.seconds), f"with `{rival.variant}`"


def _lines(chosen: Sequence[Spot], found: Sequence[Spot], say: Callable[[Spot], tuple[str, str]]) -> str:
    """Return spots by length with what is said of each: `at 30 s (whisper-base 0.79 and 0.83 with near-100)`.

    Args:
        chosen: the spots.
        found: all spots of the map.
        say: function from a spot to a value and the variant that has it.
    """
    parts = []
    for audio in dict.fromkeys(audio_words(x.audio_s) for x in sorted(chosen, key=lambda x: x.audio_s)):
        values: dict[tuple[str, str], list[str]] = {}
        for spot in (x for x in chosen if audio_words(x.audio_s) == audio):
            value, variant = say(spot)
            values.setdefault((_model(spot, found), variant), []).append(value)
        models = [f"{model} {' and '.join(x)} {variant}".strip() for (model, variant), x in values.items()]
        parts.append(f"at {audio} ({', '.join(models)})")
    return ", ".join(parts)


def _model(spot: Spot, found: Sequence[Spot]) -> str:
    """Return the model; with its processor if the map has several of them for it."""
    text = spot.model if spot.passes == "forward" else f"training {spot.model}"
    processors = {x.processor for x in found if x.model == spot.model}
    return text if len(processors) == 1 else f"{text} on {spot.processor}"
