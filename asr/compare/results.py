"""What a comparison found: one record for tables, figures and the report.

Paths of runs and of evaluations are relative to the folder that results.json lies in; manifests are as they
were named on the command line.
"""

from dataclasses import dataclass
from typing import Any

from asr.compare.estimates import Estimate, over_seeds, pareto_front
from asr.compare.records import Candidate, Evaluation, Failure, Split, Training

FORMAT = 1
METRICS = ("per", "wer", "cer")  # in this order, unless the protocol says which one heads tables and figures
OFFICIAL = "official"  # of a test set with a reference in NIST's formats; subsets: `official-swbd`


@dataclass
class Results:
    """All of a comparison.

    Attributes:
        command: the words of the command line.
        recipe: its name.
        created: ISO 8601 in UTC.
        protocol: what all candidates share: `training` (options of `asr train`), `budget`, `seeds`,
            `evaluate`, `splits`, `metric`, `decoder`, `beam`, `files` (hashes), `clock`, `threads`.
        environment: commit, hardware, versions.
        data: by split; `train` and `dev` among them.
        candidates, trainings, evaluations, failures: in the order of the command line.
    """

    command: list[str]
    recipe: str
    created: str
    protocol: dict[str, Any]
    environment: dict[str, Any]
    data: dict[str, Split]
    candidates: list[Candidate]
    trainings: list[Training]
    evaluations: list[Evaluation]
    failures: list[Failure]
    format: int = FORMAT

    @property
    def clock(self) -> str:
        """Return the clock that costs are told by: `wall` or `cpu`."""
        return str(self.protocol.get("clock", "wall"))

    def candidate(self, label: str) -> Candidate:
        """Return the candidate of a label."""
        return next(candidate for candidate in self.candidates if candidate.label == label)

    def trainings_of(self, label: str) -> list[Training]:
        """Return the finished trainings of a candidate, one a seed."""
        return [x for x in self.trainings if x.candidate == label and x.status == "done"]

    def evaluations_of(self, label: str, split: str, attention: str | None = None) -> list[Evaluation]:
        """Return a candidate's finished evaluations on a split, one a seed.

        Args:
            label: of the candidate.
            split: name of the split.
            attention: mechanism of evaluation; None: the one of training.
        """
        wanted = attention or self.candidate(label).attention
        return [
            x
            for x in self.evaluations
            if (x.candidate, x.split, x.attention, x.status) == (label, split, wanted, "done")
        ]

    def is_own(self, evaluation: Evaluation) -> bool:
        """Return whether a model was evaluated with the mechanism it was trained with."""
        return evaluation.attention == self.candidate(evaluation.candidate).attention

    def attentions(self) -> list[str]:
        """Return the mechanisms of evaluation, in order of their first appearance."""
        return list(dict.fromkeys(x.attention for x in self.evaluations))

    def splits(self) -> list[str]:
        """Return the splits that were evaluated on."""
        return list(dict.fromkeys(x.split for x in self.evaluations))

    def metrics(self, split: str | None = None) -> list[str]:
        """Return the error rates that there are, of a split or of all splits.

        The first one heads tables and figures: the one that was asked for, or that of words where only
        words are searched for.
        """
        evaluations = [x for x in self.evaluations if split in (None, x.split)]
        found = dict.fromkeys(name for x in evaluations for name in x.rates)
        asked = self.protocol.get("metric")
        first = [asked] if asked else [OFFICIAL, "wer"] if self.protocol.get("decoder") == "beam" else []
        order = [*first, *METRICS, *found]
        return sorted(found, key=order.index)

    def error_rate(
        self, label: str, split: str, metric: str, attention: str | None = None
    ) -> Estimate | None:
        """Return a candidate's error rate over its seeds, as a fraction; None where nothing is finished.

        The interval is that of the mean over seeds where there are several, otherwise the bootstrap's over
        utterances.
        """
        found = [x.rates[metric] for x in self.evaluations_of(label, split, attention) if metric in x.rates]
        if not found:
            return None
        if len(found) == 1:
            low, high = found[0]["interval"]
            return Estimate(found[0]["rate"], low, high, 1, "utterances")
        return over_seeds([rate["rate"] for rate in found])

    def forward_s(self, label: str, split: str, attention: str | None = None) -> float | None:
        """Return the time of a full forward pass over a split in seconds, by the comparison's clock."""
        name = "forward_cpu_s" if self.clock == "cpu" else "forward_s"
        values = [getattr(x, name) for x in self.evaluations_of(label, split, attention)]
        return next((value for value in values if value is not None), None)

    def front(self, split: str) -> list[str]:
        """Return the candidates that no other one beats in both time and error rate, the fastest first."""
        points = {}
        for candidate in self.candidates:
            seconds = self.forward_s(candidate.label, split)
            rate = self.error_rate(candidate.label, split, next(iter(self.metrics(split)), ""))
            if seconds is not None and rate is not None:
                points[candidate.label] = (seconds, rate.mean)
        labels = list(points)
        return [labels[i] for i in pareto_front(list(points.values()))]
