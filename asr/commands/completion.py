"""`asr completion`: completion of commands, options and values in bash, zsh and fish."""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from asr.errors import UserError, did_you_mean

POSITIONAL = "bash|zsh|fish"
Options = None
# Each calls `asr completion words …` with the words before the cursor, the last one perhaps incomplete.
SHELLS = {
    "bash": """\
_asr() {
    local line=${COMP_LINE:0:COMP_POINT} word candidate
    word=${line##*[[:space:]]}
    local fixed=${word%"${word##*[=:]}"}  # bash itself keeps what precedes = and :
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $candidate == *= ]] && compopt -o nospace
        COMPREPLY+=("${candidate#"$fixed"}")
    done < <(asr completion words "${COMP_WORDS[1]}" "${COMP_WORDS[2]}" "$word" "$COMP_CWORD" 2>/dev/null)
}
complete -o default -F _asr asr
""",
    "zsh": """\
#compdef asr
_asr() {
    local lines=$(asr completion words "${words[2]}" "${words[3]}" "$PREFIX" $((CURRENT - 1)) 2>/dev/null)
    local -a found=(${(f)lines})
    compadd -Q -S '' -- ${(M)found:#*=}
    compadd -Q -- ${found:#*=}
    (( $#found )) || { compset -P '*='; _files }
}
(( $+functions[compdef] )) || { autoload -U compinit && compinit }
compdef _asr asr
""",
    "fish": """\
function __asr_candidates
    set -l before (commandline -opc)
    asr completion words "$before[2]" "$before[3]" (commandline -ct) (count $before) 2>/dev/null
end
complete -c asr -a '(__asr_candidates)'
""",
}
INSTALL = {
    "bash": 'eval "$(asr completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(asr completion zsh)"    in ~/.zshrc',
    "fish": "asr completion fish | source   in ~/.config/fish/config.fish",
}
MECHANISM_OPTIONS = ("attention", "attentions", "evaluate", "baseline")
OPTION_FILES = {"bench": "figure", "compare": "plan"}  # folders of conf/ with options of a command
WITH_TRAINING = ("compare", "advise")  # these take the options of `asr train` as well


def details(paths: list[str]) -> str:
    """Return what `--help` prints below the usage."""
    return "To complete in every new shell:\n  " + "\n  ".join(INSTALL.values())


def main(paths: list[str], options: list[str]) -> None:
    """Print the script for a shell.

    Raises:
        UserError: an unknown shell.
    """
    if len(paths) != 1 or options or paths[0] not in SHELLS:
        found = " ".join([*paths, *options]) or "none"
        raise UserError(
            f"asr completion takes {POSITIONAL}, found {found}{did_you_mean(found, list(SHELLS))}"
        )
    print(SHELLS[paths[0]], end="")


def candidates(commands: Iterable[str], command: str, second: str, word: str, position: int) -> list[str]:
    """Return the completions of a word.

    Args:
        commands: names of all commands.
        command: first word after `asr`.
        second: second word, the recipe of `asr prepare`.
        word: word to complete, perhaps empty.
        position: index of the word; that of the command is 1.
    """
    if position == 1 or (position == 2 and command == "help"):
        found = [*commands, "help"] if position == 1 else list(commands)
    elif "=" in word:
        key, _, value = word.partition("=")
        head = value[: value.rfind(",") + 1]  # the entries of a list that are complete
        found = [f"{key}={head.lstrip('[')}{x}" for x in _values(command, second, key)]
    elif position == 2 and command in ("prepare", "lm", "completion"):
        found = {
            "prepare": sorted(path.parent.name for path in _root("asr_recipes").glob("*/prepare.py")),
            "lm": ["train", "score"],
            "completion": list(SHELLS),
        }[command]
    else:
        found = [f"{key}=" for key in (*_groups(command), *_options(command, second))]
    return [x for x in found if x.startswith(word)]


def _values(command: str, second: str, key: str) -> list[str]:
    if key in MECHANISM_OPTIONS:
        return _mechanisms()
    if key in (groups := _groups(command)):
        return groups[key]
    return list(_options(command, second).get(key, ()))


def _options(command: str, second: str) -> dict[str, tuple[str, ...]]:
    """Return the options of a command with the values that each accepts, if they are listed."""
    module = f"asr.commands.{command.replace('-', '_')}"
    if command == "prepare":
        module = f"asr_recipes.{second}.prepare"
    names = {"lm": f"{(second or 'train').capitalize()}Options"}
    found = dict(_fields(module, names.get(command, "Options"))) if _source(module) else {}
    if command in WITH_TRAINING:
        found |= dict(_fields("asr.training.config", "TrainConfig"))
    return found | ({"folder": ()} if command == "prepare" else {})


def _groups(command: str) -> dict[str, list[str]]:
    """Return the names of the configurations in each group of `conf/`, for commands that take them."""
    own = OPTION_FILES.get(command)
    training = command in ("train", *WITH_TRAINING)
    root = _root("asr_conf")
    return {
        folder.name: sorted(path.stem for path in folder.glob("*.yaml"))
        for folder in sorted(root.iterdir())
        if folder.is_dir()
        and list(folder.glob("*.yaml"))
        and (folder.name == own or (training and folder.name not in OPTION_FILES.values()))
    }


def _mechanisms() -> list[str]:
    """Return the name of every mechanism, with its default size: `full`, `clustered-100`, …"""
    names = []
    for key, row in _read("asr.attention.table", "MECHANISMS").items():
        module, described = _find("asr.attention.table", row.id) or ("", row)
        values = [x for x in described.body if isinstance(x, ast.Assign)]
        found: list[Any] = [x.value for x in values if ast.unparse(x.targets[0]) == "schema"]
        size = ""
        if found and len(found[0].args) > 1:  # else without a number in its name
            option = found[0].args[1]
            option = _read(module, option.id) if isinstance(option, ast.Name) else option
            size = f"-{ast.literal_eval(option.args[1])}"
        names.append(f"{key}{size}")
    return names


# Options are read from the sources: the modules import PyTorch, which takes seconds.


@cache
def _root(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise UserError(f"{package}: expected an installed package, found none")
    return Path(places[0])


@cache
def _source(module: str) -> ast.Module | None:
    head, *rest = module.split(".")
    path = _root(head).joinpath(*rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def _find(module: str, name: str) -> tuple[str, Any] | None:
    """Return the module that defines a name, and its class or value; None outside this program."""
    if not module.startswith(("asr", "asr_recipes")) or (source := _source(module)) is None:
        return None
    for node in source.body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                return module, node
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return _find(module, value.id) if isinstance(value, ast.Name) else (module, value)
            case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name and value:
                return module, value
            case ast.ImportFrom(module=str(place), names=names, level=level):
                for alias in names:
                    if (alias.asname or alias.name) == name:
                        parents = module.split(".")[:-level] if level else []
                        return _find(".".join([*parents, place]), alias.name)
    return None


def _read(module: str, name: str) -> Any:
    """Return a value's node; of a dictionary, the nodes by their keys."""
    found = _find(module, name)
    value = found[1] if found else None
    if isinstance(value, ast.Dict):
        return {ast.literal_eval(key): x for key, x in zip(value.keys, value.values, strict=True) if key}
    return value


def _fields(module: str, name: str, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the options of a dataclass with their choices, those of its bases and nested ones included."""
    found = _find(module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return
    module, node = found
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _fields(module, base.id, prefix)
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        key = prefix + item.target.id
        kind = item.annotation.id if isinstance(item.annotation, ast.Name) else ""
        inner = _find(module, kind) if kind else None
        if inner and isinstance(inner[1], ast.ClassDef):
            yield from _fields(module, kind, f"{key}.")
        else:
            yield key, _choices(module, item.value)


def _choices(module: str, value: ast.expr | None) -> tuple[str, ...]:
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == "choices":
            named = keyword.value.id if isinstance(keyword.value, ast.Name) else ""
            found = _read(module, named) if named else keyword.value
            try:
                return tuple(
                    filter(None, map(str, found if isinstance(found, dict) else ast.literal_eval(found)))
                )
            except (ValueError, TypeError):
                return ()  # computed
    if isinstance(value, ast.Call) and value.args:
        default = value.args[0]
        if isinstance(default, ast.Constant) and isinstance(default.value, bool):
            return ("true", "false")
    return ()
