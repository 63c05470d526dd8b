"""The command line before a command runs: help, errors, imports, environment."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from asr.cli import KEEPING, WAITING, main
from asr.commands import COMMANDS
from asr.errors import run_program
from asr.preparation.recipes import prepared_recipes

HEAVY = {"torch", "lightning", "lhotse", "omegaconf", "numpy", "soundfile"}


def run_python(code: str, **environment: str) -> str:
    """Return what a new process prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in WAITING | KEEPING}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env={**inherited, **environment}, text=True)


def heavy_after(lines: list[list[str]]) -> set[str]:
    """Return the heavy libraries that a new process has loaded after these command lines."""
    calls = "".join(f"main({arguments})\n" for arguments in lines)
    code = f"import sys; from asr.cli import main\n{calls}print(sorted({HEAVY} & set(sys.modules)))"
    return set(json.loads(run_python(code).splitlines()[-1].replace("'", '"')))


@pytest.mark.slow
def test_help_imports_no_heavy_library() -> None:
    """`asr --help` imported every command and took six seconds; a recipe imported lhotse, 1.8 seconds."""
    helped = [[name, "--help"] for name in COMMANDS if name != "train"]
    assert heavy_after([["--help"], ["--version"], ["nosuch"], ["lm", "score", "--help"], *helped]) == set()
    recipes = [["prepare", name, "--help"] for name in prepared_recipes()]
    assert heavy_after(recipes) == set()


@pytest.mark.parametrize("recipe", ["demo", "longrange"])
def test_help_of_training_loads_what_composes_its_defaults(recipe: str) -> None:
    """A recipe's own task was imported for its options, and loaded PyTorch and Lightning."""
    assert heavy_after([["train", f"recipe={recipe}", "--help"]]) == {"omegaconf"}


@pytest.mark.slow
def test_a_mistake_in_an_option_is_answered_before_pytorch_is_loaded() -> None:
    assert "torch" not in heavy_after([["decode", "run", "beam.size=0"], ["train", "model.layers=0"]])


def test_every_command_has_a_module_and_a_line_in_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.path.dirname(sys.modules["asr.cli"].__file__ or "")
    modules = {name.removesuffix(".py") for name in os.listdir(os.path.join(folder, "commands"))}
    assert {name.replace("-", "_") for name in COMMANDS} == modules - {"__init__", "__pycache__"}
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(command.purpose in printed for command in COMMANDS.values())


def test_help_shows_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich took `[full,…]` and the unit `[frames]` for markup and dropped them."""
    assert main(["--help"]) == 0
    assert "attentions=full,i-clustered-100" in capsys.readouterr().out
    assert main(["decode", "--help"]) == 0
    assert "[frames]" in capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "key"), [("questions", "recipe.max_answer"), ("copy", "recipe.length")])
def test_help_of_comparisons_has_the_options_of_the_recipe(
    recipe: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--help"]) == 0
    assert "recipe." not in capsys.readouterr().out
    assert main(["compare", f"recipe={recipe}", "--help"]) == 0
    shown = capsys.readouterr().out
    assert key in shown
    assert "attentions" in shown


def test_help_of_training_shows_the_defaults_of_the_recipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--help` showed the defaults of the dataclasses, with which no recipe trains."""
    monkeypatch.setenv("COLUMNS", "160")

    def defaults(*overrides: str) -> dict[str, str]:
        assert main(["train", *overrides, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
        return {row[0]: row[min(2, len(row) - 1)] for row in rows if row}  # groups have two columns

    copy, wsj = defaults("recipe=copy"), defaults("recipe=wsj", "model.layers=5")
    assert (copy["recipe.length"], copy["trainer.max_steps"]) == ("31", "5000")
    assert copy["optimizer.name"] == "radam"
    assert (wsj["model.layers"], wsj["trainer.max_steps"]) == ("5", "0")
    assert "recipe.length" not in wsj
    assert wsj["optimizer="] == "adadelta, adamw, muon, radam"
    assert main(["train", "optimizer.clip=0", "--help"]) == 1
    assert "unknown option 'optimizer.clip'" in capsys.readouterr().err


def test_a_command_without_positional_arguments_prints_one_space(capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS["train"].takes == ""
    assert main(["train", "--help"]) == 0
    assert capsys.readouterr().out.startswith("asr train key=value …")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, WAITING), ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"})],
    ids=["commands", "user"],
)
def test_openmp_threads_hardly_spin_unless_the_user_decides(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    """Spinning threads made training six times as slow on a busy machine. PyTorch reads them once."""
    code = (
        "import os, sys, types; from asr import cli\n"
        "def run(paths, options):\n"
        "    found = {name: os.environ[name] for name in cli.WAITING if name in os.environ}\n"
        "    print(found, 'torch' in sys.modules)\n"
        "cli.command_module = lambda name: types.SimpleNamespace(run=run)\n"
        "cli.main(['train'])"
    )
    assert run_python(code, **given).strip() == f"{expected} False"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(
    ("given", "kept"), [({}, True), ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, False)]
)
def test_commands_and_their_children_keep_freed_memory_unless_the_user_decides(
    given: dict[str, str], kept: bool
) -> None:
    """The system cleared the pages of each large tensor again: an eighth of the time of Whisper's encoder."""
    free = (
        "import os, numpy; before = open('/proc/self/statm').read().split()[1]\n"
        "x = numpy.ones(1 << 24); del x; after = open('/proc/self/statm').read().split()[1]\n"
        "print(os.sysconf('SC_PAGE_SIZE') * (int(after) - int(before)) > 1 << 26, flush=True)\n"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {free!r}], check=True)"
    found = run_python(f"from asr.cli import main; main(['--version'])\n{free}{child}", **given)
    assert found.split()[1:] == [str(kept), str(kept)]


def test_a_users_error_is_one_line_and_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lengths=[0]"]) == 1
    assert capsys.readouterr().err == "asr: lengths=0: expected a number 1 … 100000000\n"
    assert main(["--debug", "bench", "lengths=[0]"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_default_without_effect_is_refused_like_any_value(capsys: pytest.CaptureFixture[str]) -> None:
    """`optimizer.plateau_patience=4` without the plateau schedule was refused, 3 accepted."""
    assert main(["train", "recipe=demo", "optimizer.plateau_patience=3"]) == 1
    assert capsys.readouterr().err == (
        "asr: optimizer.plateau_patience=3: has no effect with optimizer.schedule=cosine, only with "
        "optimizer.schedule=plateau\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench exp/demo", "asr bench takes key=value options only, found 'exp/demo'"),
        ("compare exp/demo", "asr compare takes key=value options only, found 'exp/demo'"),
        ("decode", "asr decode takes <run folder, checkpoint or published model>, found none"),
        ("report exp/demo exp/copy", "asr report takes <folder of asr train or compare>, found 2"),
    ],
)
def test_paths_are_counted(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 1
    assert capsys.readouterr().err == f"asr: {message}\n"


def test_an_empty_argument_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """`asr transcribe run ""` transcribed everything below the current folder."""
    assert main(["transcribe", "run", ""]) == 1
    assert capsys.readouterr().err == "asr: expected a path, found an empty argument\n"


@pytest.mark.parametrize("command", ["decode", "report", "evaluate", "transcribe"])
def test_a_path_that_is_not_utf8_is_refused_at_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding and reports worked for a minute, and failed when they wrote the name."""
    assert main([command, "exp/\udcff", "a.wav"]) == 1
    assert capsys.readouterr().err == "asr: exp/\\udcff: expected a path in UTF-8\n"


def test_an_interrupted_command_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asr.cli.command_module", interrupt)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "asr: interrupted\n"


def run_asr(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asr", *arguments], stderr=subprocess.PIPE, text=True, timeout=120, **options
    )


def test_output_that_cannot_be_written_is_one_line() -> None:
    """On a full disk the interpreter printed a traceback at exit."""
    with open("/dev/full", "w") as full:
        ended = run_asr("--help", stdout=full)
    assert (ended.returncode, ended.stderr) == (1, "asr: No space left on device\n")


def test_output_that_nobody_reads_ends_the_command_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = run_asr("--help", stdout=writer)
    os.close(writer)
    assert ended.returncode in (1, 141)  # Rich exits with 1 itself
    assert ended.stderr == ""


def test_a_limit_that_a_library_hides_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With `ulimit -n 7`, no data process could start, and Lightning failed to clean up: 97 lines."""

    def fail() -> None:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        finally:
            raise RuntimeError("Please call `iter(combined_loader)` first.")

    assert run_program("asr", fail) == 1
    limit = "asr: a limit of the system or its memory is reached (Too many open files): see ulimit -a\n"
    assert capsys.readouterr().err == limit


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "exp/a.json"),
            "exp/a.json: No space left on device",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "exp"), "exp: Permission denied"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/x"), "file/x: Not a directory"),
        (OSError("disk quota"), "disk quota"),
        (MemoryError(), "out of memory"),
    ],
)
def test_errors_of_the_system_are_one_line(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert run_program("asr", fail) == 1
    assert capsys.readouterr().err == f"asr: {line}\n"
    assert run_program("asr", fail, debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_signals_clean_up_and_are_reported_even_if_a_library_hides_them(
    number: signal.Signals, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM ended commands without a word; Ctrl-C during an import became an ImportError."""
    cleaned = []
    before = signal.getsignal(number)

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise ImportError("partially initialised") from None
        finally:
            cleaned.append(True)

    assert run_program("asr", work) == 128 + number
    assert capsys.readouterr().err == f"asr: {word}\n"
    assert cleaned
    assert signal.getsignal(number) is before
