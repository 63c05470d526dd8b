"""The commands as functions of Python: prepare, train, decode, score and compare.

Each takes the options of its command as keywords, does and prints the same, and raises `UserError` where the
command ends with an error message. The first call imports PyTorch.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr import config
from asr.config import Given
from asr.config.given import Options, nested_values, values_of
from asr.errors import UserError
from asr.files import as_path
from asr.library.outcomes import Comparison, Run, Scores

if TYPE_CHECKING:
    from lightning import Callback
    from lightning.pytorch.loggers import Logger

    from asr.experiment.request import Request
    from asr.experiment.results import Results
    from asr.search.options import DecodePartOptions
    from asr.training.options import TrainConfig

Place = str | PathLike[str]


def prepare(recipe: Place, options: Options = None, /, **keywords: Any) -> Path:
    """Prepare a recipe's corpus, as `asr prepare` does.

    Args:
        recipe: name of an included recipe, or folder of your own, `"./my_corpus"` or a `Path`.
        options: options by name; see `values_of`.
        keywords: options that replace those in `options`; `folder`: output folder, None: data/<recipe>.

    Returns:
        The output folder, for `data.train`.

    Raises:
        UserError: no such recipe, an unknown option, or problems in the corpus.
    """
    from asr.preparation.recipes import is_own

    as_path(recipe, "recipe")
    name = os.path.expanduser(fspath(recipe))
    if isinstance(recipe, PathLike) and not is_own(name):
        name = f"./{name}"  # `Path("./demo")` drops `./`
    if keywords.get("folder") is not None:
        as_path(keywords["folder"], "folder")
    return prepare_recipe(name, values_of(options, keywords))


def prepare_recipe(name: str, given: Given) -> Path:
    """Prepare a recipe's corpus, or a shard of it, with the given options; see `prepare`."""
    from asr.files import locked
    from asr.preparation.recipes import default_folder, preparation_module
    from asr.preparation.run import ShardDone
    from asr.records.options import ShardOptions

    module = preparation_module(name)
    values = config.by_key(given)
    place = values.pop("folder", None)
    options = config.parse(module.Options, values)
    folder = default_folder(name) if place in (None, "null") else Path(place)
    divided = isinstance(options, ShardOptions) and options.shard
    try:
        with nullcontext() if divided else locked(folder, "asr prepare"):
            module.prepare(options, folder)
    except ShardDone:
        return folder
    print(f"output: {folder}")
    return folder


def train(
    options: Options = None,
    /,
    *,
    callbacks: "Sequence[Callback] | None" = None,
    loggers: "Sequence[Logger] | None" = None,
    **keywords: Any,
) -> Run:
    """Train a recogniser, as `asr train` does.

    Args:
        options: options by name; see `values_of`. A `TrainConfig`, or the content of a run's config.yaml, is
            complete: configuration files are not read, and keywords may set single options
            (`model={"layers": 6}`) but not select a configuration (`model="conformer"`).
        callbacks: Lightning callbacks.
        loggers: Lightning loggers, in addition to those that `trainer.loggers` names.
        keywords: options that replace those in `options`; with `dry_run=True`, the plan is printed only.

    Returns:
        The run: its folder, options, metrics and recogniser.

    Raises:
        UserError: invalid input, or a run folder that is in use.
        KeyboardInterrupt: Ctrl-C; `resume="auto"` continues the run.
        SystemExit: SIGTERM, which ends this process.

    Example:
        >>> run = asr.train(recipe="demo", attention="full", model={"layers": 6})  # doctest: +SKIP
        >>> run.recognizer().transcribe("recording.wav").text  # doctest: +SKIP
    """
    return train_with(_training_options(options, keywords), callbacks, loggers)


def _training_options(options: Options, keywords: Mapping[str, Any]) -> "TrainConfig":
    """Return the options of a training, from configuration files or complete; see `train`."""
    from asr.training.config import train_options, train_options_from, warn_of_lost
    from asr.training.options import TrainConfig

    first = nested_values(options)
    if not isinstance(first.get("recipe"), Mapping):
        return train_options(values_of(options, keywords, TrainConfig))
    stored = config.nested(config.flat(first))
    complete = train_options_from(stored, "options")
    warn_of_lost(complete, stored, "options")
    others = values_of(None, keywords, TrainConfig)
    for group in config.config_groups():
        if group in others:
            raise UserError(
                f"{group}={others[group]}: expected single options, {group}.name=…, beside complete options"
            )
    return config.parse(complete, others) if others else complete


def train_with(
    options: "TrainConfig",
    callbacks: "Sequence[Callback] | None" = None,
    loggers: "Sequence[Logger] | None" = None,
) -> Run:
    """Train a recogniser, or print its plan with `dry_run`; see `train`."""
    if options.dry_run:
        from asr.experiment.progress import print_training
        from asr.training.config import run_folder

        print_training(options)
        return Run(run_folder(options))
    from asr.training.run import train as run_training

    return Run(run_training(options, callbacks or (), loggers or ()))


def decode(model: Place, options: Options = None, /, **keywords: Any) -> Path:
    """Decode a split with a trained recogniser, as `asr decode` does.

    Args:
        model: run, run folder, checkpoint or published model.
        options: options by name; see `values_of`.
        keywords: options that replace those in `options`.

    Returns:
        The folder with the hypotheses, for `score`.
    """
    from asr.search.options import DecodePartOptions

    values = values_of(options, keywords, DecodePartOptions)
    return decode_model(model, config.parse(DecodePartOptions, values))


def decode_model(model: Place, options: "DecodePartOptions") -> Path:
    """Decode a split or a shard of it; print the error rates of a whole split. See `decode`."""
    from asr.recognizer import Recognizer
    from asr.records.options import parse_shard
    from asr.scoring.run import rates_line

    recognizer = Recognizer.load_as(model, options)
    shard = parse_shard(options.shard)
    folder = recognizer.decode(options, shard=shard)
    if not shard:
        print(f"hypotheses: {folder}")
        print(f"error rates: {rates_line(folder)}")
    return folder


def score(*folders: Place, options: Options = None, **keywords: Any) -> Scores:
    """Score hypotheses and compare systems, as `asr score` does.

    Args:
        folders: decode folders or runs; or two files: hypotheses and references in NIST's formats, or
            references and hypotheses as plain text.
        options: options by name; see `values_of`.
        keywords: options that replace those in `options`.

    Raises:
        UserError: there are no hypotheses, or the systems recognised different utterances.
    """
    from asr.scoring.options import ScoreOptions
    from asr.scoring.plain_files import are_plain, in_order
    from asr.scoring.run import decode_folders, score_paths

    places = [as_path(folder, "score") for folder in folders]
    scores = score_paths(places, config.parse(ScoreOptions, values_of(options, keywords, ScoreOptions)))
    return Scores(list(in_order(places)[:1]) if are_plain(places) else decode_folders(places), scores)


def compare(options: Options = None, /, **keywords: Any) -> Comparison:
    """Train, decode and time mechanisms under one protocol, as `asr compare` does; failures don't end it.

    Args:
        options: options by name, of `asr compare` and of the training of all candidates; see `values_of`.
        keywords: options that replace those in `options`.

    Raises:
        UserError: an invalid plan, or failed cells after all others have run.

    Example:
        >>> asr.compare(recipe="demo", attentions=["full", "lsh-4"], budget="10min")  # doctest: +SKIP
    """
    from asr.experiment.options import CompareConfig
    from asr.experiment.request import parse

    return run_comparison(parse(values_of(options, keywords, CompareConfig)))


def run_comparison(request: "Request") -> Comparison:
    """Run a comparison, print its tables and write its report, or print its plan; see `compare`."""
    try:
        return _run_comparison(request)
    except KeyboardInterrupt:
        print(f"to go on: {shlex.join(['asr', 'compare', *request.command])}", flush=True)
        raise


def _run_comparison(request: "Request") -> Comparison:
    if request.options.data:
        from asr.experiment.exchange import run_exchange

        return _shown(*run_exchange(request))
    from asr.console import open_console
    from asr.experiment.collect import collect, kernels_notice
    from asr.experiment.plan import make_plan
    from asr.experiment.progress import print_grid, print_plan
    from asr.experiment.rates import with_tuned_rates
    from asr.experiment.run import run_plan
    from asr.files import check_writable

    console = open_console()
    if request.options.dry_run:
        print_grid(request, console)
    if request.options.learning_rates:
        request = with_tuned_rates(request, console)
    plan = make_plan(request)
    if request.options.dry_run:
        print_plan(plan, console)
        return Comparison(plan.folder, collect(plan), None)
    check_writable(plan.folder / "report.html")
    if notice := kernels_notice(plan):
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    return _shown(plan.folder, run_plan(plan, console))


def _shown(folder: Path, results: "Results") -> Comparison:
    """Print the tables of the results in a folder, and write their report."""
    from asr.console import counted, open_console
    from asr.report.summary import print_results

    console = open_console()
    print_results(results, console)
    console.print(f"repeat or resume with: {shlex.join(results.command)}", markup=False, soft_wrap=True)
    for name in ("results.json", "results.csv"):
        print(f"{name}: {folder / name}")
    report = write_report(results, folder)
    print(f"report: {report}")
    if results.failures:
        failed = ", ".join(failure.cell for failure in results.failures[:5])
        raise UserError(
            f"{counted(len(results.failures), 'cell')} failed ({failed}); the results contain the others"
        )
    return Comparison(folder, results, report)


def write_report(results: "Results", folder: Path) -> Path:
    """Write the report; its libraries are loaded only here."""
    from asr.report import page

    return page.write_report(results, folder)
