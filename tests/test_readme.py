"""The README matches the code: commands, examples, tables, files and dependencies."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from asr import config
from asr.attention import mechanism_table
from asr.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "recipes").rglob("*.md"))]
README = MARKDOWN[0].read_text()


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.S | re.M)
    return [block for name, block in fenced if name == language]


def asr_commands() -> list[str]:
    text = "\n".join(block for path in MARKDOWN for block in blocks(path.read_text(), "sh"))
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("asr ")]


@pytest.mark.parametrize("line", asr_commands())
def test_the_options_of_commands_exist(line: str) -> None:
    _, name, *words = shlex.split(line.split(" #")[0])
    assert name in COMMANDS
    paths, options = config.split_words(words)
    command = importlib.import_module(f"asr.commands.{name.replace('-', '_')}")
    if hasattr(command, "parse"):
        command.parse(options)
        return
    schema = command.options_schema(paths) if hasattr(command, "options_schema") else command.Options
    elsewhere = "folder=" if name == "prepare" else ()
    config.parse(schema, [option for option in options if not option.startswith(elsewhere)])


def test_python_examples_run() -> None:
    examples = [block for block in blocks(README, "python") if "Recognizer" not in block]
    assert examples
    for example in examples:
        if "transformers_adapter" in example:
            pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
        subprocess.run([sys.executable, "-c", example], check=True, timeout=300)


def test_the_table_of_mechanisms_is_up_to_date() -> None:
    shown = README.split("<!-- mechanisms: asr.attention.mechanism_table() -->\n")[1]
    assert shown.split("<!-- /mechanisms -->")[0].strip() == mechanism_table().strip()


def test_the_files_in_the_tree_exist() -> None:
    tree = blocks(README, "")[0]
    named = re.findall(r"^  (\w+\.py|\w+/)", tree, flags=re.M)
    assert len(named) > 10
    for name in named:
        assert (ROOT / "asr" / name).exists() or (ROOT / "recipes" / name).exists(), name


def test_every_dependency_is_listed() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)\]", project, flags=re.S | re.M)
    assert listed
    for name in re.findall(r'"([\w-]+)', listed.group(1)):
        assert name in README.split("## Dependencies")[1], name
