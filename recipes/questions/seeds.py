"""Compare mechanisms by F1 on the same questions, over fine-tunings that differ in their seed.

    python -m asr_recipes.questions.seeds folders=[exp/questions/facts-0,exp/questions/facts-1]

Prints F1 and its ratio to full attention, with intervals over seeds, and the difference of F1 for each pair
of mechanisms, with intervals over seeds and questions. save=<file> keeps the scores behind these tables, and
stored=<file> prints the tables again.
"""

import itertools
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from asr_recipes.questions.squad import best, find_squad, read_squad, token_f1

from asr import config
from asr.config import option
from asr.console import Table, counted
from asr.errors import UserError, run_program
from asr.experiment.exchange import file_of
from asr.experiment.results import read_results
from asr.files import read_as, read_json, write_json
from asr.scoring.statistics import over_seeds, paired_difference

FULL = "full"


@dataclass
class Seeds:
    """Options of `seeds`."""

    folders: list[str] = option([], help="folders of fine-tunings, one for each seed", affects="result")
    save: str = option("", help="JSON file for the scores that the tables are made from", affects="place")
    stored: str = option("", help="file of `save`, in place of folders", affects="result")

    def check(self) -> None:
        """Raise UserError unless there are several folders, or a file instead."""
        if bool(self.folders) == bool(self.stored) or len(self.folders) == 1:
            raise UserError(
                f"folders={self.folders} stored={self.stored}: expected two folders or more, or a file"
            )


@dataclass
class QuestionScores:
    """The scores behind the tables.

    Attributes:
        questions: number of questions on each paragraph. They are one item, because their answers depend on
            the same text.
        f1: sum of F1 over the questions on each paragraph, for each mechanism and seed.
        time_ratios: CPU time relative to full attention, for each mechanism and seed.
    """

    questions: list[int]
    f1: dict[str, list[list[float]]]
    time_ratios: dict[str, list[float]]


def measure_seeds(options: Seeds) -> None:
    """Print F1 of each mechanism, and the paired difference of each pair of mechanisms."""
    if options.stored:
        scores = read_as(QuestionScores, Path(options.stored), "scores of questions")
    else:
        scores = read_scores([Path(folder) for folder in options.folders])
    if options.save:
        write_json(asdict(scores), options.save)
    for table in tables(scores):
        print(f"{table.title}\n\n{table.markdown()}\n")


def read_scores(folders: list[Path]) -> QuestionScores:
    """Return the scores of fine-tunings that answered the same questions with the same mechanisms.

    Raises:
        UserError: a folder has other questions or mechanisms than the first one.
    """
    results = [read_results(folder / "result") for folder in folders]
    rows = [{x.variant: x for x in result.evaluations} for result in results]
    questions = [read_squad(find_squad(folder / "data")) for folder in folders]
    for folder, other, asked in zip(folders, rows, questions, strict=True):
        if list(other) != list(rows[0]):
            raise UserError(
                f"{folder}: expected the same mechanisms as in {folders[0]}, {', '.join(rows[0])}, "
                f"found {', '.join(other)}"
            )
        if asked != questions[0]:
            raise UserError(f"{folder / 'data'}: expected the same questions as in {folders[0] / 'data'}")
    paragraphs = np.array([question.paragraph for question in questions[0]])

    def f1(folder: Path, attention: str) -> list[float]:
        texts = read_json(file_of(folder / "result/squad", "predictions", attention))["predictions"]
        scores = [best(token_f1, texts[question.id], question.answers) for question in questions[0]]
        return np.bincount(paragraphs, weights=scores).tolist()

    return QuestionScores(
        np.bincount(paragraphs).tolist(),
        {name: [f1(folder, name) for folder in folders] for name in rows[0]},
        {name: [row[name].ratios["time"]["rate"] for row in rows] for name in rows[0]},
    )


def tables(scores: QuestionScores) -> list[Table]:
    """Return the table of mechanisms and the table of their pairs."""
    questions = np.array(scores.questions, dtype=np.float64)
    sums = {name: np.array(values) for name, values in scores.f1.items()}
    f1 = {name: values.sum(axis=1) / questions.sum() for name, values in sums.items()}
    rows = []
    for name, values in f1.items():
        kept = over_seeds(list(values / f1[FULL])).text("{:.3f}".format)
        seeds = ", ".join(f"{value:.3f}" for value in values)
        times = ", ".join(f"{ratio:.2f}" for ratio in scores.time_ratios[name])
        rows.append([name, seeds, f"{values.mean():.3f}", "1" if name == FULL else kept, times])
    pairs = []
    for one, other in itertools.combinations(sums, 2):
        gap = paired_difference(sums[one] - sums[other], questions, "questions")
        shown = "" if gap.interval is None or gap.interval[0] <= 0 <= gap.interval[1] else "yes"
        pairs.append([one, other, gap.text("{:+.3f}".format), shown])
    heads = ["attention", "F1 by seed", "mean", "F1 / full, mean", "CPU time / full"]
    return [
        Table.of(f"F1 on {int(questions.sum())} questions, {counted(len(f1[FULL]), 'seed')}", heads, rows),
        Table.of("Differences of F1 by pair", ["attention", "less", "difference of F1", "shown"], pairs),
    ]


if __name__ == "__main__":
    sys.exit(run_program("seeds", lambda: measure_seeds(config.parse(Seeds, sys.argv[1:]))))
