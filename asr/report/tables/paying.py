"""What pays: the fastest variant of each axis by length of audio, and the verdict in three lines."""

from collections.abc import Sequence

from asr.console import Column, Table, TableCell, counted, duration, hours
from asr.experiment.paying import CLOSE, MATTERS, TOGETHER, Rival, Spot, spots
from asr.experiment.results import Results
from asr.report.words import MODEL_PASSES, clock_words
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
    measured = spots(results)
    return table_of(measured, results.clock) if measured else None


def table_of(spots: Sequence[Spot], clock: str) -> Table:
    """Return spots of one processor and model, timed by the clock `cpu` or `wall`, as a table."""
    first = spots[0]
    weights = "trained weights" if first.trained else "random weights, so time alone"
    heads = {axis: head for axis, head in HEADS.items() if any(axis in x.rivals for x in spots)}
    notes = [
        f"Each cell: the fastest variant, its {clock_words(clock)} divided by that of {first.baseline}, and "
        f"quartiles. A saving is shown if the quartiles differ by {SAVED} or more."
    ]
    if first.trained:
        notes.append(
            f"Variants whose KL from {first.baseline} is at most {CLOSE:g}; without KL, those whose errors "
            "aren't shown to be more."
        )
    notes += [f"{hours(x.audio_s)}: {why}." for x in spots if (why := _left_out(x))]
    return Table(
        title=f"What pays on {first.processor}, {counted(first.threads, 'thread')}: {first.model}, {weights}",
        columns=[
            Column("audio", "duration of each input"),
            Column("pass", number=False),
            Column(first.baseline, f"{clock_words(clock)} per input"),
            *(Column(head, number=False) for head in heads.values()),
        ],
        rows=[
            [
                TableCell(hours(x.audio_s), sort=x.audio_s),
                TableCell(MODEL_PASSES[x.passes]),
                TableCell(duration(x.baseline_s), sort=x.baseline_s),
                *(TableCell(_cell(x.rivals.get(axis))) for axis in heads),
            ]
            for x in spots
        ],
        caption="\n".join(notes),
        key="paying",
        label="What pays",
    )


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


def verdict(spots: Sequence[Spot]) -> dict[str, str]:
    """Return by heading when attention pays, when frames and precision do, and when nothing, if that was so.

    Brackets say how many of several measurements of a length save time, unless all do.

    Fewer layers don't count: with random weights nothing says what they cost.

    Args:
        spots: spots of any models and processors; values of several become a range.
    """
    if not spots:
        return {}
    said = {
        "Attention pays": _shares(spots, "attention"),
        "Frames and precision pay": _shares(spots, "frames", "precision"),
    }
    if any(_saves(x, TOGETHER) for x in spots):
        said["Frames and precision pay"] += f"; several axes at once {_shares(spots, TOGETHER)}"
    if unpaid := _unpaid(spots):
        said["Nothing pays"] = unpaid
    said["Attention pays"] += "".join(_untimed([x for x in spots if x.baseline_s is None]))
    return {head: f"{text}." for head, text in said.items()}


def _shares(spots: Sequence[Spot], *axes: str) -> str:
    """Return the times of the fastest variants of axes: `in encoding 0.61 to 0.83 at 30 s, 0.18 at 5 min`."""
    parts = []
    for what, lengths in _by_length([x for x in spots if x.baseline_s is not None]).items():
        said = []
        for audio, there in lengths.items():
            saving = [x for spot in there if (x := _saves(spot, *axes))]
            best = [min(x, key=lambda rival: rival.ratio.value if rival.ratio else 0.0) for x in saving]
            if best:
                shares = sorted({f"{x.ratio.value:.2f}" for x in best if x.ratio})
                names = {x.variant.removeprefix(f"{there[0].baseline} ") for x in best}
                alone = f" with `{names.pop()}`" if len(names) == 1 else ""
                some = "" if len(best) == len(there) else f" ({len(best)} of {len(there)})"
                said.append(f"{' to '.join(dict.fromkeys((shares[0], shares[-1])))} at {audio}{alone}{some}")
        if said:
            parts.append(f"in {what}: {', '.join(said)}")
    measured = any(axis in spot.rivals for spot in spots for axis in axes)
    return "; ".join(parts) or ("at no length measured" if measured else "not measured")


def _untimed(spots: Sequence[Spot]) -> list[str]:
    """Return the lengths at which full attention takes too long, with the times of the fastest mechanisms."""
    said = []
    for lengths in _by_length(spots).values():
        for audio, there in lengths.items():
            fastest = [next(iter(x.rivals.values())) for x in there if x.rivals]
            if fastest:
                names = " or ".join(f"`{name}`" for name in dict.fromkeys(x.variant for x in fastest))
                seconds = [x.seconds or 0.0 for x in fastest]
                times = dict.fromkeys(map(duration, (min(seconds), max(seconds))))
                said.append(
                    f"; at {audio} `{there[0].baseline}` takes too long to time, {names} {' to '.join(times)}"
                )
    return said


def _unpaid(spots: Sequence[Spot]) -> str:
    """Return the lengths at which no variant saves time for any model: `in encoding at 4 s and 10 s`."""
    parts = []
    for what, lengths in _by_length([x for x in spots if x.baseline_s is not None]).items():
        none = [audio for audio, there in lengths.items() if not any(_saves(x, *HEADS) for x in there)]
        if none:
            parts.append(f"in {what} at {' and '.join(none)}")
    return "; ".join(parts)


def _by_length(spots: Sequence[Spot]) -> dict[str, dict[str, list[Spot]]]:
    """Return spots by pass and length, shortest first."""
    by_length: dict[str, dict[str, list[Spot]]] = {}
    for x in sorted(spots, key=lambda x: (x.passes != "forward", x.audio_s)):
        lengths = by_length.setdefault(MODEL_PASSES[x.passes].removesuffix(" step"), {})
        lengths.setdefault(hours(x.audio_s), []).append(x)
    return by_length


def _saves(spot: Spot, *axes: str) -> list[Rival]:
    return [x for axis in axes if axis != "layers" and (x := spot.rivals.get(axis)) and x.shown]
