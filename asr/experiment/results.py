"""Results of a comparison: a record for tables, figures and the report, stored as results.json.

Paths of runs and evaluations are relative to the folder of results.json; manifests are stored as given on the
command line.
"""

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.experiment.options import METRICS
from asr.experiment.records import (
    Candidate,
    Conditions,
    Difference,
    Evaluation,
    Failure,
    SplitData,
    Training,
    TriedRate,
)
from asr.experiment.variant import Variant
from asr.files import build, read_record, write_record
from asr.scoring.measures import is_share, measure_of
from asr.scoring.statistics import Estimate, over_seeds, pareto_front, spread
from asr.text.files import write_table

FORMAT = 2
System = tuple[str, str]  # label of the candidate, and the text of a `Variant`
COUNTS = ("substitutions", "deletions", "insertions", "length")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass
class Results:
    """Everything that an experiment measured.

    Attributes:
        command: arguments of the command line.
        recipe: name of the recipe.
        created: ISO 8601 in UTC; now, unless given.
        protocol: settings that all candidates share: `training` (options of `asr train`), `budget`, `seeds`,
            `evaluate`, `splits`, `metric`, `decoder`, `beam`, `files` (hashes), `clock`, `threads`,
            `timing_repeats`, `timing_threads`.
        environment: commit, hardware, versions.
        data: splits by name, including `train` and `dev`.
        candidates, trainings, evaluations, failures: in the order of the command line.
        conditions: load on the machine during timing, by split.
        differences: paired differences of error rates.
        tried: learning rates that were tried to choose each candidate's, if any.
        drawn: data for the page of a run: `heard`.
    """

    command: list[str]
    recipe: str = ""
    created: str = field(default_factory=_now)
    protocol: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, SplitData] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    conditions: dict[str, Conditions] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    tried: list[TriedRate] = field(default_factory=list)
    drawn: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def clock(self) -> str:
        """Return the clock for all costs: `wall` or `cpu`."""
        return str(self.protocol.get("clock", "wall"))

    @property
    def unit(self) -> str:
        """Return what intervals are over: `utterances`, an exchange's `inputs`, or `items`."""
        if "exchange" in self.protocol:
            return "inputs"
        return "utterances" if self.data else "items"

    def candidate(self, label: str) -> Candidate:
        """Return the candidate with this label."""
        chosen = next((candidate for candidate in self.candidates if candidate.label == label), None)
        if chosen is None:
            raise UserError(f"results.json: no candidate {label!r}, which an evaluation or a training names")
        return chosen

    def own(self, label: str) -> str:
        """Return the mechanism that a candidate was trained with."""
        return self.candidate(label).attention

    def trainings_of(self, label: str) -> list[Training]:
        """Return the finished trainings of a candidate, one per seed."""
        return [x for x in self.trainings if x.candidate == label and x.status == "done"]

    def evaluations_of(self, label: str, split: str, variant: str | None = None) -> list[Evaluation]:
        """Return a candidate's finished evaluations on a split, one per seed.

        Args:
            label: label of the candidate.
            split: name of the split.
            variant: variant in which the model runs; None: as it was trained.
        """
        wanted = variant or self.own(label)
        return [
            x
            for x in self.evaluations
            if (x.candidate, x.split, x.variant, x.status) == (label, split, wanted, "done")
        ]

    def is_own(self, evaluation: Evaluation) -> bool:
        """Return whether the model ran as it was trained."""
        return evaluation.variant == self.own(evaluation.candidate)

    def exchanges(self, split: str) -> bool:
        """Return whether models run on a split in other ways than they were trained."""
        return any(x.split == split and not self.is_own(x) for x in self.evaluations)

    def variants(self) -> list[str]:
        """Return the variants in order of appearance."""
        return list(dict.fromkeys(x.variant for x in self.evaluations))

    def systems(self, split: str) -> dict[str, System]:
        """Return the systems of a split that compete in time and errors, by name.

        They are the models as they were trained, and variants that keep the attention, such as another
        precision; another attention is only compared with the model as trained. All variants of a model that
        wasn't trained here compete.
        """
        names = dict.fromkeys(
            (x.candidate, x.variant) for x in self.evaluations if x.split == split and x.status == "done"
        )
        labels = [x.label for x in self.candidates]
        order = sorted(names, key=lambda x: (labels.index(x[0]), x[1] != self.own(x[0])))
        return {self.name_of(system): system for system in order if self._competes(system)}

    def name_of(self, system: System) -> str:
        """Return a system's name, such as `near-25, precision=bf16`; for an existing model, the variant."""
        label, variant = system
        if not self.was_trained(label):
            return variant if len(self.candidates) == 1 else f"{label}, {variant}"
        changed = variant.removeprefix(self.own(label)).strip()
        return f"{label}, {changed}" if changed else label

    def was_trained(self, label: str) -> bool:
        """Return whether a candidate was trained here, rather than existing before."""
        return any(x.candidate == label for x in self.trainings)

    def _competes(self, system: System) -> bool:
        label, variant = system
        return not self.was_trained(label) or Variant.read(variant).attention == self.own(label)

    def splits(self) -> list[str]:
        """Return the evaluated splits."""
        return list(dict.fromkeys(x.split for x in self.evaluations))

    def metrics(self, split: str | None = None) -> list[str]:
        """Return the measured error rates of a split, or of all splits.

        The first one is the main metric of tables and figures: the one the protocol names, or else the one
        that training showed; for a trained model, its workload has put that first.
        """
        evaluations = [x for x in self.evaluations if split in (None, x.split)]
        names = dict.fromkeys(name for x in evaluations for name in x.rates)
        first = self.protocol.get("metric") or self.dev_measure().removeprefix("dev_")
        order = [first, *(() if "exchange" in self.protocol else METRICS), *names]
        return sorted(names, key=order.index)

    def error_rate(self, label: str, split: str, metric: str, variant: str | None = None) -> Estimate | None:
        """Return a candidate's mean error rate over its seeds, as a fraction; None if nothing has finished.

        With several seeds, the interval is that of the mean over seeds; with one, the bootstrap interval
        over utterances.
        """
        rates = [x.rates[metric] for x in self.evaluations_of(label, split, variant) if metric in x.rates]
        if not rates:
            return None
        if len(rates) == 1:
            return Estimate.bootstrapped(rates[0]["rate"], rates[0]["interval"], self.unit)
        return over_seeds([rate["rate"] for rate in rates])

    def unlearned(self, label: str, split: str, metric: str, variant: str | None = None) -> bool:
        """Return whether a candidate has learned nothing.

        It then makes at least as many errors as there are tokens, or recognises the same in all utterances.
        """
        rate = self.error_rate(label, split, metric, variant)
        constant = all(x.constant for x in self.evaluations_of(label, split, variant))
        errors = is_share(metric) and not measure_of(metric).higher
        return rate is not None and errors and (rate.value >= 1 or constant)

    def closed(self, split: str, metric: str) -> bool:
        """Return whether rates are from a search whose vocabulary contains all words of the references."""
        restricted = metric != "per" or self.protocol.get("decoder") == "beam"
        return restricted and any(x.closed for x in self.evaluations if x.split == split)

    def difference(self, first: System, second: System, split: str, metric: str) -> Estimate | None:
        """Return the first system's error rate minus the second's, paired over seeds and utterances.

        Return None for systems without a common seed, and for exchanges of different candidates.
        """
        for x in self.differences:
            if (x.split, x.metric) == (split, metric) and {x.first, x.second} == {first, second}:
                return x.estimate if x.first == first else -x.estimate
        return None

    def level(self, first: System, second: System, split: str, metric: str) -> bool:
        """Return whether the measurement shows no difference between two systems.

        It shows none if the interval of their paired difference includes zero. If there is no such interval,
        as for official rates of a single seed, which have no errors per utterance, it shows none if the
        systems' intervals overlap.
        """
        difference = self.difference(first, second, split, metric)
        if difference and difference.interval:
            return difference.interval[0] <= 0 <= difference.interval[1]
        one, other = (self.error_rate(label, split, metric, variant) for label, variant in (first, second))
        if not (one and one.interval and other and other.interval):
            return True
        return one.level_with(other)

    def dev_measure(self) -> str:
        """Return the name of the validation measure."""
        return next((x.dev_error_name for x in self.trainings if x.dev_error_name), "dev_error")

    def dev_error(self, label: str) -> Estimate | None:
        """Return a candidate's mean validation measure over its seeds; None if no training has finished."""
        errors = [x.dev_error for x in self.trainings_of(label) if x.dev_error is not None]
        return over_seeds(errors) if errors else None

    def forward_time(self, label: str, split: str, variant: str | None = None) -> Estimate | None:
        """Return the seconds of a forward pass over a split with the range of its repeats.

        The protocol's clock decides between wall-clock and CPU time. Return None if the pass wasn't timed.
        """
        for x in self.evaluations_of(label, split, variant):
            median = x.seconds(self.clock)
            if median is not None:
                return spread(x.repeats_s(self.clock) or [median], "repeats")
        return None

    def ratio(self, system: System, split: str, name: str) -> Estimate | None:
        """Return a measure, or `time`, divided by the baseline's; None if it wasn't compared with one."""
        for x in self.evaluations_of(system[0], split, system[1]):
            if entry := x.ratios.get(name):
                over = "batches" if name == "time" else self.unit
                return Estimate.bootstrapped(entry["rate"], entry["interval"], over)
        return None

    def time(self, system: System, split: str) -> Estimate | None:
        """Return the time by which systems compete: relative to a baseline if there is one, or in seconds."""
        return self.ratio(system, split, "time") or self.forward_time(system[0], split, system[1])

    def front(self, split: str, metric: str = "") -> list[str]:
        """Return the names of the systems on the Pareto front of time and a measure, fastest first."""
        metric = metric or next(iter(self.metrics(split)), "")
        systems, points = self.systems(split), {}
        for name, system in systems.items():
            label, variant = system
            time = self.time(system, split)
            rate = self.error_rate(label, split, metric, variant)
            if time is not None and rate is not None and not self.unlearned(label, split, metric, variant):
                # Rounded, so that the order of sums in two programs decides nothing.
                points[name] = (time, round(-rate.value if measure_of(metric).higher else rate.value, 6))
        return pareto_front(
            points, lambda one, other: self.level(systems[one], systems[other], split, metric)
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per evaluation, with its training if it was here; or a row per training."""
        of_training = [x.name for x in fields(Training) if x.name not in ("candidate", "seed", "curve")]
        trainings = {(x.candidate, x.seed): x for x in self.trainings}
        evaluations: dict[tuple[str, int], list[Evaluation]] = {model: [] for model in trainings}
        for x in self.evaluations:
            evaluations.setdefault((x.candidate, x.seed), []).append(x)
        rows = []
        for (label, seed), evaluated in evaluations.items():
            candidate, training = self.candidate(label), trainings.get((label, seed))
            start: dict[str, Any] = {"recipe": self.recipe, "candidate": label}
            start |= {"trained_with": candidate.attention, "layers": candidate.layers, "seed": seed}
            end = {f"training_{name}": getattr(training, name) for name in of_training} if training else {}
            rows += [start | _evaluation_row(self, x) | end for x in evaluated] or [start | end]
        return rows


def write_results(results: Results, folder: Path) -> None:
    """Write results.json and results.csv, see `Results.rows`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_record(asdict(results), folder / "results.json")
    _write_csv(results, folder / "results.csv")


def read_results(path: Path) -> Results:
    """Read a results.json file, or the one in a folder.

    Raises:
        UserError: the file is missing, is not JSON, is damaged or has another format.
    """
    path = path / "results.json" if path.is_dir() else path
    values = read_record(path, "results of asr compare")
    if values.get("format") != FORMAT:
        raise UserError(f"{path}: expected results of format {FORMAT}, found {values.get('format')!r}")
    results: Results = build(Results, values, str(path))
    try:
        datetime.fromisoformat(results.created)
    except ValueError:
        raise UserError(f"{path}: created: expected an ISO 8601 date, found {results.created!r}") from None
    return results


def _write_csv(results: Results, path: Path) -> None:
    rows = results.rows()
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["candidate"]
    write_table(path, names, ([row.get(name) for name in names] for row in rows))


def _evaluation_row(results: Results, evaluation: Evaluation) -> dict[str, Any]:
    row = {name: getattr(evaluation, name) for name in ("split", "variant", "decoder", "status")}
    for metric in results.metrics():
        rate = evaluation.rates.get(metric, {})
        low, high = rate.get("interval") or (None, None)
        row |= {metric: rate.get("rate"), f"{metric}_low": low, f"{metric}_high": high}
        row |= {f"{metric}_{name}": rate.get(name) for name in COUNTS if results.data or name == "length"}
    for name in ("forward", "forward_cpu"):
        repeats = getattr(evaluation, f"{name}_repeats_s")
        row[f"{name}_s"] = getattr(evaluation, f"{name}_s")
        row |= {f"{name}_low_s": min(repeats, default=None), f"{name}_high_s": max(repeats, default=None)}
    others = ("audio_s", "utterances", "decode_s", "backend", "error")
    return row | {name: getattr(evaluation, name) for name in others}
