"""The weights that a training starts from, or could start from."""

from pathlib import Path

from asr.attention.table import exchange, layer_runs
from asr.console import hours
from asr.data.module import SpeechData
from asr.data.places import LEXICON, prepared_folder
from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.records.run_folder import RunFolder
from asr.training.config import run_options
from asr.training.options import TrainConfig, recipe_task
from asr.training.progress import UNLEARNED

RUNS = Path("exp")
# Duration of training audio from which random weights do well; with 18 minutes, pretrained weights had 27
# points less WER (recipes/prompts/RESULTS.md). wav2vec 2.0 was built for 10 minutes to 10 hours (Baevski et
# al. 2020, table 1).
ENOUGH_S = 36_000.0
PUBLISHED = (
    "init_from=facebook/wav2vec2-base-960h optimizer.learning_rate=5e-5"  # the default is for random weights
)


def starts(options: TrainConfig, folder: Path, data: TrainingData) -> list[str]:
    """Return a line about the weights that training starts from, or could start from; at most one.

    Args:
        options: options of the run that begins.
        folder: run folder.
        data: training data.
    """
    if options.init_from:
        return [
            f"init_from={options.init_from}: its tokenizer, features and model sizes are kept, attention and "
            "model.frames aren't"
        ]
    if options.model.encoder or not isinstance(data, SpeechData):
        return []
    source = offered_start(options, folder)
    audio_s = data.train_cuts.durations_s.sum()
    if audio_s >= ENOUGH_S:
        return [f"to start from a trained model: init_from={source}"] if source else []
    if not source and options.tokenizer.kind == "phone":  # published models have letters or pieces
        return []
    # An example that works as it is, for English.
    example = source or f"<run or published model>, e.g. {PUBLISHED} for English"
    little = f"{hours(audio_s)} of audio is little for random weights"
    return [f"{little}: start from a model: init_from={example}"]


def offered_start(options: TrainConfig, folder: Path) -> Path | None:
    """Return the newest finished run in `exp/` whose weights suit a training; None if there is none.

    The run has learned something, and has another recipe's data, an exchangeable mechanism and the same unit
    of targets; phones also suit data with a lexicon.

    Args:
        options: options of the run that begins.
        folder: run folder.
    """
    finished = sorted(RunFolder.finished(RUNS, "*/*"), key=lambda run: run.summary.stat().st_mtime)
    for run in reversed(finished):
        if run.path.absolute() != folder.absolute() and _suits(options, run):
            return run.path
    return None


def _suits(options: TrainConfig, run: RunFolder) -> bool:
    try:
        other = run_options(run)
        rate = run.read_summary().dev_error_rate
        exchangeable = _exchangeable(options.attention, other.attention)
    except (
        OSError,
        UserError,
    ):  # unfinished, written by another version, or in need of code that isn't loaded
        return False
    if rate is None or not rate <= UNLEARNED:
        return False
    if recipe_task(other.recipe.name) or other.data.train == options.data.train:
        return False
    lexicon = all((prepared_folder(place) / LEXICON).is_file() for place in options.data.train)
    unit = other.tokenizer.kind
    if unit != options.tokenizer.kind and not (unit == "phone" and lexicon):
        return False
    return exchangeable


def _exchangeable(one: str, other: str) -> bool:
    specs = [spec for name in (one, other) for spec, _ in layer_runs(name)]
    return one == other or all(exchange(spec.mechanism) == "yes" for spec in specs)
