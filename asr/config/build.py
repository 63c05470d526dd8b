"""Builds options dataclasses from given values, YAML files and stored data; OmegaConf checks the types."""

import copy
import os
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import omegaconf
import yaml
from omegaconf import DictConfig, OmegaConf, read_write

from asr.config.files import layers
from asr.config.keys import CONFIGS, Given, attribute, by_key, config_groups, flat, nested, search_path
from asr.config.schema import Affects, affecting, check, check_effect, describe, settings, written
from asr.config.values import REFERENCE, expectation, given_value, literal
from asr.errors import UserError, did_you_mean
from asr.files import write_text

Options = TypeVar("Options")
_structures: dict[Any, DictConfig] = {}  # copying one takes a fifth of the time of reading the annotations

# Raised by OmegaConf for a value of another type, or for an integer beyond the range of floats.
UNFIT = (omegaconf.errors.OmegaConfBaseException, OverflowError)


@typing.overload
def parse(schema: type[Options], given: Given) -> Options: ...
@typing.overload
def parse(schema: Options, given: Given) -> Options: ...
def parse(schema: Any, given: Given) -> Any:
    """Build an options dataclass from the user's options.

    Args:
        schema: dataclass with defaults, or an object of it, whose values are the defaults.
        given: options by dotted key, `{"split": "test", "beam.size": 50}`, or as on the command line,
            `["split=test", "beam.size=50"]`. Text is read by the option's type; see `read_value`.

    Raises:
        UserError: unknown key, wrong type or missing value.
    """
    values = by_key(given)
    return _checked(_merged(_structured(schema), values, _kinds(schema), read=True), values)


def divide(given: Given, command: Any, composed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of a command (`command`) and those for `compose` (`composed`); see `parse`.

    Raises:
        UserError: a key in neither schema.
    """
    values, mine = by_key(given), _kinds(command)
    known = [*mine, *_kinds(composed), *config_groups(), CONFIGS]
    for key in values:
        _check_key(key, known)
    taken = {key: value for key, value in values.items() if key in mine}
    return taken, {key: value for key, value in values.items() if key not in mine}


def compose(
    schema: type[Options] | Options, name: str, given: Given, values: Mapping[str, Any] | None = None
) -> Options:
    """Build an options dataclass from the configurations in conf/, the user's files and given options.

    Later sources win:

    1. defaults of the dataclass;
    2. one configuration of each group: the given one, else the recipe's, else the one in `conf/<name>.yaml`;
    3. the recipe's options, except for given groups: `model=wsj` is the same model in every recipe;
    4. `values`;
    5. given options.

    Args:
        schema: dataclass with defaults.
        name: configuration file in `conf/`, without its suffix.
        given: config groups (`model=wsj`, or a file: `recipe=./mine.yaml`), single options
            (`model.layers=6`), and `configs=[folder]`, a folder like conf/; as in `parse`.
        values: values by dotted name that replace those of the configurations.

    Raises:
        UserError: unknown key or group, wrong type, missing value, a name that contradicts its group, or a
            missing file or folder.
    """
    options, kinds = by_key(given), _kinds(schema)
    searched = search_path(options)
    groups = config_groups(searched)
    for key in options:
        _check_key(key, [*kinds, *groups, CONFIGS])
    chosen = {key: options.pop(key) for key in groups if key in options}
    options.pop(CONFIGS, None)
    config = _structured(schema)
    for layer in layers(name, chosen, searched):
        config = _merged(config, flat(layer.values), kinds, layer.source)
    _check_names(config, chosen, options)
    config = _merged(config, values or {}, kinds)
    return _checked(_merged(config, options, kinds, read=True), options)


def to_dict(options: Any) -> dict[str, Any]:
    """Return an options dataclass as nested dictionaries, lists and scalars."""
    # OmegaConf.to_container(OmegaConf.structured(options)) gives the same, but takes forty times as long.
    return {field.name: _plain(getattr(options, field.name), field.type) for field in fields(options)}


def _plain(value: Any, kind: Any) -> Any:
    """Return a value without dataclasses and tuples; an integer becomes a float if the option's type is."""
    if is_dataclass(value):
        return to_dict(value)
    kinds = typing.get_args(kind) or (kind,)  # list[float] and float | None, too
    if isinstance(value, dict):
        return {key: _plain(item, kinds[-1]) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, kinds[0]) for item in value]
    return float(value) if float in kinds and type(value) is int else value


def values_affecting(options: Any, *kinds: Affects) -> dict[str, Any]:
    """Return the options that affect one of `kinds`, as nested dictionaries, lists and scalars."""
    names = affecting(options, *kinds)
    return nested({name: value for name, value in flat(to_dict(options)).items() if name in names})


@typing.overload
def from_dict(schema: type[Options], values: dict[str, Any], source: str) -> Options: ...
@typing.overload
def from_dict(schema: Options, values: dict[str, Any], source: str) -> Options: ...
def from_dict(schema: Any, values: dict[str, Any], source: str) -> Any:
    """Build an options dataclass from plain data; errors name `source`."""
    try:
        kinds = _kinds(schema)
        config = _merged(_structured(schema, stored=True), flat(values, whole=kinds), kinds, source)
    except RecursionError:
        raise UserError(f"{source}: expected options, found values that are nested too deeply") from None
    try:
        return _checked(config)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def from_stored(schema: Any, values: dict[str, Any], source: str) -> Any:
    """Build an options dataclass from a run's options; those in `lost` are ignored."""
    gone = lost(schema, values)
    kept = {key: x for key, x in flat(values, whole=_kinds(schema)).items() if key not in gone}
    return from_dict(schema, nested(kept), source)


def lost(schema: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options, by dotted name, that this version lacks."""
    kinds = _kinds(schema)
    known = [f"{key}." for key in kinds]
    every = flat(values, whole=kinds)
    return {key: x for key, x in every.items() if not any(name.startswith(f"{key}.") for name in known)}


def save(options: Any, path: typing.Any) -> None:
    """Write an options dataclass as YAML."""
    write_text(yaml.safe_dump(to_dict(options), sort_keys=False, allow_unicode=True), path)


def _kinds(schema: Any) -> dict[str, str]:
    """Return the type of each option by dotted key."""
    return {x.key: x.kind for x in describe(schema)}


def _structured(schema: Any, stored: bool = False) -> DictConfig:
    """Return the configuration of a dataclass or an object of it; `stored` options may lack newer ones."""
    key: Any = schema, stored
    if not isinstance(schema, type):  # objects have no hash
        key = repr(schema), stored, type(schema), *map(type, vars(schema).values())
    if key not in _structures:
        _structures[key] = OmegaConf.structured(schema)
        for setting in settings(schema() if isinstance(schema, type) else schema) if stored else ():
            if (before := setting.field.metadata.get("before")) is not None:
                OmegaConf.update(_structures[key], setting.key, before)
    return copy.deepcopy(_structures[key])


def _merged(
    config: DictConfig,
    values: Mapping[str, Any],
    kinds: Mapping[str, str],
    source: str = "",
    read: bool = False,
) -> DictConfig:
    """Return a configuration with some values replaced.

    Args:
        config: configuration; may be changed.
        values: new values by dotted key.
        kinds: type of each option.
        source: source of the values, for errors; empty: the user, who knows it.
        read: whether text is read by the option's type, as on a command line.

    Raises:
        UserError: an unknown key, or a value of another type.
    """
    where = f"{source}: " if source else ""
    options = {}
    for key, value in values.items():
        if key not in kinds:
            raise UserError(f"{where}unknown option {key!r}{_near(key, list(kinds))}")
        if read:
            _check_value(key, value, kinds[key])
        try:
            options[key] = given_value(value, kinds[key]) if read else value
        except yaml.YAMLError as error:
            raise _misfit(key, value, kinds[key], where) from error
        if REFERENCE in str(value) and not kinds[key].startswith(("str", "list[str", "list[Any")):
            raise _misfit(key, value, kinds[key], where)
    try:
        # Unsafe means that both may be changed; nobody else uses them, and copies would take longest.
        merged = OmegaConf.unsafe_merge(
            config,
            OmegaConf.create(literal(nested({attribute(key): value for key, value in options.items()}))),
        )
    except UNFIT as error:
        for key, value in options.items():
            if not _fits(config, key, value):
                raise _misfit(key, values[key], kinds[key], where) from error
        raise UserError(f"{where}{str(error).splitlines()[0]}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _misfit(key: str, value: Any, kind: str, where: str) -> UserError:
    return UserError(f"{where}{key}={written(value)}: expected {expectation(kind)}")


def _fits(config: DictConfig, key: str, value: Any) -> bool:
    """Return whether an option takes a value."""
    try:
        with read_write(config):  # a frozen dataclass has a read-only configuration
            OmegaConf.update(config, attribute(key), literal(value))
    except UNFIT:
        return False
    return True


def _checked(config: DictConfig, given: Mapping[str, Any] | None = None) -> Any:
    """Return the dataclass of a configuration.

    Only the user's options must have an effect: recipes set options that certain choices ignore, and newer
    programs read the options of old runs.
    """
    try:
        options = OmegaConf.to_object(config)
    except omegaconf.errors.MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}=: expected a value, found none") from error
    _expand_home(options)
    check(options)
    check_effect(options, given or {})
    _check_places(options, given or {})
    return options


def _expand_home(options: Any) -> None:
    """Replace `~` at the beginning of every text: only paths begin with it."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            _expand_home(value)
        elif isinstance(value, str) and value.startswith("~"):
            setattr(options, field.name, os.path.expanduser(value))
        elif isinstance(value, list) and any(isinstance(x, str) and x.startswith("~") for x in value):
            expanded = [os.path.expanduser(x) if isinstance(x, str) else x for x in value]
            setattr(options, field.name, expanded)


def _check_places(options: Any, given: Mapping[str, Any]) -> None:
    """Raise UserError for `run='exp/${name}'`, which would create a folder with this very name."""
    for key, value in given.items():
        if REFERENCE in str(value) and key in affecting(options, "place"):
            raise UserError(
                f"{key}={written(value)}: expected a value without ${{…}}, which nothing replaces"
            )


def _check_key(key: str, known: Collection[str]) -> None:
    if key not in known:
        raise UserError(f"unknown option {key!r}{_near(key, list(known))}")


def _near(key: str, known: list[str]) -> str:
    """Return the nearest known key in brackets, or some of the keys of a group without a value of its own."""
    inside = [x for x in known if x.startswith(f"{key}.")]
    return f" (a group: {', '.join(inside[:3])}, …)" if len(inside) > 3 else did_you_mean(key, known)


def _check_names(config: DictConfig, chosen: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise UserError for `loss=lf_mmi loss.name=ctc`: the other values of loss=lf_mmi belong to its name."""
    for group, choice in chosen.items():
        # A recipe's name may change, as it only places the run folder.
        name = config[group].get("name") if group != "recipe" else None
        other = given.get(f"{group}.name", name)
        if name and other != name:
            raise UserError(f"{group}.name={other}: expected {name} with {group}={choice}")


def _check_value(key: str, value: Any, kind: str) -> None:
    """Raise UserError if a flag is a number, which OmegaConf converts to true, or a text is null."""
    if kind == "bool" and not isinstance(value, bool) and re.fullmatch(r"[-+]?[\d._]+", str(value)):
        raise UserError(f"{key}={written(value)}: expected true or false")
    if kind == "str" and value in (None, "null"):
        raise UserError(f"{key}=null: expected text; an empty one is written {key}=")
