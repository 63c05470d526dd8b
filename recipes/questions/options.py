"""Options of questions about texts and of GLUE."""

from dataclasses import dataclass

from asr_recipes.questions.glue import TASKS

from asr.config import option
from asr.errors import UserError
from asr.training.options import RecipeConfig

SQUAD = "squad"
TEXT_TASKS = (*TASKS, SQUAD)
CLASSIFIED = tuple(name for name, task in TASKS.items() if task.classes)
PLACE = "{task}"  # in paths, for the name of each task


@dataclass
class WorkloadOptions(RecipeConfig):
    """Options of questions about texts and of GLUE; `model` and `data` may have {task} in their paths."""

    task: list[str] = option([], help=" | ".join(TEXT_TASKS), affects="result", choices=TEXT_TASKS)
    labels: list[str] = option(
        [],
        help="class of each output of the model, e.g. entailment,neutral,contradiction; empty: as its "
        "configuration says, else GLUE's order",
        affects="result",
        only=("task", CLASSIFIED),
    )
    max_length: int = option(
        0,
        help="longest input; 0: 384 for squad, 128 for the others",
        affects="result",
        unit="tokens",
        maximum=1_000_000,
    )
    # As BERT's doc_stride. In transformers' run_qa.py, doc_stride is the overlap of windows, 128 by default.
    stride: int = option(
        128,
        help="distance between the starts of successive windows",
        affects="result",
        only=("task", SQUAD),
        unit="tokens",
        minimum=1,
    )
    max_answer: int = option(
        30,
        help="longest answer",
        affects="result",
        only=("task", SQUAD),
        unit="tokens",
        minimum=1,
        maximum=10_000,
    )
    nbest: int = option(
        20,
        help="answers kept per question",
        affects="result",
        only=("task", SQUAD),
        minimum=1,
        maximum=1000,
    )

    def check(self) -> None:
        """Raise UserError without a task."""
        if not self.task:
            raise UserError(f"recipe.task=[]: expected {' | '.join(TEXT_TASKS)}")
