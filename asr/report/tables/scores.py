"""Effect of exchanging a trained model's attention: scores, time, memory, ratios, also layer by layer."""

from collections.abc import Iterator
from typing import Any

from asr.attention.table import layer_runs
from asr.console import Column, Table, TableCell, counted, duration
from asr.experiment.results import Results, System
from asr.experiment.variant import Variant
from asr.report import theme
from asr.report.tables.cells import filled
from asr.report.words import clock_words, metric_heading, metric_words, scored
from asr.scoring.statistics import DASH, Estimate

FULL, LAYERS = "full", "layers"


def table(results: Results, split: str) -> Table | None:
    """Return a row per variant: all measures, time and memory; None without a baseline."""
    systems = _systems(results, split)
    if not systems:
        return None
    size, metrics = sizes(results, split), results.metrics(split)
    timed = size.get("timed", "model")
    examples = _examples(results, split)
    what = counted(examples, "example")
    if "positions" in size:
        positions = size["positions"] / size["inputs"]
        what += f", {counted(size['inputs'], 'input')} of {positions:,.0f} positions on average"
    clock = clock_words(results.clock).replace("wall-clock time", "time")
    rows = []
    for name, (label, variant) in systems.items():
        first = results.evaluations_of(label, split, variant)[0]
        seconds = first.forward_cpu_s if results.clock == "cpu" else first.forward_s
        each_s = None if seconds is None else seconds / max(1, examples)
        rows.append(
            [
                _head(name, variant),
                *(cell(results.error_rate(label, split, x, variant), x) for x in metrics),
                TableCell(duration(each_s), sort=each_s),
                TableCell(DASH if first.peak_mib is None else f"{first.peak_mib:,.0f}", sort=first.peak_mib),
            ]
        )
    return Table(
        key=f"scores-{split}",
        label="Scores",
        title=f"{split}: {what}",
        caption=(
            "Mechanisms ran in turn on each batch; nothing was trained again. Intervals are 95 % bootstrap "
            "intervals over inputs."
        ),
        columns=[
            _head_column(results),
            *(Column(metric_heading(x)) for x in metrics),
            Column(f"{clock} of the {timed} per example"),
            Column(f"peak MiB of the {timed}, longest batch"),
        ],
        rows=rows,
    )


def ratios(results: Results, split: str) -> Table | None:
    """Return all measures and the time divided by the baseline's; None without a baseline."""
    systems, metrics = _systems(results, split), results.metrics(split)
    if not systems:
        return None
    clock = clock_words(results.clock).replace("wall-clock time", "time")
    rows = []
    for name, system in systems.items():
        ratio_cells = [cell(results.ratio(system, split, x)) for x in metrics]
        time = results.ratio(system, split, "time")
        text = time.text("{:.2f}".format) if time else DASH
        rows.append([_head(name, system[1]), *ratio_cells, _cell(text, time)])
    found = Table(
        key=f"ratios-{split}",
        label="Ratios",
        title=f"{split}: ratios to {results.protocol['baseline']}",
        caption=(
            "Intervals are 95 % bootstrap intervals of the ratio, on the same resampled inputs; for time, "
            "quartiles over batches."
        ),
        columns=[
            _head_column(results),
            *(Column(metric_words(x)) for x in metrics),
            Column(f"{clock} (quartiles)"),
        ],
        rows=rows,
    )
    return filled(found)  # full attention has no KL to be divided by


def by_layer(results: Results, split: str) -> Table | None:
    """Return a row per mechanism or frame rate, and layer; None without a sweep over layers."""
    swept, metrics = layers(results, split), results.metrics(split)
    rows = [
        [_head(name, name), TableCell(str(layer), sort=layer)]
        + [cell(results.error_rate(label, split, x, variant), x) for x in metrics]
        for name, layer, (label, variant) in swept
    ]
    if not rows:
        return None
    return Table(
        key=f"layers-{split}",
        label="Layers",
        title=f"{split}: one layer exchanged, {FULL} in the others",
        caption=f"Intervals are 95 % bootstrap intervals over inputs.{frames_note(swept)}",
        columns=[_head_column(results), Column("layer"), *(Column(metric_heading(x)) for x in metrics)],
        rows=rows,
    )


def steps(results: Results, split: str) -> Table | None:
    """Return a row per step of a greedy search over layers; None without one."""
    search = results.protocol.get("search", {}).get(split)
    if not search:
        return None
    rows = []
    for number, step in enumerate(search["steps"], start=1):
        if variant := step["chosen"]:
            system = (results.candidates[0].label, variant)
            kl = results.error_rate(system[0], split, "kl", variant)
            time = results.ratio(system, split, "time")
            text = time.text("{:.2f}".format) if time else DASH
            cells = [TableCell(str(len(step["tried"]))), cell(kl, "kl"), _cell(text, time)]
            rows.append([TableCell(str(number), sort=number), _head(variant, variant), *cells])
    clock = clock_words(results.clock).replace("wall-clock time", "time")
    return Table(
        key=f"search-{split}",
        label="Search",
        title=f"{split}: steps of the search over layers, KL up to {search['limit']:g}",
        caption=(
            "Each step tries all remaining changes, and keeps the one that saves the most time "
            "per KL added. Changes that exceed the limit aren't tried again."
        ),
        columns=[
            Column("step"),
            Column("kept", number=False),
            Column("tried"),
            Column(metric_heading("kl")),
            Column(f"{clock} (quartiles), ratio to {FULL}"),
        ],
        rows=rows,
    )


def layers(results: Results, split: str) -> list[tuple[str, int, System]]:
    """Return what changes, number of the layer from 1, and system of a sweep over layers.

    A mechanism changes in this layer, the frame rate (`full frames=2`) from it on.
    """
    if results.protocol.get("exchange", {}).get("sweep") != LAYERS:
        return []
    swept = [row for system in _systems(results, split).values() for row in _single_layer(system)]
    order = list(dict.fromkeys(name for name, *_ in swept))
    return sorted(swept, key=lambda entry: order.index(entry[0]))


def frames_note(swept: list[tuple[str, int, System]]) -> str:
    """Return a sentence on the rows of frame rates; empty without such rows."""
    return " A frame rate holds from its layer on." if any(Variant.read(x).frames for x, *_ in swept) else ""


def _single_layer(system: System) -> Iterator[tuple[str, int, System]]:
    variant = Variant.read(system[1])
    if variant == Variant(FULL, variant.frames) and variant.frames:
        *before, last = variant.frames.split(",")
        layer = 1 + sum(int(part.partition("*")[2] or 1) for part in before)
        yield str(Variant(FULL, last.partition("*")[0])), layer, system
    if "*" not in variant.attention or variant.attention != system[1]:
        return
    names = [spec.name for spec, count in layer_runs(variant.attention) for _ in range(count)]
    other = [(name, layer) for layer, name in enumerate(names, start=1) if name != FULL]
    if len(other) == 1:
        yield *other[0], system


def sizes(results: Results, split: str) -> dict[str, Any]:
    """Return the protocol's entries on a split's inputs: `timed`, `inputs`, `positions`."""
    found: dict[str, dict[str, Any]] = results.protocol.get("sizes", {})
    return found.get(split) or next(iter(found.values()), {})


def cell(estimate: Estimate | None, metric: str = "") -> TableCell:
    """Return a measure, or a ratio if no metric is named, with its interval below it."""
    return _cell(scored(estimate, metric), estimate)


def _cell(text: str, estimate: Estimate | None) -> TableCell:
    shown, _, interval = text.partition(" ")
    return TableCell(shown, sort=estimate.value if estimate else None, detail=interval.strip("()"))


def _systems(results: Results, split: str) -> dict[str, System]:
    """Return a split's systems by name, if more than their time was compared with a baseline."""
    compared = "baseline" in results.protocol and results.metrics(split)
    return results.systems(split) if compared else {}


def _examples(results: Results, split: str) -> int:
    return next((x.utterances for x in results.evaluations if x.split == split and x.utterances), 0)


def _head(name: str, variant: str) -> TableCell:
    return TableCell(name, sort=name, family=theme.family(variant))


def _head_column(results: Results) -> Column:
    single = len(results.candidates) == 1
    return Column("attention" if single else "system", number=False, wrap=False)
