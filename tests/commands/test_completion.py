"""Completion: the candidates are those of the commands themselves, and the shells take them."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asr import config
from asr.attention.table import MECHANISMS, default_names, option_words, parse_name
from asr.cli import main
from asr.commands import COMMANDS, INSTALLING, LANGUAGE_MODEL, completion
from asr.commands.completion import candidates, option_values
from asr.config import config_groups, configurations
from asr.config.names import MECHANISM_OPTIONS
from asr.lm.options import PerplexityOptions
from asr.preparation.recipes import preparation_module, prepared_recipes
from asr.training.options import TrainConfig

NYSTROM = Path(__file__).parents[2] / "docs" / "examples" / "nystrom.py"


def described(schema: object) -> set[str]:
    return {key for key, *_ in config.describe(schema)}


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"prepare", "lm", "completion"}))
def test_the_options_offered_are_those_of_the_command(command: str) -> None:
    wanted = described(COMMANDS[command].options)
    if command in ("train", "compare", "advise"):
        wanted |= described(TrainConfig) | set(config_groups())
    assert set(option_values(command, "")) == wanted


@pytest.mark.parametrize("recipe", prepared_recipes())
def test_options_of_recipes_are_complete(recipe: str) -> None:
    wanted = {f"{key}=" for key in described(preparation_module(recipe).Options)}
    assert set(candidates("prepare", recipe, "", 3)) == wanted | {"folder="}
    assert candidates("prepare", "nosuch", "", 3) == []


def test_names_come_from_their_tables() -> None:
    assert candidates("", "", "", 1) == [*COMMANDS, "help"]
    assert candidates("help", "", "tra", 2) == ["train", "transcribe"]
    assert candidates("prepare", "", "", 2) == prepared_recipes()
    # Recipes of conf/, which have options to train with, not the packages that only prepare data.
    trained = [f"recipe={name}" for name in sorted(config_groups()["recipe"])]
    assert candidates("train", "", "recipe=", 2) == trained
    assert "recipe=wsj_modern" in trained
    assert "recipe=kaldi" not in trained
    assert "model=wsj" in candidates("train", "", "model=", 2)
    assert candidates("lm", "", "", 2) == list(LANGUAGE_MODEL)
    assert set(candidates("lm", "score", "", 3)) == {f"{key}=" for key in described(PerplexityOptions)}
    assert candidates("decode", "", "decoder=", 2) == [
        "decoder=greedy",
        "decoder=beam",
        "decoder=prefix",
    ]
    names = [name.removeprefix("attention=") for name in candidates("train", "", "attention=", 2)]
    assert [parse_name(name).mechanism for name in names] == list(MECHANISMS)
    assert names == default_names()
    # Inside brackets, nothing was found.
    for typed in ("attentions=full,", "attentions=[full,", "attentions=["):
        assert candidates("compare", "", f"{typed}i-", 2) == [f"{typed}i-clustered-100"]


def test_options_of_mechanisms_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from a table of their descriptions, or of a file's code, which doesn't run."""
    assert {key: tuple(text.split()) for key, text in MECHANISM_OPTIONS.items()} == {
        key: words for key, words in option_words().items() if words
    }
    assert candidates("train", "", "attention=near-25:t", 2) == ["attention=near-25:topk="]
    typed = "attentions=full,near-25:topk=3,"
    assert f"{typed}grouping=hash" in candidates("compare", "", typed, 2)
    assert f"{typed}topk=" not in candidates("compare", "", typed, 2)
    assert candidates("train", "", "attention=full:causal=", 2) == [
        "attention=full:causal=true",
        "attention=full:causal=false",
    ]
    assert candidates("train", "", "attention=summary:", 2) == []
    (tmp_path / "n.py").write_text(NYSTROM.read_text() + "\nraise ValueError\n")
    monkeypatch.chdir(tmp_path)
    assert candidates("train", "", "attention=./n.py:", 2) == ["attention=./n.py:Nystrom-32"]
    assert candidates("train", "", "attention=./n.py:Nystrom-32:", 2) == [
        "attention=./n.py:Nystrom-32:iterations="
    ]


def test_completion_is_quick() -> None:
    """A key press took up to 0.4 s: for `asr train`, it imported the options of every command, and rich."""
    code = (
        "import sys; from asr.cli import main\n"
        "main(['completion', 'words', 'train', '', 'attention=', '2'])\n"
        "slow = {'torch', 'omegaconf', 'lhotse', 'numpy', 'rich', 'logging', 'tempfile'}\n"
        "others = {'asr.experiment.options', 'asr.scoring.options', 'asr.files', 'asr.console'}\n"
        "print((slow | others) & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "set()"


# What a shell offers for a line: each asks `asr`, here this module, which the script finds on the PATH.
ASK = {
    "bash": 'COMP_LINE="asr $1"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(asr $1); COMP_CWORD=$2; '
    'compopt() { :; }; _asr; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete -C "asr $argv[1]"',
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("line", "position", "offered"),
    [
        ("tran", 1, "transcribe"),
        ("train attention=i-", 2, "i-clustered-100"),
        ("compare attentions=full,ls", 2, "full,lsh-4"),
        ("prepare de", 2, "demo"),
    ],
)
def test_the_shells_offer_the_candidates(
    shell: str, line: str, position: int, offered: str, tmp_path: Path
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine")
    script = tmp_path / f"ask.{shell}"
    script.write_text(completion.SHELLS[shell] + ASK[shell] + "\n")
    asr = tmp_path / "asr"
    asr.write_text(f'#!/bin/sh\nexec {sys.executable} -m asr "$@"\n')
    asr.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": ":".join(sys.path),
    }
    command = [program, str(script), line, str(position)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert found.stderr == ""
    assert [
        x.strip().removeprefix("attention=").removeprefix("attentions=")
        for x in found.stdout.split("\n")
        if x
    ] == [offered]


def test_the_script_of_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 1
    assert "did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == completion.SHELLS["zsh"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_an_interactive_zsh_completes_words(tmp_path: Path) -> None:
    (tmp_path / "asr").write_text(f'#!/bin/sh\nexec {sys.executable} -m asr "$@"\n')
    (tmp_path / "asr").chmod(0o755)
    (tmp_path / ".zshrc").write_text(f"PS1=\n{completion.SHELLS['zsh']}")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        places = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
        }
        os.execvpe("zsh", ["zsh", "-i"], places | {"TERM": "dumb", "PROMPT_EOL_MARK": ""})
    shown = ""
    os.write(terminal, b"asr train recipe=demo attention=i-cl\t")
    while "attention=i-clustered-100 " not in shown:  # the test's time limit ends it otherwise
        shown += os.read(terminal, 65536).decode(errors="replace")
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@pytest.mark.parametrize(
    ("command", "own"), [("train", ""), ("advise", ""), ("compare", "plan"), ("bench", "figure")]
)
def test_only_a_command_with_plans_or_figures_offers_them(command: str, own: str) -> None:
    """`asr train` offered `plan=` and `figure=`, which it refuses; `asr bench` offered no figures."""
    offered = option_values(command, "")
    assert {"plan", "figure"} & set(offered) == ({own} if own else set())
    assert ("optimizer" in offered) == (command != "bench")
    for name in filter(None, [own]):
        assert offered[name] == tuple(configurations(name))


def test_help_tells_how_to_install_the_completion_of_each_shell() -> None:
    assert list(INSTALLING) == list(completion.SHELLS)


@pytest.mark.parametrize("words", [[], ["train", "", "x", "two"], ["train", "", "x", "1", "more"]])
def test_words_without_their_place_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "words", *words]) == 1
    assert capsys.readouterr().err == (
        "asr: asr completion words takes command, second word, word and position\n"
    )
