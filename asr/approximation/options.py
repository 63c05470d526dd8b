"""Options of `asr approximate`."""

from dataclasses import dataclass
from pathlib import Path

from asr.approximation.glue import TASKS
from asr.config import option
from asr.config.names import MECHANISMS
from asr.errors import UserError

SQUAD, TRANSCRIPTION = "squad", "transcription"
TEXT_TASKS = (*TASKS, SQUAD)
ALL_TASKS = (*TEXT_TASKS, TRANSCRIPTION)
FULL = "full"
LAYERS = "layers"
CLASSIFIED = tuple(name for name, task in TASKS.items() if task.classes)
PLACE = "{task}"


def rival_of(row: str) -> tuple[str, str]:
    """Return option and value of a row of `Options.rivals`; both are empty for a mechanism.

    Example:
        >>> rival_of("frames=1,2*3"), rival_of("lsh-4:chunk=16")
        (('frames', '1,2*3'), ('', ''))
    """
    name, _, value = row.partition("=")
    return (name, value) if name in ("frames", LAYERS) else ("", "")


@dataclass
class Options:
    """Options of `asr approximate`."""

    model: str = option(
        "",
        help="folder of a fine-tuned transformers model; {task} in it stands for each task's name; for "
        "transcription, Whisper's or any recogniser: a run, or a CTC model of a folder or the Hub",
        affects="result",
    )
    task: list[str] = option([], help=" | ".join(ALL_TASKS), affects="result", choices=ALL_TASKS)
    data: str = option(
        "glue_data",
        help="folder with the public files (RTE/dev.tsv, squad/dev-v1.1.json, …) or one file; {task} as in "
        "model; for transcription, a folder written by `asr prepare` or a manifest",
        affects="result",
    )
    splits: list[str] = option(
        ["test"],
        help="splits of a folder to transcribe, together",
        affects="result",
        only=("task", TRANSCRIPTION),
    )
    join_s: float = option(
        0.0,
        help="join successive utterances, with pauses, to inputs of at most this length; 0: each alone",
        affects="result",
        only=("task", TRANSCRIPTION),
        unit="s",
        maximum=7200,
    )
    language: str = option(
        "",
        help="language of the recordings, e.g. de; empty: English, for models that know no other",
        affects="result",
        only=("task", TRANSCRIPTION),
    )
    attentions: list[str] = option(
        ["full", "clustered-25", "i-clustered-25", "i-clustered-25:grouping=keys", "local-64"],
        help="mechanisms of the softmax family; values in turn: i-clustered-25/100:topk=16/32",
        affects="result",
        suggested=MECHANISMS,
    )
    sweep: str = option(
        "",
        help="layers: each mechanism in one layer at a time, full in the others; empty: in all layers",
        affects="result",
        only=("task", TRANSCRIPTION),
        choices=("", LAYERS),
    )
    frames: list[str] = option(
        [],
        help="further rows: full attention with fewer frames, a schedule for each: 2, '1,2*3', or pad-10 "
        "(Whisper's padding in runs of 10)",
        affects="result",
        only=("task", TRANSCRIPTION),
    )
    layers: list[int] = option(
        [],
        help="further rows: full attention in this many of Whisper's encoder layers, evenly spread",
        affects="result",
        only=("task", TRANSCRIPTION),
        minimum=1,
        maximum=1000,
    )
    baseline: str = option(
        FULL, help="denominator of the ratios, one of attentions", affects="result", suggested=MECHANISMS
    )
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
        only=("task", TEXT_TASKS),
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
    examples: int = option(0, help="number of first examples to evaluate; 0: all", affects="result")
    batch: int = option(
        4096,
        help="size of a batch, padding included; an input of Whisper has 1,500",
        affects="cost",
        unit="tokens",
        minimum=1,
        maximum=100_000_000,
    )
    samples: int = option(
        1000, help="bootstrap samples for the intervals", affects="result", minimum=10, maximum=1_000_000
    )
    seed: int = option(0, help="random seed of the bootstrap", affects="result", maximum=2**32 - 1)
    question: str = option(
        "",
        help="id of the question whose map is drawn; empty: the one of median length",
        affects="result",
        only=("task", SQUAD),
    )
    layer: int = option(
        0,
        help="layer of the map, from 1; 0: where the mechanisms differ most",
        affects="result",
        only=("task", SQUAD),
        maximum=10_000,
    )
    head: int = option(
        0,
        help="head of the map, from 1; 0: as for layer",
        affects="result",
        only=("task", SQUAD),
        maximum=10_000,
    )
    backend: str = option(
        "auto", help="auto | reference | native", affects="result", choices=("auto", "reference", "native")
    )
    device: str = option("auto", help="auto | cpu | cuda", affects="cost")
    folder: str = option("exp/approximate", help="output folder", affects="place")

    def check(self) -> None:
        """Raise UserError for an unknown task, an empty list, or several tasks with one model."""
        if not self.model:
            raise UserError("model=: expected the folder of a fine-tuned model, found none")
        for name in ("attentions", "task", "splits"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        if TRANSCRIPTION in self.task and FULL not in self.attentions:
            raise UserError(
                f"attentions={','.join(self.attentions)}: expected {FULL} among them, because "
                f"task={TRANSCRIPTION} measures the divergence from it"
            )
        if self.sweep and self.rivals:
            raise UserError(f"{self.rivals[0]}: has no effect with sweep={self.sweep}")
        if self.sweep and (self.baseline != FULL or len(self.attentions) < 2):
            raise UserError(f"sweep={self.sweep}: expected baseline={FULL} and other attentions beside it")
        if len({task.partition("-")[0] for task in self.task}) > 1 and PLACE not in self.model:
            raise UserError(
                f"model={self.model}: a model is fine-tuned for one task; with several, write "
                f"{PLACE} for its name"
            )

    @property
    def rivals(self) -> list[str]:
        """Names of the further rows, which have full attention: `frames=2`, `layers=3`."""
        rows = [f"frames={frames}" for frames in self.frames]
        return list(dict.fromkeys([*rows, *(f"layers={layers}" for layers in self.layers)]))

    def model_of(self, task: str) -> Path:
        """Return the folder of a task's model; both sets of MNLI share one."""
        return Path(self.model.replace(PLACE, task.partition("-")[0]))

    def data_of(self, task: str) -> Path:
        """Return where a task's data are."""
        return Path(self.data.replace(PLACE, task.partition("-")[0]))
