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


def across(spots: Sequence[Spot]) -> Table:
    """Return what pays by pass and length, over any models and processors: ranges, and how many save time.

    Where full attention takes too long, cells have times in place of shares of its time. Fewer layers don't
    count: with random weights nothing says what they cost.
    """
    heads = {
        HEADS["attention"]: ("attention",),
        f"{HEADS['frames']}, or {HEADS['precision']}": ("frames", "precision"),
        HEADS[TOGETHER]: (TOGETHER,),
    }
    return Table(
        title="What pays",
        columns=[Column("pass", number=False), Column("audio"), *(Column(x, number=False) for x in heads)],
        rows=[
            [
                TableCell(what),
                TableCell(audio),
                *(TableCell("; ".join(_said(there, axes)) or DASH) for axes in heads.values()),
            ]
            for what, lengths in _by_length(spots).items()
            for audio, there in lengths.items()
        ],
    )


def _said(there: Sequence[Spot], axes: Sequence[str]) -> list[str]:
    """Return the shares and the times in seconds at a length."""
    timed, untimed = ([x for x in there if (x.baseline_s is None) == without] for without in (False, True))
    return [x for x in (_share(timed, axes), _times(untimed, axes)[1]) if x]


def verdict(spots: Sequence[Spot]) -> dict[str, str]:
    """Return by heading when attention pays, when frames and precision do, and when nothing, if that was so.

    Fewer layers don't count; see `across`.
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
    for lengths in _by_length([x for x in spots if x.baseline_s is None]).values():
        for audio, there in lengths.items():
            names, times = _times(there, list(HEADS))
            long = f"at {audio} {there[0].baseline} takes too long to time"
            said["Attention pays"] += f"; {long}, {names} {times}" if times else ""
    return {head: f"{text}." for head, text in said.items()}


def _shares(spots: Sequence[Spot], *axes: str) -> str:
    """Return the times of the fastest variants of axes: `in encoding: 0.61 at 30 s, 0.18 at 5 min`."""
    parts = []
    for what, lengths in _by_length([x for x in spots if x.baseline_s is not None]).items():
        said = [f"{share} at {audio}" for audio, there in lengths.items() if (share := _share(there, axes))]
        if said:
            parts.append(f"in {what}: {', '.join(said)}")
    measured = any(axis in spot.rivals for spot in spots for axis in axes)
    return "; ".join(parts) or ("at no length measured" if measured else "not measured")


def _share(there: Sequence[Spot], axes: Sequence[str]) -> str:
    """Return the times of the fastest variants at a length, empty if none saves: `0.61 to 0.83 (2 of 3)`."""
    saving = [x for spot in there if (x := _saves(spot, *axes))]
    best = [min(x, key=lambda rival: rival.ratio.value if rival.ratio else 0.0) for x in saving]
    if not best:
        return ""
    shares = sorted({f"{x.ratio.value:.2f}" for x in best if x.ratio})
    names = {x.variant.removeprefix(f"{there[0].baseline} ") for x in best}
    alone = f" with {names.pop()}" if len(names) == 1 else ""
    some = "" if len(best) == len(there) else f" ({len(best)} of {len(there)})"
    return f"{' to '.join(dict.fromkeys((shares[0], shares[-1])))}{alone}{some}"


def _times(there: Sequence[Spot], axes: Sequence[str]) -> tuple[str, str]:
    """Return names and range of times of the first of these axes: local-128, 6.60 s to 9.52 s."""
    found = [x for spot in there if (x := next((spot.rivals[y] for y in axes if y in spot.rivals), None))]
    seconds = sorted(x.seconds or 0.0 for x in found)
    times = dict.fromkeys(map(duration, (*seconds[:1], *seconds[-1:])))
    return " or ".join(dict.fromkeys(x.variant for x in found)), " to ".join(times)


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
