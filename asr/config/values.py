"""Values of options as users write them: lists with or without brackets, and descriptions of each type."""

import itertools
import re
from typing import Any

import yaml

REFERENCE = "${"  # begins the name of another option in OmegaConf
WITH_OPTIONS = re.compile(r"[^=]*:\w+=")  # the start of `i-clustered-100:topk=32`
OPTION = re.compile(r"\w+=[^:=]*")
RUN = re.compile(r"[^*,]+\*[1-9]\d{0,3}")  # a part of a name that ends in a number of layers
FACTOR = re.compile(r"\d+(\*\d*)?")  # a part of a schedule of frame rates
# Reads all values as text, as typed: other loaders read `on` as true.
LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
ANY: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


def read_value(text: str, kind: str) -> Any:
    """Return a typed value as text, None, or a list of texts, which OmegaConf converts.

    Args:
        text: value as typed; a list may lack its brackets, because shells such as zsh expand them. Entries
            in quotes stay apart, others may be parts of one; see `join_options`.
        kind: type of the option, as from `asr.config.describe`; `Any`: any YAML value.

    Raises:
        YAMLError: the text in brackets isn't a list.

    Example:
        >>> read_value("full,lsh-4:chunk=16,buckets=8", "list[str]"), read_value("0,1", "list[int]")
        (['full', 'lsh-4:chunk=16,buckets=8'], ['0', '1'])
        >>> read_value("[1,2*]", "list[str]"), read_value("[1,'2*']", "list[str]")
        (['1,2*'], ['1', '2*'])
        >>> read_value("full frames=1,2", "list[Any]"), read_value("[{attention: full}, lsh-4]", "list[Any]")
        (['full frames=1,2'], [{'attention': 'full'}, 'lsh-4'])
    """
    if kind == "Any":
        return yaml.load(text, ANY)
    if not kind.startswith("list["):
        return None if "None" in kind and text in ("", "null") else text
    if kind.startswith("list[str]") and not text.startswith("["):
        return join_options([entry.strip() for entry in text.split(",")] if text else [])
    bracketed = text if text.startswith("[") else f"[{text}]"
    value = yaml.load(bracketed, ANY if kind.startswith("list[Any") else LOADER)
    names = kind.startswith(("list[str]", "list[Any")) and isinstance(value, list)
    if names and all(isinstance(x, str | int) for x in value):
        value = list(map(str, value))
        quoted = [x.style in ("'", '"') for x in yaml.compose(bracketed, LOADER).value]
        runs = itertools.groupby(zip(quoted, value, strict=True), lambda x: x[0])
        parts = [(apart, [entry for _, entry in run]) for apart, run in runs]
        return [x for apart, entries in parts for x in (entries if apart else join_options(entries))]
    return value


def given_value(value: Any, kind: str) -> Any:
    """Return the user's value: text is read as in `read_value`; a single entry becomes a list if needed.

    Raises:
        YAMLError: the text in brackets isn't a list.

    Example:
        >>> given_value("0,1", "list[int]"), given_value(7, "list[int]"), given_value(7, "int")
        (['0', '1'], [7], 7)
    """
    if isinstance(value, str):
        return read_value(value, kind)
    alone = kind.startswith("list[") and not isinstance(value, list | dict | None)
    return [value] if alone else value


def literal(value: Any) -> Any:
    """Escape a value's texts for OmegaConf, which would replace `${name}` by another option's value.

    Args:
        value: text, or lists and dictionaries of them; other values are kept.

    Example:
        >>> literal({"text": ["it costs ${5}"]})
        {'text': ['it costs \\\\${5}']}
    """
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [literal(item) for item in value]
    # OmegaConf reads \\ as \ only before ${.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def join_options(entries: list[str]) -> list[str]:
    """Rejoin entries that are further options or layers of a mechanism's name.

    An entry `key=value` continues the entry before it if that is a name with options, `name:key=value`.
    Without such a name before it, `key=value` is an option of a command and stays apart. An entry
    `name*layers` continues a similar entry before it; quotes separate two such names. Numbers are a schedule
    of frame rates if one of them has a `*`, which means nothing in a list of single rates.

    Example:
        >>> join_options(["i-clustered-100:topk=32", "bits=63", "full"])
        ['i-clustered-100:topk=32,bits=63', 'full']
        >>> join_options(["full", "full*3", "lsh-1:chunk=16", "bits=8*9"])
        ['full', 'full*3,lsh-1:chunk=16,bits=8*9']
        >>> join_options(["full*3,local-4*9", "full*6,local-4*6"])
        ['full*3,local-4*9', 'full*6,local-4*6']
        >>> join_options(["checkpoint=best", "jobs=2"])
        ['checkpoint=best', 'jobs=2']
        >>> join_options(["1", "2", "2*"]), join_options(["1", "2"]), join_options(["1", "1,2*"])
        (['1,2,2*'], ['1', '2'], ['1', '1,2*'])
        >>> join_options(["near-25 frames=1", "2*", "full"])
        ['near-25 frames=1,2*', 'full']
    """
    parts: list[str] = []
    for are_factors, run in itertools.groupby(entries, lambda x: bool(FACTOR.fullmatch(x))):
        same = list(run)
        if are_factors and parts and re.search(r" frames=\d+(\*\d*)?$", parts[-1]):
            parts[-1] = ",".join([parts[-1], *same])
        else:
            parts += [",".join(same)] if are_factors and any("*" in x for x in same) else same
    names: list[list[str]] = []  # parts of each name
    for entry in parts:
        if names and WITH_OPTIONS.match(names[-1][0]) and OPTION.fullmatch(entry):
            names[-1].append(entry)
        else:
            names.append([entry])
    whole: list[list[str]] = []
    for name in names:
        if whole and RUN.fullmatch(whole[-1][-1]) and RUN.fullmatch(name[-1]):
            whole[-1] += name
        else:
            whole.append(name)
    return [",".join(name) for name in whole]


def expectation(kind: str) -> str:
    """Describe the values that an option accepts, by its type.

    Example:
        >>> expectation("int ≥ 1"), expectation("float | None"), expectation("list[int] ≥ 1")
        ('a whole number', 'a number or null', 'a list of whole numbers, e.g. 1,2')
    """
    if entries := re.match(r"list\[(\w+)", kind):
        inner = KINDS.get(entries[1], "text").removeprefix("a ")
        if entries[1] == "Any":
            return 'a list, entries with brackets in quotes, e.g. ["a b=[1,2]",c]'
        if inner == "text":
            return "a list, e.g. a,b"
        return f"a list of {inner}s, e.g. 1,2" if inner.endswith("number") else f"a list of {inner}"
    name = KINDS.get(kind.split()[0], kind)
    return f"{name} or null" if "None" in kind else name
