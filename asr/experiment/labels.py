"""Items with labels as the workload of a comparison, for recipes without recordings."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from asr.data.stream import Batches, NumberedBatches, StreamBatch
from asr.environment import pick_device
from asr.errors import UserError
from asr.experiment.cell import Cell, code_entry
from asr.experiment.options import CompareConfig
from asr.experiment.records import Evaluation, SplitData
from asr.experiment.timing import Runner
from asr.experiment.variant import attention_only
from asr.training.labelling import LabelScore, data_key, evaluate, load_task
from asr.training.options import TrainConfig
from asr.training.run import build_task

HELD_OUT = ("dev", "test")


class Labels:
    """The workload of recipes without recordings; see `Speech`.

    Args:
        options: options of the comparison.
        trainings: training options by label of the candidate.

    Raises:
        UserError: a split is neither dev nor test, or has no files; or a precision is given for evaluation.
    """

    def __init__(self, options: CompareConfig, trainings: Mapping[str, TrainConfig]) -> None:
        if options.precision != "fp32":
            raise UserError(f"precision={options.precision}: has an effect on recordings only")
        self.device = options.device
        self.data: dict[str, SplitData] = {}
        self.splits = list(dict.fromkeys(options.splits))
        self.items = read_items(self.splits, trainings)

    def digests(self, label: str, training: TrainConfig) -> dict[str, str]:
        """See `Speech`."""
        return self.items[label].digests() | {"lexicon": ""}

    def evaluation(self, label: str, training: Cell, split: str, variant: str) -> Cell:
        """See `Speech`."""
        attention = attention_only(variant)
        settings = {"split": split, "attention": attention, "training": training.key}
        settings |= {"data": self.items[label].digest(split), "device": self.device} | code_entry(attention)
        settings |= {"threads": training.settings["options"]["trainer.threads"]}
        name = training.name.replace("trainings/", "evaluations/")
        return Cell(f"{name}/{split}/{attention}", "evaluation", settings, training.name)

    def timing(self, split: str, evaluations: list[Cell]) -> dict[str, Any]:
        """See `Speech`."""
        return {"split": split, "data": [cell.settings["data"] for cell in evaluations]}

    def command(self, split: str) -> tuple[str, list[str]]:
        """See `Speech`."""
        return "evaluate", []

    def complete(self, evaluation: Evaluation, folder: Path, cell: Cell) -> None:
        """See `Speech`."""
        state = cell.state(folder)
        score = state.result(LabelScore)
        rate = {"rate": score.value, "interval": score.interval, "length": score.labels}
        evaluation.rates = {score.measure: rate}
        evaluation.utterances, evaluation.backend = score.items, score.backend
        evaluation.decode_s = state.seconds

    @staticmethod
    def evaluate(run: Path, folder: Path, cell: Cell, advance: Callable[[float], None]) -> dict[str, Any]:
        """Predict the labels; the result is a `LabelScore`."""
        split, attention = cell.settings["split"], cell.settings["attention"]
        task, data = load_task(str(run), attention, pick_device(cell.settings["device"]))
        return asdict(evaluate(task, data, split, advance=advance))

    @staticmethod
    def passes(models: list[tuple[Path, str]], settings: dict[str, Any], device: str) -> "LabelPasses":
        """See `Speech`."""
        return LabelPasses(models, settings["split"], device)


class LabelPasses:
    """Model and loss on every item of a split, for recipes without recordings.

    Args:
        models: run folder and variant of each model.
        split: `dev` or `test`.
        device: `cpu` or `cuda`.
    """

    def __init__(self, models: list[tuple[Path, str]], split: str, device: str) -> None:
        self.device = torch.device(device)
        self.runners: list[Runner] = []
        self.held_out: dict[str, Batches] = {}
        for run, variant in models:
            task, data = load_task(str(run), attention_only(variant), device)
            input_key = data_key(task.plan.options)
            self.held_out.setdefault(input_key, data.held_out(split, 0))
            self.runners.append(Runner(task.scores, input_key))
        self.batches = max(map(len, self.held_out.values()))

    def inputs(self, number: int) -> dict[str, tuple[StreamBatch]]:
        """Return a batch of each candidate's data."""
        return {
            input_key: (batches[number].to(self.device),)
            for input_key, batches in self.held_out.items()
            if number < len(batches)
        }


def read_items(splits: list[str], trainings: Mapping[str, TrainConfig]) -> dict[str, NumberedBatches]:
    """Return the data of a recipe without recordings by candidate.

    Raises:
        UserError: a split other than dev and test, or one without files.
    """
    known: dict[str, NumberedBatches] = {}  # key: options that the data depend on
    items = {}
    for label, training in trainings.items():
        key = data_key(training)
        if key not in known:
            known[key] = cast(NumberedBatches, build_task(training, resuming=True)[1])
            for split in splits:
                if split not in HELD_OUT:
                    raise UserError(f"splits=[{split}]: expected {' | '.join(HELD_OUT)}")
                known[key].held_out(split, 1)
        items[label] = known[key]
    return items
