"""Every option of every command refuses what is outside its range, with one line that names it."""

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator

import asr_recipes
import pytest

import asr
from asr import config
from asr.cli import main
from asr.commands import COMMANDS
from asr.errors import UserError


def schemas() -> list[type]:
    """Return every dataclass with options in the program and the recipes."""
    found: set[type] = set()
    for package in (asr, asr_recipes):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "__main__" in module.name:
                continue
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    found |= (
                        {value} if any("range" in x.metadata for x in dataclasses.fields(value)) else set()
                    )
    return sorted(found, key=lambda schema: (schema.__module__, schema.__qualname__))


SCHEMAS = schemas()


def invalid(schema: type) -> Iterator[tuple[str, str]]:
    """Yield (option, `option=value`) for values outside the range, not finite or of the wrong type."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind = str(hints[field.name])
        allowed = config.accepted(field)
        values: list[object] = []
        if allowed.choices:
            values = ["no-such-choice"]
        elif "int" in kind or "float" in kind:
            step = 1 if "int" in kind else 1e-6 * max(abs(allowed.minimum), 1e-3)
            values = [allowed.minimum - step, allowed.maximum * (1 if "int" in kind else 1.000001) + 1]
            values += ["nan", "inf", "-inf", "1e30", "-1e30", "many", "{a: 1}"]
        elif "bool" in kind:
            values = ["maybe", "nan", "7.5"]
        elif kind == "list[str]":
            values = ["{a: 1}", "[b]"]
        for value in values:
            yield field.name, f"{field.name}={f'[{value}]' if 'list' in kind else value}"


def test_all_schemas_are_found() -> None:
    names = {f"{schema.__module__}.{schema.__qualname__}" for schema in SCHEMAS}
    assert {"asr.training.options.TrainerConfig", "asr.experiment.options.BenchOptions"} <= names
    assert "asr_recipes.copy.options.TaskOptions" in names
    assert sum(len(list(invalid(schema))) for schema in SCHEMAS) > 1000


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: f"{schema.__module__}.{schema.__qualname__}")
def test_values_outside_the_range_are_refused_in_one_line(schema: type) -> None:
    """No numeric option had a range: `trainer.clip=nan` trained a model whose dev loss was NaN."""
    required = [f"{x.name}=full" for x in dataclasses.fields(schema) if x.default == "???"]
    for name, word in invalid(schema):
        with pytest.raises(UserError) as caught:
            config.parse(schema, [*required, word])
        assert name in caught.value.line
        assert "\n" not in str(caught.value)


def test_defaults_are_within_their_range() -> None:
    for schema in SCHEMAS:
        for field in dataclasses.fields(schema):
            default = getattr(schema(), field.name)
            for value in default if isinstance(default, list) else [default]:
                assert value is None or not config.accepted(field).expected(value), (schema, field.name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "trainer.max_steps=-5"],
        ["train", "model.layers=0"],
        ["train", "recipe=copy", "recipe.length=0"],
        ["train", "optimizer.betas=[0.9]"],
        ["train", "features.low_freq_hz=9000"],
        ["train", "data.max_duration_s=0.05"],
        ["train", "trainer.average_best=3"],
        ["train", "trainer.budget=nan"],
        ["decode", "run", "beam.tokens=-5"],
        ["align", "run", "chunk_s=nan"],
        ["decode", "run", "device=tpu"],
        ["decode", "run", "attention=nonsense-3"],
        ["transcribe", "run", "x.wav", "min_confidence=7"],
        ["compare", "attentions=[full]", "steps=-1"],
        ["compare", "attentions=[full]", "budget=nan"],
        ["compare", "attentions=[full]", "trainer.clip=nan"],
        ["advise", "data", "rounds=0"],
        ["bench", "batch=0"],
        ["score", "hyp", "samples=0"],
        ["report", "folder", "audio=-1"],
        ["lm", "train", "order=9"],
        ["export", "run", "format=pickle"],
        ["prepare", "demo", "voices=13"],
    ],
    ids=" ".join,
)
def test_commands_check_options_before_they_read_anything(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert arguments[0] in COMMANDS
    assert main(arguments) == 1
    key = arguments[-1].partition("=")[0].rpartition(".")[2]
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert key in lines[0]
