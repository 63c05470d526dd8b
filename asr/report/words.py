"""Formatting of results for tables, charts and findings."""

from typing import Any

from asr.attention.spec import effective
from asr.attention.table import look_ahead, parse_name
from asr.config.schema import default_of
from asr.console import counted, duration
from asr.errors import UserError
from asr.experiment.records import Candidate, Conditions
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.scoring.measures import is_share, measure_of
from asr.scoring.statistics import BETWEEN, DASH, Estimate, percent
from asr.training.options import task_options

MODEL_PASSES = {"forward": "encoding", "forward+backward": "training step"}
LOOK_AHEAD = "of attention, summed over layers; convolutions and normalisation may add to it"


def measured(estimate: Estimate | None, metric: str) -> str:
    """Return a measure with its interval: `8.10 (7.52 … 8.71)` for rates, in percent; otherwise `2.183`."""
    form = percent if is_share(metric) else "{:.3f}".format
    # An interval over seeds may begin below zero, but no measure is negative.
    return DASH if estimate is None else estimate.text(lambda value: form(max(value, 0.0)))


def look_ahead_text(attention: str, layers: int, position_ms: float, frames: str = "1") -> str:
    """Return the look-ahead of attention over all layers: in ms, `utterance`, or a dash if unknown.

    Args:
        attention: mechanism, or one for each layer.
        layers: number of layers.
        position_ms: time between positions; 0: unknown.
        frames: schedule of frame rates.

    Example:
        >>> look_ahead_text("local-64:right=4", 12, 40.0), look_ahead_text("full", 12, 40.0)
        ('1,920', 'utterance')
    """
    try:
        positions = look_ahead(attention, layers, frames)
    except UserError:  # a mechanism from a module that isn't loaded
        return DASH
    if positions is None:
        return "utterance"
    return f"{positions * position_ms:,.0f}" if position_ms else DASH


def candidate_look_ahead(results: Results, candidate: Candidate, variant: str = "") -> str:
    """Return `look_ahead_text` for a candidate, run as a variant.

    It is a dash if its audio isn't read by this package's encoder.
    """
    how = Variant.read(variant)
    settings = results.protocol.get("training", {}) | candidate.overrides
    shift_ms = settings.get("features.frame_shift_ms")
    # For a pretrained encoder, layers and subsampling differ from the options; other tasks have no frames.
    if not shift_ms or settings.get("model.encoder") or task_options(results.recipe):
        return DASH
    frames = how.frames or str(settings.get("model.frames", "1"))
    position_ms = candidate.subsampling * shift_ms
    return look_ahead_text(how.attention or candidate.attention, candidate.layers, position_ms, frames)


def changed(difference: Estimate, metric: str) -> str:
    """Return a difference with its interval: `+0.35 (−0.10 … 0.80)`; for rates, in percentage points."""
    form = percent if is_share(metric) else "{:.3f}".format
    text = difference.text(form).replace("-", "−")
    return text if text.startswith("−") else f"+{text}"


def duration_range(estimate: Estimate) -> str:
    """Return the range of several times; an empty string if lowest and highest look the same.

    Example:
        >>> from asr.scoring.statistics import spread
        >>> duration_range(spread([4.1, 4.0, 4.2], "repeats"))
        '4.00 … 4.20 s'
    """
    low, _, high = estimate.ends(duration).partition(BETWEEN)
    if low == high:
        return ""
    number, _, unit = low.partition(" ")
    same_unit = high.count(" ") == low.count(" ") == 1 and high.endswith(f" {unit}")
    return f"{number if same_unit else low}{BETWEEN}{high}"


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


def scored(estimate: Estimate | None, metric: str = "") -> str:
    """Return a measure, which may be negative, or a ratio with its interval: `5.06 (2.71 … 8.70)`."""
    form = percent if metric and is_share(metric) else _three_digits
    return DASH if estimate is None else estimate.text(form)


def _three_digits(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # the sum makes -0.0 0.0


def counterpart(place: str) -> str:
    """Return a sentence that names the figure or table of the paper that shows the same thing."""
    return f"Counterpart of {place} of Vyas et al. (2020)."


def clock_words(clock: str) -> str:
    """Return in words what a clock, `cpu` or `wall`, measures."""
    return "CPU time" if clock == "cpu" else "wall-clock time"


def pass_words(results: Results, passes: str) -> str:
    """Return the name of a pass on random input: `forward and backward`, or a model's `training step`."""
    model = results.protocol["bench"]["unit"] == "model"
    return (MODEL_PASSES if model else {}).get(passes, passes.replace("+", " and "))


def metric_words(metric: str) -> str:
    """Return the display name of a measure, see `asr.scoring.measures`."""
    return measure_of(metric).words


def metric_heading(metric: str) -> str:
    """Return the display name of a measure with its unit: `PER %`, `bits per character`."""
    return metric_words(metric) + (" %" if is_share(metric) else "")


def split_heading(results: Results, metric: str, split: str) -> str:
    """Return the heading of a measure's column: `WER %, test (closed vocabulary)`."""
    closed = " (closed vocabulary)" if results.closed(split, metric) else ""
    return f"{metric_heading(metric)}, {split}{closed}"


def metric_title(metric: str) -> str:
    """Return the title of an axis for a measure: `PER (%)`, `bits per character`."""
    unit = measure_of(metric).unit
    return metric_words(metric) + (f" ({unit})" if unit else "")


def mechanism_words(attention: str) -> str:
    """Return a mechanism's numbers, and its other options where they differ from the defaults, as text.

    Example:
        >>> mechanism_words("i-clustered-25"), mechanism_words("full")
        ('clusters 25, topk 32, bits 63, iterations 10', '–')
        >>> mechanism_words("clustered-25:bits=31,bias=true")
        'clusters 25, bits 31, iterations 10, bias True'
    """
    try:
        spec = parse_name(attention)
    except UserError:  # a mechanism that this version doesn't know
        return DASH
    shown = [
        f"{x.key} {x.value}"
        for x in effective(spec.options)
        if not isinstance(x.value, bool | str) or x.value != default_of(x.field)
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
