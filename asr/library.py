"""The commands as functions of Python: prepare, train, decode, score and compare.

Each takes the options of its command as keywords, does and prints the same, and raises `UserError` where the
command ends with a line. PyTorch is imported by the first call.
"""

import html
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, is_dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr import config
from asr.errors import UserError

if TYPE_CHECKING:
    from lightning import Callback
    from lightning.pytorch.loggers import Logger

    from asr.compare.request import Request
    from asr.compare.results import Results
    from asr.recognizer import Recognizer
    from asr.records.run_folder import TrainingSummary
    from asr.scoring.score import Score
    from asr.search.options import DecodePartOptions
    from asr.training.options import TrainConfig

Place = str | PathLike[str]
Options = Any  # a dictionary, an OmegaConf configuration, a dataclass or None: see `overrides_of`


class Rows(list[dict[str, Any]]):
    """A table as a list of rows, which `pandas.DataFrame` takes; notebooks show it as a table.

    Example:
        >>> Rows([{"step": 1, "loss": 2.5}])._repr_html_()
        '<table><tr><th>step</th><th>loss</th></tr><tr><td>1</td><td>2.5</td></tr></table>'
    """

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        lines = ["".join(f"<th>{html.escape(name)}</th>" for name in names)]
        for row in self:
            texts = ("" if row.get(name) is None else html.escape(str(row[name])) for name in names)
            lines.append("".join(f"<td>{text}</td>" for text in texts))
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


@dataclass(frozen=True)
class Run:
    """A training run; functions that take a run folder take it, too.

    Attributes:
        folder: run folder.
    """

    folder: Path

    def __fspath__(self) -> str:
        return fspath(self.folder)

    @property
    def options(self) -> "TrainConfig":
        """All options of the training."""
        from asr.records.run_folder import RunFolder
        from asr.training.config import run_options

        return run_options(RunFolder(self.folder))

    @property
    def summary(self) -> "TrainingSummary":
        """Length, cost and last error rate of the finished training."""
        from asr.records.run_folder import RunFolder

        return RunFolder(self.folder).read_summary()

    @property
    def metrics(self) -> Rows:
        """Table of what was logged, a row for each step: loss, learning rate, validations, times."""
        from asr.records.metrics import parse_metrics
        from asr.records.run_folder import RunFolder

        path = RunFolder(self.folder).metrics
        _, rows = parse_metrics(path.read_text(encoding="utf-8"), path)
        return Rows(
            {name: float(text) if text else None for name, text in row.items()} | {"step": int(row["step"])}
            for row in rows
        )

    def recognizer(self, **options: Any) -> "Recognizer":
        """Return the trained recogniser; for options, see `Recognizer.load`."""
        from asr.recognizer import Recognizer

        return Recognizer.load(self.folder, **options)


@dataclass(frozen=True)
class Scores:
    """Error rates of one or more systems.

    Attributes:
        folders: what was scored.
        scores: error rates with counts, speakers and utterances, for each folder.
    """

    folders: list[Path]
    scores: "list[Score]"

    @property
    def rows(self) -> Rows:
        """Table with a row for each folder: rates as fractions with their 95 % intervals."""
        rows = Rows()
        for folder, score in zip(self.folders, self.scores, strict=True):
            row: dict[str, Any] = {"folder": str(folder), "utterances": len(score.utterances)}
            for metric, rate in score.rates.items():
                low, high = rate.interval or (None, None)
                row |= {metric: rate.rate, f"{metric}_low": low, f"{metric}_high": high}
            rows.append(row | {"audio_s": score.audio_s, "decode_s": score.decode_s})
        return rows


@dataclass(frozen=True)
class Comparison:
    """A comparison of mechanisms.

    Attributes:
        folder: its folder, with the trained models.
        results: everything that it has measured; with `dry_run`, by earlier calls.
        report: report page; None with `dry_run`.
    """

    folder: Path
    results: "Results"
    report: Path | None

    @property
    def rows(self) -> Rows:
        """Table with a row for each evaluation, the content of results.csv."""
        return Rows(self.results.rows())

    def run(self, label: str, seed: int | None = None) -> Run:
        """Return the training of a candidate, e.g. `full`; `seed`: None for its first one.

        Raises:
            UserError: there is no finished training of this candidate.
        """
        trainings = self.results.trainings_of(self.results.candidate(label).label)
        for training in trainings:
            if seed in (None, training.seed):
                return Run(self.folder / training.run)
        raise UserError(f"{self.folder}: expected a finished training of {label}, seed {seed}, found none")


def prepare(recipe: Place, options: Options = None, /, **keywords: Any) -> Path:
    """Prepare a recipe's corpus, as `asr prepare` does.

    Args:
        recipe: name of an included recipe, or folder of your own, `./my_corpus`.
        options: options by name; see `overrides_of`.
        keywords: options that replace those in `options`; `folder` is the output folder.

    Returns:
        The output folder, which `data.train` takes.

    Raises:
        UserError: no such recipe, an unknown option, or problems in the corpus.
    """
    return prepare_recipe(fspath(recipe), overrides_of(options, keywords))


def prepare_recipe(name: str, overrides: list[str]) -> Path:
    """Prepare a recipe's corpus, or a shard of it, with options as `key=value`; see `prepare`."""
    from asr.files import locked
    from asr.preparation.division import ShardDone
    from asr.preparation.recipes import default_folder, preparation_module
    from asr.records.options import ShardOptions

    module = preparation_module(name)
    folders = [x.partition("=")[2] for x in overrides if x.startswith("folder=")]
    options = config.parse(module.Options, [x for x in overrides if not x.startswith("folder=")])
    folder = Path(folders[-1]) if folders else default_folder(name)
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
    callbacks: "Sequence[Callback]" = (),
    loggers: "Sequence[Logger]" = (),
    **keywords: Any,
) -> Run:
    """Train a recogniser, as `asr train` does.

    Args:
        options: options by name; see `overrides_of`. A `TrainConfig`, or values in which `recipe` is a
            group, as in a run's config.yaml, are complete: no configuration is composed, and keywords set
            single options.
        callbacks: callbacks of Lightning.
        loggers: loggers of Lightning, in addition to those that `trainer.loggers` names.
        keywords: options that replace those in `options`.

    Raises:
        UserError: invalid input, or a run folder that is in use.
        KeyboardInterrupt: Ctrl-C; `resume="auto"` continues the run.
        SystemExit: SIGTERM, which ends this process.

    Example:
        >>> run = asr.train(recipe="demo", attention="full", model={"layers": 6})  # doctest: +SKIP
        >>> run.recognizer().transcribe("recording.wav").text  # doctest: +SKIP
    """
    from asr.training.run import train as run_training

    return Run(run_training(_training_options(options, keywords), callbacks, loggers))


def decode(model: Place, options: Options = None, /, **keywords: Any) -> Path:
    """Decode a split with a trained recogniser, as `asr decode` does.

    Args:
        model: run, run folder, checkpoint or published model.
        options: options by name; see `overrides_of`.
        keywords: options that replace those in `options`.

    Returns:
        The folder with the hypotheses, which `score` takes.
    """
    from asr.search.options import DecodePartOptions

    return decode_model(model, config.parse(DecodePartOptions, overrides_of(options, keywords)))


def decode_model(model: Place, options: "DecodePartOptions") -> Path:
    """Decode a split, or a shard of it; print the error rates of a whole one. See `decode`."""
    from asr.recognizer import Recognizer
    from asr.records.options import parse_shard
    from asr.scoring.run import rates_line

    recognizer = Recognizer.load_as(fspath(model), options)
    shard = parse_shard(options.shard)
    folder = recognizer.decode(options, shard=shard)
    if not shard:
        print(f"hypotheses: {folder}")
        print(f"error rates: {rates_line(folder)}")
    return folder


def score(*folders: Place, options: Options = None, **keywords: Any) -> Scores:
    """Score hypotheses and compare systems, as `asr score` does.

    Args:
        folders: decode folders, or two files in NIST's formats or of plain text.
        options: options by name; see `overrides_of`.
        keywords: options that replace those in `options`.

    Raises:
        UserError: no hypotheses, or systems that have recognised different utterances.
    """
    from asr.scoring.options import ScoreOptions
    from asr.scoring.run import score_paths

    places = [Path(folder) for folder in folders]
    scores = score_paths(places, config.parse(ScoreOptions, overrides_of(options, keywords)))
    return Scores(places[: len(scores)], scores)


def compare(options: Options = None, /, **keywords: Any) -> Comparison:
    """Train, decode and time mechanisms under one protocol, as `asr compare` does; continue after a failure.

    Args:
        options: options by name, of `asr compare` and of training for all candidates; see `overrides_of`.
        keywords: options that replace those in `options`.

    Raises:
        UserError: an invalid plan, or failed cells after all others have run.

    Example:
        >>> asr.compare(recipe="demo", attentions=["full", "lsh-4"], budget="10min")  # doctest: +SKIP
    """
    from asr.compare.request import parse

    return run_comparison(parse(overrides_of(options, keywords)))


def run_comparison(request: "Request") -> Comparison:
    """Run a comparison, print its tables and write its report, or print its plan; see `compare`."""
    from asr.compare.collect import collect
    from asr.compare.plan import make_plan
    from asr.compare.progress import print_grid, print_plan
    from asr.compare.run import run_plan
    from asr.console import open_console
    from asr.files import check_writable
    from asr.report.words import print_results

    console = open_console()
    if request.options.dry_run:
        print_grid(request, console)
    plan = make_plan(request)
    if request.options.dry_run:
        print_plan(plan, console)
        return Comparison(plan.folder, collect(plan), None)
    check_writable(plan.folder / "report.html")
    results = run_plan(plan, console)
    print_results(results, console)
    console.print(f"repeat or resume with: {shlex.join(results.command)}", markup=False, soft_wrap=True)
    for name in ("results.json", "results.csv"):
        print(f"{name}: {plan.folder / name}")
    report = write_report(results, plan.folder)
    print(f"report: {report}")
    if results.failures:
        number = len(results.failures)
        failed = ", ".join(failure.cell for failure in results.failures[:5])
        cells = "1 cell" if number == 1 else f"{number} cells"
        raise UserError(f"{cells} failed ({failed}); the results contain the others")
    return Comparison(plan.folder, results, report)


def write_report(results: "Results", folder: Path) -> Path:
    """Write the report, whose libraries are loaded once there is something to show."""
    from asr.report import page

    return page.write_report(results, folder)


def _training_options(options: Options, keywords: Mapping[str, Any]) -> "TrainConfig":
    """Return the options of a training, composed or complete; see `train`."""
    from asr.training.config import train_options, train_options_from

    values = _values(options)
    if not isinstance(values.get("recipe"), Mapping):
        return train_options(overrides_of(options, keywords))
    complete = train_options_from(config.nested(config.flat(values)), "options")
    overrides = overrides_of(None, keywords)
    for override in overrides:
        group, _, name = override.partition("=")
        if group in config.config_groups():
            raise UserError(
                f"{group}={name}: expected single options such as {group}.name beside complete options"
            )
    return config.parse(complete, overrides) if overrides else complete


def overrides_of(options: Options, keywords: Mapping[str, Any]) -> list[str]:
    """Return options as `key=value` overrides, those of the command line.

    Args:
        options: a dataclass, an OmegaConf configuration, a dictionary or None. Groups are nested, or their
            names dotted: `{"model": {"layers": 6}}` or `{"model.layers": 6}`.
        keywords: further options, which replace those in `options`.

    Example:
        >>> overrides_of({"recipe": "demo", "model.layers": 4}, {"model": {"layers": 6}, "seeds": (0, 1)})
        ['recipe=demo', 'model.layers=6', 'seeds=[0,1]']
    """
    return config.as_overrides(config.flat(_values(options)) | config.flat(_plain(keywords)))


def _values(options: Options) -> dict[str, Any]:
    """Return options as nested dictionaries, lists and scalars."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True)
    elif is_dataclass(options) and not isinstance(options, type):
        options = config.to_dict(options)
    if not isinstance(options, Mapping | None):
        raise UserError(
            f"options: expected a dictionary, an OmegaConf configuration or a dataclass, found {options!r}"
        )
    return dict(_plain(options or {}))


def _plain(value: Any) -> Any:
    """Return a value with paths as texts, NumPy's numbers as Python's, and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, PathLike):
        return fspath(value)
    return value.item() if hasattr(value, "item") else value
