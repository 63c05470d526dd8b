"""What pays where: the time that each axis saves, by length of audio, processor and model.

Benchmarks of models on random input and exchanges in trained models answer with the same rows: in a
benchmark, time alone is known; in an exchange, only variants that keep the output close count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from asr.experiment.engines import ENGINE
from asr.experiment.records import Evaluation
from asr.experiment.results import Results, System
from asr.experiment.variant import Variant
from asr.measure import LEAST_ROUNDS, quartiles
from asr.model.options import FeatureConfig
from asr.scoring.statistics import Estimate

MATTERS = 0.95  # a variant must take at most this share of the baseline's time, beyond the noise
CLOSE = 0.01  # highest KL divergence, per token, that counts as unchanged output
AXES = ("attention", "frames", "precision", "layers")
TOGETHER = "together"  # a variant that changes several axes


@dataclass(frozen=True)
class Rival:
    """A variant beside the baseline.

    Attributes:
        variant: its text.
        seconds: median time of a pass; None where only the ratio is known.
        ratio: its time divided by the baseline's, with quartiles; None where the baseline wasn't measured.
        kl: KL divergence of its output; None where it wasn't measured.
        close: whether its output counts as unchanged; of random weights, nothing is known.
    """

    variant: str
    seconds: float | None
    ratio: Estimate | None
    kl: float | None = None
    close: bool = True

    @property
    def shown(self) -> bool:
        """Whether it is shown to save at least 5 % of the time with unchanged output."""
        return (
            self.close
            and self.ratio is not None
            and self.ratio.high is not None
            and self.ratio.high <= MATTERS
        )


@dataclass(frozen=True)
class Spot:
    """One place on the map: a length of audio, a pass, a processor and a model.

    Attributes:
        audio_s: duration of each input.
        passes: forward | forward+backward.
        processor: name and instructions for bfloat16, or name of the GPU.
        threads: threads on the CPU.
        model: preset, or trained model.
        trained: whether the weights are trained; otherwise only time is known.
        baseline: what the others are compared with.
        baseline_s: its time; None if it was left out.
        left_out: reasons of what wasn't measured, by variant.
        rivals: the fastest variant that is close, by axis, or else the closest one.
    """

    audio_s: float
    passes: str
    processor: str
    threads: int
    model: str
    trained: bool
    baseline: str
    baseline_s: float | None
    left_out: dict[str, str] = field(default_factory=dict)
    rivals: dict[str, Rival] = field(default_factory=dict)


def axis_of(variant: str, baseline: str) -> str:
    """Return the axis on which a variant differs from its baseline, or `TOGETHER`.

    Example:
        >>> axis_of("near-25", "full"), axis_of("full frames=2", "full"), axis_of("near-25 frames=2", "full")
        ('attention', 'frames', 'together')
    """
    one, other = asdict(Variant.read(variant)), asdict(Variant.read(baseline))
    changed = [name for name in AXES if one[name] != other[name]]
    return changed[0] if len(changed) == 1 else TOGETHER


def spots(results: Results) -> list[Spot]:
    """Return what a benchmark of a model, or an exchange of a trained model's attention, says about time."""
    if "bench" in results.protocol:
        model = results.protocol["bench"]["unit"] == "model"
        return list(_of_bench(results)) if model else []
    return list(_of_exchange(results)) if "exchange" in results.protocol else []


def machine(environment: dict[str, Any]) -> str:
    """Return the processor with its instructions for bfloat16, or the GPU."""
    if environment.get("device", "cpu") != "cpu":
        return str(environment["gpus"][0])
    bf16 = str(environment.get("bf16", "")).removeprefix("the processor has ")
    return f"{environment.get('processor', '')} ({bf16})"


def _of_bench(results: Results) -> Iterator[Spot]:
    options = results.protocol["bench"]
    frame_s = options.get("frame_shift_ms", FeatureConfig().frame_shift_ms) / 1000
    environment = results.environment | {"device": options["device"]}
    for split in dict.fromkeys(x.split for x in results.evaluations):
        rows = {x.variant: x for x in results.evaluations if x.split == split}
        timed = {name: x for name, x in rows.items() if x.status == "done"}
        base, first = timed.get(results.protocol["baseline"]), next(iter(rows.values()))
        rivals = [
            Rival(name, _each_s(row, results.clock), _ratio(row, base, results.clock) if base else None)
            for name, row in timed.items()
        ]
        yield Spot(
            first.length * frame_s,
            first.passes,
            machine(environment),
            options["threads"],
            options["model"],
            False,
            results.protocol["baseline"],
            _each_s(base, results.clock) if base else None,
            {name: x.error or "" for name, x in rows.items() if x.status != "done"},
            _fastest(rivals, results.protocol["baseline"]),
        )


def _ratio(row: Evaluation, base: Evaluation, clock: str) -> Estimate:
    """Return the ratio of median times per position; quartiles of both bound it, given enough rounds."""
    (low, value, high), (base_low, base_value, base_high) = (
        [x / each.positions for x in quartiles(each.repeats_s(clock))] for each in (row, base)
    )
    count = min(len(x.repeats_s(clock)) for x in (row, base))
    if count < LEAST_ROUNDS:
        return Estimate(value / base_value, None, None, count, "repeats")
    return Estimate(value / base_value, low / base_high, high / base_low, count, "repeats")


def _of_exchange(results: Results) -> Iterator[Spot]:
    audio_s, baseline = results.protocol["exchange"].get("join_s"), results.protocol["baseline"]
    if not audio_s:
        return
    for candidate in results.candidates:
        for split in results.splits():
            rivals = []
            for row in results.evaluations:
                if (row.candidate, row.split, row.status) != (candidate.label, split, "done"):
                    continue
                if row.variant.startswith(ENGINE):
                    continue
                system = (candidate.label, row.variant)
                kl = row.rates.get("kl", {}).get("rate")
                ratio = results.ratio(system, split, "time")
                close = _close(results, system, split)
                rivals.append(Rival(row.variant, _each_s(row, results.clock), ratio, kl, close))
            base = results.evaluations_of(candidate.label, split, baseline)
            yield Spot(
                audio_s,
                "forward",
                machine(results.environment),
                results.environment.get("threads", 1),
                candidate.label,
                True,
                baseline,
                _each_s(base[0], results.clock) if base else None,
                rivals=_fastest(rivals, baseline),
            )


def _each_s(row: Evaluation, clock: str) -> float | None:
    """Return the time per input."""
    seconds = row.seconds(clock)
    return None if seconds is None else seconds / (row.utterances or 1)


def _close(results: Results, system: System, split: str) -> bool:
    """Return whether a variant's output is close, or, without divergence, not shown to have more errors."""
    kl = results.error_rate(system[0], split, "kl", system[1])
    if kl:
        return kl.value <= CLOSE
    ratio = results.ratio(system, split, next(iter(results.metrics(split)), ""))
    return ratio is not None and ratio.low is not None and ratio.low <= 1


def _fastest(rivals: Sequence[Rival], baseline: str) -> dict[str, Rival]:
    """Return by axis the fastest rival that is close, or else the closest."""

    def order(rival: Rival) -> tuple[bool, float]:
        time = rival.ratio.value if rival.ratio else rival.seconds or 0.0
        return not rival.close, time if rival.close else rival.kl or 0.0

    fastest: dict[str, Rival] = {}
    for rival in sorted(rivals, key=order):
        if rival.variant != baseline:
            fastest.setdefault(axis_of(rival.variant, baseline), rival)
    return {axis: fastest[axis] for axis in (*AXES, TOGETHER) if axis in fastest}
