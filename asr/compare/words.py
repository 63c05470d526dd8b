"""Figures in words: rates with intervals, times, sizes, as tables, charts and findings write them."""

import math
from typing import Any

from asr.attention import parse_name
from asr.compare.estimates import Estimate
from asr.errors import UserError

DASH = "–"


def percent(estimate: Estimate | None, digits: int = 2) -> str:
    """Return a rate in percent with its interval: `8.10 (7.52 … 8.71)`."""
    if estimate is None:
        return DASH
    shown = f"{100 * estimate.mean:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return shown
    return f"{shown} ({100 * max(estimate.low, 0.0):.{digits}f} … {100 * estimate.high:.{digits}f})"


def seconds(value: float | None) -> str:
    """Return a time as a person reads it: `85.4 ms`, `3.42 s`, `12 min 05 s`, `2 h 04 min`.

    Example:
        >>> [seconds(x) for x in (0.0854, 3.421, 42.0, 725.3, 7440.0)]
        ['85.4 ms', '3.42 s', '42.0 s', '12 min 05 s', '2 h 04 min']
    """
    if value is None or not math.isfinite(value):
        return DASH
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 100:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def mebibytes(value: float | None) -> str:
    """Return a size given in MiB."""
    if value is None:
        return DASH
    return f"{value / 1024:.2f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def count(value: float | None) -> str:
    """Return a number in short: `850`, `12.3 k`, `4.21 M`.

    Example:
        >>> count(850), count(12_345), count(4_210_000)
        ('850', '12.3 k', '4.21 M')
    """
    if value is None:
        return DASH
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:.0f}"


def clock_words(clock: str) -> str:
    """Return what a clock measures."""
    return "CPU time" if clock == "cpu" else "wall-clock time"


def metric_words(metric: str) -> str:
    """Return the name of an error rate.

    Example:
        >>> metric_words("per"), metric_words("dev_error"), metric_words("official-swbd")
        ('PER', 'error', 'official WER, swbd')
    """
    stem, _, subset = metric.removeprefix("dev_").partition("-")
    name = {"official": "official WER", "error": "error"}.get(stem, stem.upper())
    return f"{name}, {subset}" if subset else name


def mechanism_words(attention: str) -> str:
    """Return a mechanism's options in words.

    Example:
        >>> mechanism_words("i-clustered-25"), mechanism_words("full")
        ('clusters 25, topk 32, bits 63, iterations 10', '–')
    """
    try:
        arguments = parse_name(attention).arguments
    except UserError:  # of a later version, or a name of another program's
        return DASH
    return ", ".join(f"{name} {value}" for name, value in arguments.items()) or DASH


def hardware_words(environment: dict[str, Any]) -> str:
    """Return processor, cores, threads and GPUs in words."""
    parts = [str(environment.get("processor") or environment.get("machine") or "unknown")]
    cores, threads = environment.get("cores"), environment.get("threads")
    if cores:
        parts.append(f"{cores} cores" if cores != 1 else "1 core")
    if threads:
        parts.append(f"{threads} threads" if threads != 1 else "1 thread")
    gpus = environment.get("gpus") or []
    parts += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(parts)
