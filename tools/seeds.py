"""Compare mechanisms by F1 on the same questions, over fine-tunings that differ in their seed."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.approximation.run import WRITTEN
from asr.approximation.squad import best, find_squad, read_squad, token_f1
from asr.config import option
from asr.console import Table
from asr.errors import UserError
from asr.files import digest, read_json
from asr.scoring.estimates import Values, over_seeds, paired_difference

FULL = "full"
BETWEEN = " … "


@dataclass
class Seeds:
    """Options of `seeds`."""

    folders: list[str] = option([], help="folders of `pretrained`, one for each seed", affects="result")

    def check(self) -> None:
        """Raise UserError unless there are several folders."""
        if len(self.folders) < 2:
            raise UserError(f"folders={self.folders}: expected two or more")


def paragraph_scores(folder: Path, attentions: list[str]) -> tuple[dict[str, Values], Values, str]:
    """Return sums of F1 and numbers of questions by paragraph, the sums for each mechanism; and a digest.

    The questions of a paragraph are one item, because their answers depend on the same text. The digest is
    that of the questions.
    """
    questions = read_squad(find_squad(folder / "data"))
    paragraphs = np.array([question.paragraph for question in questions])
    sums = {}
    for name in attentions:
        path = folder / "result/squad" / f"predictions-{name.translate(WRITTEN)}.json"
        texts = read_json(path)["predictions"]
        f1 = [best(token_f1, texts[question.id], question.answers) for question in questions]
        sums[name] = np.bincount(paragraphs, weights=f1)
    return sums, np.bincount(paragraphs).astype(np.float64), digest(str(questions))


def measure_seeds(options: Seeds) -> None:
    """Print F1 of each mechanism, and the paired difference of each pair of mechanisms."""
    folders = [Path(folder) for folder in options.folders]
    results = [read_json(folder / "result/results.json") for folder in folders]
    rows = [{row["attention"]: row for row in result["tasks"][0]["rows"]} for result in results]
    attentions = list(rows[0])
    for folder, other in zip(folders, rows, strict=True):
        if list(other) != attentions:
            raise UserError(
                f"{folder}: expected the same mechanisms as in {folders[0]}, {', '.join(attentions)}, "
                f"found {', '.join(other)}"
            )
    scores, counts, digests = zip(*(paragraph_scores(folder, attentions) for folder in folders), strict=True)
    for folder, other in zip(folders, digests, strict=True):
        if other != digests[0]:
            raise UserError(f"{folder / 'data'}: expected the same questions as in {folders[0] / 'data'}")
    sums = {name: np.stack([own[name] for own in scores]) for name in attentions}
    f1 = {name: own.sum(axis=1) / counts[0].sum() for name, own in sums.items()}
    table = []
    for name in attentions:
        seeds = ", ".join(f"{value:.3f}" for value in f1[name])
        times = ", ".join(f"{row[name]['time_ratio']:.2f}" for row in rows)
        kept = over_seeds(list(f1[name] / f1[FULL])).text("{:.3f}".format, BETWEEN)
        table.append([name, seeds, f"{f1[name].mean():.3f}", kept if name != FULL else "1", times])
    heads = ["attention", "F1 by seed", "mean", "F1 / full, mean", "CPU time / full"]
    print(Table.of("", heads, table).markdown())
    print()
    pairs = []
    for one, other in itertools.combinations(attentions, 2):
        found = paired_difference(sums[one] - sums[other], counts[0], "questions")
        shown = "" if found.interval is None or found.interval[0] <= 0 <= found.interval[1] else "yes"
        pairs.append([one, other, found.text("{:+.3f}".format, BETWEEN), shown])
    print(Table.of("", ["attention", "less", "difference of F1", "shown"], pairs).markdown())
