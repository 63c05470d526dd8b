"""The table of commands: what each does and takes, which is all that help and completion need.

The table names the dataclass of a command's options, and imports it only when needed: completion, which runs
at each key press, needs that of one command.

The module of a command in this package does its work; most load PyTorch, which takes seconds. It defines
`run(paths, options)`, or `main(paths, overrides)` if it reads its overrides itself.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, make_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from asr.config.names import MECHANISMS
from asr.errors import UserError, did_you_mean
from asr.preparation.recipes import (
    default_folder,
    preparation_options,
    prepared_recipes,
    recipe_summary,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass
class NoOptions:
    """Options of a command that has none."""


@dataclass(frozen=True)
class Command:
    """What a command does and takes.

    Attributes:
        purpose: purpose of the command, with an example.
        options_name: module and name of the dataclass of its options, `module:name`.
        takes: arguments besides options, for the usage line; empty: none.
        count: lowest and highest number of these; None: any number, or the command checks it itself.
        trains: whether it takes the options of `asr train` as well.
        first: returns the known values of the first argument.
        by_first: returns the options dataclass if it depends on the first argument, which may be missing.
        defaults: returns options with the defaults to show, given the other arguments.
        about: returns a sentence for `--help` about the other arguments; may be empty.
        details: returns what `--help` prints below the options, given the other arguments.
        parse: returns the options, given the overrides; None: overrides are parsed into `options`.
        reads: whether the command's module reads the overrides itself.
    """

    purpose: str
    options_name: str = "asr.commands:NoOptions"
    takes: str = ""
    count: tuple[int, int | None] = (0, None)
    trains: bool = False
    first: Callable[[], Iterable[str]] = tuple
    by_first: Callable[[list[str]], type | None] | None = None
    defaults: Callable[[list[str]], Any] | None = None
    about: Callable[[list[str]], str] | None = None
    details: "Callable[[list[str]], RenderableType] | None" = None
    parse: Callable[[list[str]], Any] | None = None
    reads: bool = False

    @property
    def options(self) -> type:
        """Dataclass of the command's options."""
        return options_named(self.options_name)

    def schema(self, arguments: list[str]) -> Any:
        """Return the options to describe, given the other arguments: a dataclass, or an object of it."""
        return self.by_first(arguments) if self.by_first else self.options


def options_named(name: str) -> type:
    """Import the options dataclass `module:name`."""
    module, _, schema = name.partition(":")
    return cast(type, getattr(importlib.import_module(module), schema))


LANGUAGE_MODEL = {"train": "asr.lm.options:TrainOptions", "score": "asr.lm.options:PerplexityOptions"}


def language_model_action(arguments: list[str]) -> str:
    """Return the action of `asr lm`.

    Raises:
        UserError: not exactly one argument, or an unknown one.
    """
    if len(arguments) > 1 and arguments[0] in LANGUAGE_MODEL:
        raise UserError(f"asr lm {arguments[0]} takes key=value options only, found {arguments[1]!r}")
    if not arguments or arguments[0] not in LANGUAGE_MODEL:
        found = arguments[0] if arguments else "none"
        known = list(LANGUAGE_MODEL)
        raise UserError(f"asr lm takes one of {', '.join(known)}, found {found}{did_you_mean(found, known)}")
    return arguments[0]


def language_model_options(arguments: list[str]) -> type:
    """Return the options of `asr lm train`, or those of the named action."""
    return options_named(LANGUAGE_MODEL[language_model_action(arguments or ["train"])])


def recipe_options(arguments: list[str]) -> type | None:
    """Return the options of the named recipe; None if there is no name."""
    return preparation_options(arguments[0]) if arguments else None


def recipe_purpose(arguments: list[str]) -> str:
    """Return the summary of the named recipe; empty if there is no name."""
    return recipe_summary(arguments[0]) if arguments else ""


def recipe_details(arguments: list[str]) -> "Table | str":
    """Return a table of recipes, or a line on the output folder of the named one."""
    if arguments:
        return f"folder=… sets the output folder ({default_folder(arguments[0])})."
    from rich.table import Table

    table = Table("recipe", "corpus", title="asr prepare <recipe> --help lists a recipe's options")
    for name in prepared_recipes():
        table.add_row(name, recipe_summary(name))
    table.add_row("./<folder>", "a recipe of your own: asr new recipe <folder> begins one")
    return table


def attention_details(arguments: list[str]) -> "RenderableType":
    """Return a table of the named mechanisms' options (which loads PyTorch), or the names of all."""
    if named := [x for x in arguments if x != "check"]:
        return cast("RenderableType", command_module("attention").describe(named))
    return f"mechanisms: {', '.join(MECHANISMS)}; asr help attention <mechanism> lists its options"


def training_options(overrides: list[str]) -> Any:
    """Return the options of `asr train`; see `train_options`."""
    from asr.training.config import train_options

    return train_options(overrides)


def comparison_options(arguments: list[str]) -> type:
    """Return the options of `asr compare`, with those of the named recipe's own task as `recipe.…`."""
    from asr.config import by_key
    from asr.experiment.options import CompareConfig
    from asr.training.options import task_options, workload_options

    name = str(by_key([x for x in arguments if "=" in x]).get("recipe", ""))
    schema = workload_options(name) or task_options(name)
    recipe = [("recipe", schema, field(default_factory=schema))] if schema else []
    return make_dataclass("Options", recipe, bases=(CompareConfig,))


def group_details(arguments: list[str]) -> "Table":
    """Return the choices of each config group."""
    from rich.table import Table

    from asr.config import config_groups, search_path

    title = "groups of options; recipe=<name> --help shows a recipe's defaults"
    caption = "<group>=<file>.yaml takes a file of your own, configs=<folder> a folder like conf/"
    table = Table("group", "choices", title=title, caption=caption)
    for group, names in sorted(config_groups(search_path(arguments)).items()):
        table.add_row(f"{group}=", ", ".join(names))
    return table


INSTALLING = {
    "bash": 'eval "$(asr completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(asr completion zsh)"    in ~/.zshrc',
    "fish": "asr completion fish | source   in ~/.config/fish/config.fish",
}
COMMANDS = {
    "prepare": Command(
        "prepare a recipe's corpus: asr prepare demo",
        takes="<recipe or folder of your own recipe>",
        first=prepared_recipes,
        by_first=recipe_options,
        about=recipe_purpose,
        details=recipe_details,
        reads=True,
    ),
    "train": Command(
        "train a recogniser: asr train recipe=demo attention=i-clustered-25 model=tiny",
        "asr.training.options:TrainConfig",
        trains=True,
        defaults=training_options,
        details=group_details,
        parse=training_options,
    ),
    "new": Command(
        "begin a recipe of your own: asr new recipe my_corpus",
        takes="recipe <folder>",
        first=lambda: ("recipe",),
    ),
    "lm": Command(
        "train or score an n-gram language model: asr lm train text=data/demo order=3 out=lm/demo.arpa",
        takes="|".join(LANGUAGE_MODEL),
        first=lambda: LANGUAGE_MODEL,
        by_first=language_model_options,
        reads=True,
    ),
    "decode": Command(
        "decode a split: asr decode exp/demo/full split=test attention=i-clustered-25 decoder=beam",
        "asr.search.options:DecodePartOptions",
        "<run folder, checkpoint or published model>",
        count=(1, 1),
    ),
    "score": Command(
        "score hypotheses and compare systems: asr score exp/demo/full/decode/test/full-greedy",
        "asr.scoring.options:ScoreOptions",
        "<folder or run> ... | <hyp.trn> <ref.trn> | <ref.txt> <hyp.txt>",
        count=(1, None),
    ),
    "evaluate": Command(
        "evaluate models of copy, language or longrange: asr evaluate exp/copy/full exp/copy/lsh-4",
        "asr.training.options:EvaluateOptions",
        "<run folder> …",
        count=(1, None),
    ),
    "align": Command(
        "align transcripts with audio: asr align exp/demo/full recording.wav text='go on'",
        "asr.transcription.options:AlignOptions",
        "<run folder, checkpoint or published model> [<audio file>]",
        count=(1, 2),
    ),
    "segment": Command(
        "divide a recording and its text into utterances: asr segment exp/demo/full book.wav book.txt",
        "asr.transcription.options:SegmentOptions",
        "<run folder, checkpoint or published model> <recording> <text file>",
        count=(3, 3),
    ),
    "transcribe": Command(
        "transcribe audio files: asr transcribe exp/demo/full recording.wav",
        "asr.transcription.options:TranscribeOptions",
        "<run folder, checkpoint or published model> <audio file, folder or - for standard input> …",
        count=(2, None),
    ),
    "merge": Command(
        "join the shards of prepare, decode, align or transcribe: asr merge exp/demo/full/align/test",
        takes="<output folder of asr prepare, decode, transcribe or align with shard=> [<your own recipe>]",
        count=(1, 2),
    ),
    "bench": Command(
        "time attention mechanisms: asr bench attentions=full,i-clustered-100 lengths=512,1024",
        "asr.experiment.options:BenchOptions",
        details=lambda _: (
            "asr bench data=data/demo model=<Whisper folder> peers=all: a trained model on "
            "recordings, with the options of asr compare"
        ),
        reads=True,
    ),
    "compare": Command(
        "train, decode and time mechanisms side by side, or run a trained model with them: "
        "asr compare recipe=demo attentions=full,i-clustered-25",
        "asr.experiment.options:CompareConfig",
        "[options of asr train for all candidates]",
        count=(0, 0),
        trains=True,
        defaults=comparison_options,
        reads=True,
    ),
    "advise": Command(
        "recommend a mechanism for your data on this machine: asr advise data/demo model=wsj",
        "asr.experiment.options:AdviceConfig",
        "<manifest or prepared folder> [options of asr train, for model and frame budget]",
        count=(1, 1),
        trains=True,
        reads=True,
    ),
    "attention": Command(
        "list attention mechanisms, describe one, or check one of your own: "
        "asr attention check ./nystrom.py:Nystrom-32",
        takes="[check] [<mechanism> …]",
        first=lambda: ("check", *MECHANISMS),
        details=attention_details,
        reads=True,
    ),
    "report": Command(
        "write the page of a comparison or a training, finished or running: "
        "asr report exp/demo/full refresh=10",
        "asr.report.options:ReportOptions",
        "<folder of asr train or compare>",
        count=(1, 1),
    ),
    "export": Command(
        "export a model: asr export exp/demo/full out=model",
        "asr.model.options:ExportOptions",
        "<run folder, checkpoint or published model>",
        count=(1, 1),
    ),
    "completion": Command(
        "complete words in bash, zsh or fish: asr completion bash",
        takes="|".join(INSTALLING),
        first=lambda: INSTALLING,
        details=lambda _: "To complete in every new shell:\n  " + "\n  ".join(INSTALLING.values()),
        reads=True,
    ),
}


def command_module(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"asr.commands.{name.replace('-', '_')}")
