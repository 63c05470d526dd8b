"""Options from YAML files and `key=value` overrides; unknown keys are errors."""

import copy
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import omegaconf
import yaml
from omegaconf import DictConfig, OmegaConf

from asr.config.keys import (
    SEARCH_PATH,
    as_overrides,
    config_groups,
    configurations,
    flat,
    is_file_choice,
    nested,
    search_path,
)
from asr.config.schema import Affects, affecting, check, check_effect, describe, settings, written
from asr.config.values import expectation, literal, read_value
from asr.errors import UserError, did_you_mean
from asr.files import file_digest, file_state, require_file, write_text

Options = TypeVar("Options")
HEADER = re.compile(r"\A(?:#.*\n)*?# *@package +(\S+)")
# libyaml's parser takes a tenth of the time; PyYAML has it in its wheels.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_composed: dict[Any, DictConfig] = {}  # a comparison composes the same groups for every candidate
_structures: dict[Any, DictConfig] = {}  # a copy takes a fifth of the time of reading the annotations

# What OmegaConf raises for a value of another type, or for an integer beyond all floats.
UNFIT = (omegaconf.errors.OmegaConfBaseException, OverflowError)


@typing.overload
def parse(schema: type[Options], overrides: list[str]) -> Options: ...
@typing.overload
def parse(schema: Options, overrides: list[str]) -> Options: ...
def parse(schema: Any, overrides: list[str]) -> Any:
    """Build an options dataclass from `key=value` overrides.

    Args:
        schema: dataclass with defaults, or an object of it, whose values are the defaults.
        overrides: command-line arguments, e.g. `["split=test", "beam.size=50"]`.

    Raises:
        UserError: unknown key, wrong type or missing value.
    """
    kinds = {key: kind for key, kind, *_ in describe(schema)}
    for override in overrides:
        _check_key(override.partition("=")[0], list(kinds))
    return _checked(_updated(_structured(schema), overrides, kinds), overrides)


def _structured(schema: Any, stored: bool = False) -> DictConfig:
    """Return the configuration of a dataclass or an object of it; `stored` options may lack newer ones."""
    key: Any = schema, stored
    if not isinstance(schema, type):  # options have no hash
        key = repr(schema), stored, type(schema), *map(type, vars(schema).values())
    if key not in _structures:
        _structures[key] = OmegaConf.structured(schema)
        for setting in settings(schema() if isinstance(schema, type) else schema) if stored else ():
            if (before := setting.field.metadata.get("before")) is not None:
                OmegaConf.update(_structures[key], setting.key, before)
    return copy.deepcopy(_structures[key])


def _updated(config: DictConfig, overrides: list[str], kinds: Mapping[str, str]) -> DictConfig:
    """Return a configuration with those overrides applied that set an option in `kinds`."""
    _check_values(overrides, kinds)
    for override in overrides:
        key, _, value = override.partition("=")
        if key in kinds:
            try:
                OmegaConf.update(config, key, read_value(value, kinds[key]))
            except (*UNFIT, yaml.YAMLError) as error:
                raise UserError(f"{override}: expected {expectation(kinds[key])}") from error
    return config


def divide(overrides: list[str], own: Any, composed: Any) -> tuple[list[str], list[str]]:
    """Split `key=value` overrides into a command's own options and those that it hands to `compose`.

    Raises:
        UserError: a key in neither schema.
    """
    mine = [key for key, *_ in describe(own)]
    known = [*mine, *(key for key, *_ in describe(composed)), *config_groups(), SEARCH_PATH]
    for override in overrides:
        _check_key(override.partition("=")[0], known)
    taken = [x for x in overrides if x.partition("=")[0] in mine]
    return taken, [x for x in overrides if x not in taken]


def compose(
    schema: type[Options] | Options, name: str, overrides: list[str], values: Mapping[str, Any] | None = None
) -> Options:
    """Build an options dataclass from Hydra's configuration `conf/<name>.yaml` and `key=value` overrides.

    Args:
        schema: dataclass with defaults.
        name: configuration file in `conf/`, without its suffix.
        overrides: config groups (`model=wsj`, or a file: `recipe=./mine.yaml`), single options
            (`model.layers=6`), and `hydra.searchpath=[folder]`, a folder like conf/. Strings need no quotes:
            `attention=i-clustered-25:topk=16,bits=31`.
        values: values by dotted name that replace those of the configuration, but not the overrides.

    Raises:
        UserError: unknown key or group, wrong type or missing value, a name that contradicts its group, or no
            such file or folder.
    """
    from hydra.core.config_store import ConfigStore

    described = tuple(describe(schema))
    kinds = {key: kind for key, kind, *_ in described}
    searched = search_path(overrides)
    groups = config_groups(searched)
    known = [*kinds, *groups, SEARCH_PATH]
    chosen: dict[str, str] = {}  # by the choice as given, as Hydra takes it
    for override in overrides:
        key, _, value = override.partition("=")
        _check_key(key, known)
        if key in groups and is_file_choice(value):
            chosen[override] = f"{key}={_stored(key, value)}"
        elif key in groups:
            _check_choice(key, value, groups[key])
            chosen[override] = override
    # The schema is `described`, because it may be an instance, which has no hash.
    files = tuple(file_state(path) for folder in searched for path in sorted(folder.glob("*/*.yaml")))
    asked = name, tuple(chosen.items()), files, described
    if asked not in _composed:
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)
        _composed[asked] = _grouped(name, chosen, searched)
    config = copy.deepcopy(_composed[asked])
    _check_names(config, chosen, overrides)
    return _checked(_updated(config, [*as_overrides(values or {}), *overrides], kinds), overrides)


def _stored(group: str, file: str) -> str:
    """Make a user's file a configuration of a group, and return its name there.

    A recipe's file sets options of all groups, with or without Hydra's header `# @package _global_`.
    """
    from hydra.core.config_store import ConfigStore

    path = Path(file)
    if not path.is_file():
        inside = path / f"{path.name}.yaml"
        found = f"a folder: use {group}={inside}" if inside.is_file() else "none"
        raise UserError(f"{group}={file}: expected a YAML file, found {found}")
    values = load_yaml(path)
    header = HEADER.search(path.read_text(encoding="utf-8"))
    package = header[1] if header else "_global_" if group == "recipe" else None
    # Another content has another name, because configurations are kept once they have been composed.
    name = f"file_{file_digest(path)}"
    ConfigStore.instance().store(group=group, name=name, node=OmegaConf.create(values), package=package)
    return name


def _grouped(name: str, chosen: Mapping[str, str], searched: list[Path]) -> DictConfig:
    """Return Hydra's configuration with the chosen groups."""
    import hydra
    from hydra.errors import HydraException

    folders = [f"'{folder.absolute()}'" for folder in searched]
    path = [f"{SEARCH_PATH}=[{','.join(folders)}]"] if folders else []
    try:
        with hydra.initialize_config_module("asr_conf", version_base="1.3"):
            config = hydra.compose(name, [*path, *chosen.values()])
            # The recipe's values win over a group chosen here, so the group's are merged again.
            others = [x for x in chosen.values() if not x.startswith("recipe=")]
            own = hydra.compose(name, [*path, *others]) if others else {}
            for group in dict.fromkeys(x.partition("=")[0] for x in others):
                config[group] = OmegaConf.merge(config[group], own[group])
            return config
    except (omegaconf.errors.OmegaConfBaseException, HydraException) as error:
        files = [x for x, taken in chosen.items() if x != taken]
        where = " ".join(files) or f"configuration {name}"
        raise UserError(f"{where}: {_first_line(error)}") from error


def to_dict(options: Any) -> dict[str, Any]:
    """Return an options dataclass as nested dictionaries, lists and scalars."""
    # OmegaConf.to_container(OmegaConf.structured(options)) does the same and takes forty times as long.
    return {field.name: _plain(getattr(options, field.name), field.type) for field in fields(options)}


def _plain(value: Any, kind: Any) -> Any:
    """Return a value without dataclasses and tuples; an integer in an option of type float becomes one."""
    if is_dataclass(value):
        return to_dict(value)
    kinds = typing.get_args(kind) or (kind,)  # of list[float] and float | None, too
    if isinstance(value, dict):
        return {key: _plain(item, kinds[-1]) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, kinds[0]) for item in value]
    return float(value) if float in kinds and type(value) is int else value


def group_overrides(group: str, name: str) -> list[str]:
    """Return the options in `conf/<group>/<name>.yaml` as `key=value` overrides.

    Raises:
        UserError: no such configuration.
    """
    files = configurations(group)
    _check_choice(group, name, list(files))
    return as_overrides(load_yaml(files[name]))


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file with options at its top level.

    Raises:
        OSError: the file can't be read.
        UserError: it is not YAML, or no mapping.
    """
    if path.exists():
        require_file(path, "a YAML file")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: expected YAML, found {_first_line(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected options, found {str(values)[:60]!r}")
    _check_keys(values, path)
    return values


def _check_keys(values: dict[Any, Any], path: Path) -> None:
    """Raise UserError for a key that isn't text: YAML reads `1:`, `on:` and `null:` as other types."""
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{path}: expected names of options, found {key!r}")
        if isinstance(value, dict):
            _check_keys(value, path)


def values_affecting(options: Any, *kinds: Affects) -> dict[str, Any]:
    """Return the options that affect one of these as nested dictionaries, lists and scalars."""
    names = affecting(options, *kinds)
    return nested({name: value for name, value in flat(to_dict(options)).items() if name in names})


@typing.overload
def from_dict(schema: type[Options], values: dict[str, Any], source: str) -> Options: ...
@typing.overload
def from_dict(schema: Options, values: dict[str, Any], source: str) -> Options: ...
def from_dict(schema: Any, values: dict[str, Any], source: str) -> Any:
    """Build an options dataclass from plain data, naming `source` where it doesn't fit the schema."""
    try:
        # Unsafe, as the two are changed: nobody else has them, and copies take longer than the rest.
        config = OmegaConf.unsafe_merge(_structured(schema, stored=True), OmegaConf.create(literal(values)))
        return _checked(config)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except RecursionError:
        raise UserError(f"{source}: expected options, found values that are nested too deeply") from None
    except UNFIT as error:
        kinds = {key: kind for key, kind, *_ in describe(schema)}
        for key, value in flat(values).items():
            if key not in kinds:
                raise UserError(
                    f"{source}: unknown option {key!r}{did_you_mean(key, list(kinds))}"
                ) from error
            if not _fits(schema, key, value):
                raise UserError(f"{source}: {key}={value}: expected {expectation(kinds[key])}") from error
        raise UserError(f"{source}: {_first_line(error)}") from error


def from_stored(schema: Any, values: dict[str, Any], source: str) -> Any:
    """Build an options dataclass from those of a run; options that another version had are ignored."""
    known = [f"{key}." for key, *_ in describe(schema)]
    kept = {key: x for key, x in flat(values).items() if any(name.startswith(f"{key}.") for name in known)}
    return from_dict(schema, nested(kept), source)


def save(options: Any, path: Path) -> None:
    """Write an options dataclass as YAML."""
    write_text(yaml.safe_dump(to_dict(options), sort_keys=False, allow_unicode=True), path)


def _checked(config: Any, overrides: Iterable[str] = ()) -> Any:
    """Return the dataclass of a configuration.

    Only options that a user gives must have an effect: a recipe sets some that certain choices ignore, and a
    newer program reads the options of old runs.
    """
    try:
        options = OmegaConf.to_object(config)
    except omegaconf.errors.MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}=: expected a value, found none") from error
    except omegaconf.errors.InterpolationResolutionError as error:
        # OmegaConf takes any text with ${ for a reference, and reads it as the option's type only here.
        key = str(error.full_key).partition("[")[0]
        kind = next(x.kind for x in describe(OmegaConf.get_type(config)) if x.key == key)
        found = flat(typing.cast(dict[str, Any], OmegaConf.to_container(config)))[key]
        given = re.sub(r"\\+\$\{", "${", written(found))
        raise UserError(f"{key}={given}: expected {expectation(kind)}") from error
    _expand_home(options)
    check(options)
    check_effect(options, {x.partition("=")[0] for x in overrides})
    _check_places(options, overrides)
    return options


def _expand_home(options: Any) -> None:
    """Replace `~` at the beginning of every text: no option but a path has it there."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            _expand_home(value)
        elif isinstance(value, str) and value.startswith("~"):
            setattr(options, field.name, os.path.expanduser(value))
        elif isinstance(value, list) and any(isinstance(x, str) and x.startswith("~") for x in value):
            expanded = [os.path.expanduser(x) if isinstance(x, str) else x for x in value]
            setattr(options, field.name, expanded)


def _check_places(options: Any, overrides: Iterable[str]) -> None:
    """Raise UserError for `run='exp/${name}'`, which would be a folder of that name."""
    for override in overrides:
        key, _, value = override.partition("=")
        if "${" in value and key in affecting(options, "place"):
            raise UserError(f"{override}: expected a value without ${{…}}, which nothing replaces")


def _check_key(key: str, known: list[str]) -> None:
    if key not in known:
        raise UserError(f"unknown option {key!r}{did_you_mean(key, known)}")


def _check_choice(group: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise UserError(f"{group}={name}: no such configuration{did_you_mean(name, known)}")


def _check_names(config: DictConfig, chosen: Iterable[str], overrides: Iterable[str]) -> None:
    """Raise UserError for `loss=lf_mmi loss.name=ctc`: the group's other values belong to its own name."""
    for choice in chosen:
        group = choice.partition("=")[0]
        # A recipe's name may change, as it only places the run folder.
        name = config[group].get("name") if group != "recipe" else None
        for override in overrides:
            if name and override.startswith(f"{group}.name=") and override != f"{group}.name={name}":
                raise UserError(f"{override}: expected {name} with {choice}")


def _check_values(overrides: list[str], kinds: Mapping[str, str]) -> None:
    """Raise UserError if a flag is a number, which OmegaConf takes for true, or a text is null."""
    for override in overrides:
        key, _, value = override.partition("=")
        if kinds.get(key) == "bool" and re.fullmatch(r"[-+]?[\d._]+", value):
            raise UserError(f"{override}: expected true or false")
        if kinds.get(key) == "str" and value == "null":
            raise UserError(f"{override}: expected text; an empty one is written {key}=")


def _fits(schema: Any, key: str, value: Any) -> bool:
    """Return whether an option takes a value."""
    try:
        OmegaConf.update(_structured(schema), key, literal(value))
    except UNFIT:
        return False
    return True


def _first_line(error: Exception) -> str:
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = str(error).strip().splitlines()
    # Hydra writes "In 'recipe/demo': ValidationError raised while composing config:" before the message.
    line = next((x for x in lines if not x.endswith(":")), lines[0])
    named = re.search(r"full_key: (\S+)", str(error))
    key = getattr(error, "full_key", None) or (named[1] if named else "")
    return f"{key}: {line}" if key and key not in line else line
