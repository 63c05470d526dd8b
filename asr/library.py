"""The commands as functions of Python: prepare, train, decode, score and compare."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from asr import config

Options = Mapping[str, Any] | Any  # a mapping, OmegaConf's too, or a dataclass


def prepare(recipe: str | PathLike[str], options: Options = None, /, **keywords: Any) -> Path:
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
    return prepare_recipe(str(recipe), overrides_of(options, keywords))


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
    from omegaconf import OmegaConf

    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True)
    elif is_dataclass(options):
        options = config.to_dict(options)
    return config.as_overrides(config.flat(_plain(options or {})) | config.flat(_plain(keywords)))


def _plain(value: Any) -> Any:
    """Return a value with paths as texts, arrays' numbers as Python's, and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if hasattr(value, "item") else value
