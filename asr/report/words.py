"""Formatting of results for tables, charts and findings, and the tables printed on the terminal."""

from typing import Any

from rich.console import Console

from asr.attention.table import look_ahead, mechanism_class, parse_name
from asr.comparison.records import Candidate, Conditions
from asr.comparison.results import Results
from asr.console import Column, Table, TableCell, duration, is_share
from asr.errors import UserError
from asr.scoring.estimates import DASH, Estimate, fastest, percent, spread
from asr.training.options import task_options

LOOK_AHEAD = "of the attention of all layers; convolutions and normalisation come on top"


def measured(estimate: Estimate | None, metric: str) -> str:
    """Return a measure with its interval: `8.10 (7.52–8.71)` in percent, others as they are, `2.183`."""
    form = percent if is_share(metric) else "{:.3f}".format
    # An interval over seeds may begin below zero, where no measure is.
    return DASH if estimate is None else estimate.text(lambda value: form(max(value, 0.0)))


def look_ahead_text(attention: str, layers: int, position_ms: float) -> str:
    """Return by how much the attention of all layers looks ahead: in ms, `utterance`, or a dash if unknown.

    Args:
        attention: mechanism, or one for each layer.
        layers: number of layers.
        position_ms: time between positions; 0: unknown.

    Example:
        >>> look_ahead_text("local-64:right=4", 12, 40.0), look_ahead_text("full", 12, 40.0)
        ('1,920', 'utterance')
    """
    try:
        positions = look_ahead(attention, layers)
    except UserError:  # code of the user's own that isn't loaded
        return DASH
    if positions is None:
        return "utterance"
    return f"{positions * position_ms:,.0f}" if position_ms else DASH


def candidate_look_ahead(results: Results, candidate: Candidate) -> str:
    """Return what `look_ahead_text` does for a candidate; a dash if no encoder here reads audio."""
    settings = results.protocol.get("training", {}) | candidate.overrides
    shift_ms = settings.get("features.frame_shift_ms")
    # A pretrained encoder has layers and a subsampling of its own; other tasks have no frames.
    if not shift_ms or settings.get("model.encoder") or task_options(results.recipe):
        return DASH
    return look_ahead_text(candidate.attention, candidate.layers, candidate.subsampling * shift_ms)


def changed(difference: Estimate, metric: str) -> str:
    """Return a difference with its interval: `+0.35 (−0.10 … 0.80)`, in points of percent for a share."""
    form = percent if is_share(metric) else "{:.3f}".format
    text = difference.text(form, " … ").replace("-", "−")
    return text if text.startswith("−") else f"+{text}"


def duration_range(estimate: Estimate) -> str:
    """Format the range of several times; return an empty string if lowest and highest look the same.

    Example:
        >>> duration_range(spread([4.1, 4.0, 4.2], "repeats"))
        '4.00–4.20 s'
    """
    low, _, high = estimate.ends(duration).partition(DASH)
    if low == high:
        return ""
    number, _, unit = low.partition(" ")
    same_unit = high.count(" ") == low.count(" ") == 1 and high.endswith(f" {unit}")
    return f"{number if same_unit else low}–{high}"


def mebibytes(value: float) -> str:
    """Return a size given in MiB."""
    return f"{value / 1024:.2f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def count(value: float) -> str:
    """Return an abbreviated number: `850`, `12.3 k`, `4.21 M`.

    Example:
        >>> count(850), count(12_345), count(4_210_000)
        ('850', '12.3 k', '4.21 M')
    """
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 thread`, `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock_words(clock: str) -> str:
    """Return the quantity that a clock, `cpu` or `wall`, measures."""
    return "CPU time" if clock == "cpu" else "wall-clock time"


def metric_words(metric: str) -> str:
    """Return the display name of an error rate or another validation measure.

    Example:
        >>> metric_words("per"), metric_words("dev_error"), metric_words("official-swbd")
        ('PER', 'error rate', 'official WER, swbd')
        >>> metric_words("dev_bits_per_character")
        'bits per character'
    """
    if not is_share(metric):
        return metric.removeprefix("dev_").replace("_", " ")
    stem, _, subset = metric.removeprefix("dev_").partition("-")
    name = {"official": "official WER", "error": "error rate"}.get(stem, stem.upper())
    return f"{name}, {subset}" if subset else name


def metric_heading(metric: str) -> str:
    """Return the display name of a measure with its unit: `PER %`, `bits per character`."""
    return metric_words(metric) + (" %" if is_share(metric) else "")


def metric_title(metric: str) -> str:
    """Return the title of an axis for a measure: `PER (%)`, `bits per character`."""
    return metric_words(metric) + (" (%)" if is_share(metric) else "")


def mechanism_words(attention: str) -> str:
    """Return the numbers of a mechanism, and its other options if they differ from their defaults, as text.

    Example:
        >>> mechanism_words("i-clustered-25"), mechanism_words("full")
        ('clusters 25, topk 32, bits 63, iterations 10', '–')
        >>> mechanism_words("clustered-25:bits=31,bias=true")
        'clusters 25, bits 31, iterations 10, bias True'
    """
    try:
        spec = parse_name(attention)
    except UserError:  # results may come from a version with other mechanisms
        return DASH
    defaults = {option.name: option.default for option in mechanism_class(spec.mechanism).schema.options}
    shown = [
        f"{name} {value}"
        for name, value in spec.arguments.items()
        if not isinstance(value, bool | str) or value != defaults.get(name)
    ]
    return ", ".join(shown) or DASH


def hardware_words(environment: dict[str, Any]) -> str:
    """Return processor, cores, threads and GPUs of an `environment.json` as text."""
    parts = [str(environment.get("processor") or environment.get("machine") or "unknown")]
    parts += [counted(number, noun) for noun in ("core", "thread") if (number := environment.get(f"{noun}s"))]
    gpus = environment.get("gpus") or []
    parts += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(parts)


def conditions_words(split: str, conditions: Conditions) -> str:
    """Return a sentence on the load of the machine while the forward passes over a split were timed."""
    share = conditions.cpu_share()
    facts = []
    if share is not None:
        facts.append(f"the timing process was on a CPU for {100 * min(share, 1.0):.0f} % of the time")
    if conditions.other_cpus is not None:
        facts.append(f"other processes kept {conditions.other_cpus:.1f} CPUs busy")
    threads = f"with {counted(conditions.threads, 'thread')}"
    how = threads if conditions.device == "cpu" else f"on {conditions.device}"
    timed = f"Forward passes over {split} were timed {how}"
    if not facts:
        return f"{timed}; the load on the machine is unknown."
    if conditions.busy():
        return f"{timed} on a busy machine, so times are less reliable: {' and '.join(facts)}."
    return f"{timed} on a quiet machine: {' and '.join(facts)}."


def print_results(results: Results, console: Console) -> None:
    """Print the table of candidates, a matrix per split, warnings about a busy machine, and failures."""
    console.print(candidate_table(results))
    for split in results.splits():
        if results.exchanges(split):
            console.print(matrix(results, split))
        if table := difference_table(results, split):
            console.print(table)
    for split, conditions in results.conditions.items():
        if conditions.busy():
            console.print(conditions_words(split, conditions), style="yellow", markup=False, soft_wrap=True)
    for failure in results.failures:
        text = f"FAILED {failure.cell}: {failure.error} (log: {failure.log})"
        console.print(text, style="red", markup=False, soft_wrap=True)


def candidate_table(results: Results) -> Table:
    """Return a table of error rates, training costs and forward times of all candidates."""
    splits, clock = results.splits(), results.clock
    heads = {split: results.metrics(split)[:1] for split in splits}
    unit = "CPU s" if clock == "cpu" else "s"
    names = ["candidate"]
    for split in splits:
        names += [f"{metric_heading(metric)}, {split}" for metric in heads[split]]
        names.append(f"forward {unit}, {split}")
    dev = results.dev_measure()
    if not splits:
        names.append(f"dev {metric_heading(dev)}")
    names += ["look-ahead, ms", f"{unit} per epoch", f"{unit} to best", "peak MiB", "steps", "seeds"]
    fronts = {split: results.front(split) for split in splits}
    times = {
        split: {x.label: time for x in results.candidates if (time := results.forward_time(x.label, split))}
        for split in splits
    }
    level = {split: fastest(times[split]) if times[split] else [] for split in splits}
    rows = []
    for candidate in results.candidates:
        label = candidate.label
        row = [label]
        for split in splits:
            row += [measured(results.error_rate(label, split, metric), metric) for metric in heads[split]]
            marks = " =" if label in level[split] and len(level[split]) > 1 else ""
            marks += " *" if label in fronts[split] else ""
            row.append(_number(times[split].get(label)) + marks)
        trained = results.trainings_of(label)
        if not splits:
            row.append(measured(results.dev_error(label), dev))
        row.append(candidate_look_ahead(results, candidate))
        costs = [[x.epoch_s(clock) for x in trained], [x.best_s(clock) for x in trained]]
        costs += [[x.peak_memory_mib for x in trained]]
        row += [_number(spread(values, "seeds")) for values in costs]
        row.append(_number(spread([x.steps for x in trained], "seeds"), whole=True))
        rows.append([*row, f"{len(trained)}/{len(candidate.seeds)}"])
    caption = (
        "error rates: 95 % interval, over seeds if there are several; costs: median (lowest–highest) of "
        "repeats or seeds\n* Pareto front of error rate and forward time; = level with the fastest: the "
        f"ranges overlap\nlook-ahead: {LOOK_AHEAD}"
    )
    return Table.of(f"{results.recipe}: {results.protocol['budget']}", names, rows, caption=caption)


def difference_table(results: Results, split: str) -> Table | None:
    """Return the difference of each candidate's error rate to a reference; None without two candidates.

    The reference is the first candidate with full attention, or else the most accurate one; with several
    training budgets, one of the same budget.
    """
    metric = next(iter(results.metrics(split)), "")
    rates = {
        x.label: rate for x in results.candidates if (rate := results.error_rate(x.label, split, metric))
    }
    if len(rates) < 2:
        return None
    references: dict[str, str] = {}
    for budget in dict.fromkeys(x.budget for x in results.candidates):
        group = [x.label for x in results.candidates if x.budget == budget and x.label in rates]
        full = [label for label in group if results.own(label) == "full"]
        lowest = min(group, key=lambda label: rates[label].value, default="")
        references |= dict.fromkeys(group, full[0] if full else lowest)
    rows = []
    for label, reference in references.items():
        systems = (label, results.own(label)), (reference, results.own(reference))
        found = results.difference(*systems, split, metric)
        if found is None:
            continue
        level = results.level(label, reference, split, metric)
        verdict = "none shown" if level else "better" if found.value < 0 else "worse"
        cells = [changed(found, metric), found.over or DASH, str(found.count), verdict]
        difference = TableCell(cells[0], sort=found.value)
        rows.append([TableCell(label, sort=label), difference, *map(TableCell, cells[1:])])
    if not rows:
        return None
    unit = ", points" if is_share(metric) else ""
    compared = dict.fromkeys(references.values())
    return Table(
        key=f"table-differences-{split}",
        label="Differences",
        title=f"{metric_words(metric)} on {split}, compared with {' and with '.join(compared)}",
        caption=(
            "Difference with its 95 % interval, paired over what both models have in common. None is shown "
            "if the interval includes zero. Each interval is for its own pair: of twenty equal pairs, one "
            "looks different by chance."
        ),
        columns=[
            Column("model", number=False),
            Column(f"difference{unit}", "95 % interval of the paired difference in brackets"),
            Column("over", "what the interval covers", number=False),
            Column("seeds", "seeds that both models have"),
            Column("verdict", number=False),
        ],
        rows=rows,
    )


def _number(estimate: Estimate | None, whole: bool = False) -> str:
    """Format a value with its range: `4.10 (4.00–4.20)`; a whole one without decimals."""
    if estimate is None:
        return DASH

    def form(value: float) -> str:
        return f"{value:.0f}" if value >= 100 or whole else f"{value:#.3g}"

    low, _, high = estimate.ends(form).partition(DASH)
    return form(estimate.value) if low == high else estimate.text(form)


def matrix(results: Results, split: str) -> Table:
    """Return a table of error rates: models in rows, mechanisms in evaluation in columns (paper, table 1)."""
    metric = next(iter(results.metrics(split)), "per")
    title = f"{metric_heading(metric)} on {split}: trained with (rows), evaluated with (columns)"
    attentions = results.attentions()
    rows = []
    for candidate in results.candidates:
        rates = [results.error_rate(candidate.label, split, metric, attention) for attention in attentions]
        texts = [measured(rate, metric).partition(" ")[0] for rate in rates]
        cells = [
            TableCell(text, own=attention == candidate.attention)
            for text, attention in zip(texts, attentions, strict=True)
        ]
        rows.append([TableCell(candidate.label), *cells])
    return Table(title, [Column("", number=False), *map(Column, attentions)], rows)
