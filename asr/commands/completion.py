"""`asr completion`: completion of commands, options and values in bash, zsh and fish."""

import ast
import re
import sys
from pathlib import Path

from asr.commands import COMMANDS
from asr.config import config_groups, describe
from asr.config.names import MECHANISM_GROUP, MECHANISM_OPTIONS, MECHANISMS, split_name
from asr.errors import UserError, did_you_mean

# A mechanism, its complete options, and the beginning of a further one.
WITHIN_OPTIONS = re.compile(r"([^,\[]+):((?:\w+=[^:,]*,)*)([\w=]*)$")
# Each script calls `asr completion words …` with the words before the cursor; the last may be incomplete.
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


def main(paths: list[str], overrides: list[str]) -> None:
    """Print the script for a shell.

    Raises:
        UserError: an unknown shell.
    """
    if len(paths) != 1 or overrides or paths[0] not in SHELLS:
        found = " ".join([*paths, *overrides]) or "none"
        known = list(SHELLS)
        raise UserError(f"asr completion takes {'|'.join(known)}, found {found}{did_you_mean(found, known)}")
    print(SHELLS[paths[0]], end="")


def candidates(command: str, second: str, word: str, position: int) -> list[str]:
    """Return the completions of a word.

    Args:
        command: first word after `asr`.
        second: second word, e.g. the recipe of `asr prepare`.
        word: word to complete; may be empty.
        position: index of the word; the command has index 1.
    """
    if position == 1 or (position == 2 and command == "help"):
        words = [*COMMANDS, "help"] if position == 1 else list(COMMANDS)
    elif "=" in word:
        key, _, value = word.partition("=")
        # The opening bracket of a list, if there is one, and the entries before the last.
        head = value[: max(value.rfind(",") + 1, value.startswith("["))]
        values, within = option_values(command, second).get(key, ()), []
        if values == MECHANISMS:
            values += installed_mechanisms() + mechanisms_in(value[len(head) :])
            within = mechanism_options(value)
        words = [f"{key}={x}" for x in within or [head + x for x in values]]
    elif command == "attention":
        words = [*COMMANDS[command].first(), *installed_mechanisms(), *mechanisms_in(word)]
    elif position == 2 and command in COMMANDS and (named := list(COMMANDS[command].first())):
        words = named
    else:
        words = [f"{key}=" for key in option_values(command, second)]
    return [x for x in words if x.startswith(word)]


def installed_mechanisms() -> tuple[str, ...]:
    """Return the names of mechanisms that other packages have installed."""
    # Not importlib.metadata: its import takes as long as the rest of a completion.
    files = (file for place in sys.path for file in Path(place).glob("*.dist-info/entry_points.txt"))
    sections = (
        re.search(rf"\[{MECHANISM_GROUP}\]([^\[]*)", file.read_text(errors="replace")) for file in files
    )
    return tuple(name for part in sections if part for name in re.findall(r"^(\S+)\s*=", part[1], re.M))


def mechanisms_in(text: str) -> tuple[str, ...]:
    """Return the mechanisms in a file, `./nystrom.py:Nystrom-32`, without running its code.

    Args:
        text: text typed so far: the file, a colon, and perhaps the beginning of a class.
    """
    path, colon, _ = text.partition(":")
    classes = _classes(path if colon else "")
    named = (name for name, attributes in classes.items() if attributes.keys() & {"options", "source"})
    return tuple(f"{path}:{name}{_number(classes, name)}" for name in named)


def mechanism_options(value: str) -> list[str]:
    """Return the completions of a value that ends in a mechanism's options: `full,near-25:topk=16,win`."""
    match = WITHIN_OPTIONS.search(value)
    if not match:
        return []
    name = split_name(match[1])[0]
    words = tuple(MECHANISM_OPTIONS.get(name, "").split())
    if not words and name.partition(":")[0].endswith(".py"):
        path, _, class_name = name.partition(":")
        options = _options(_classes(path), class_name)
        words = tuple(f"{key}=" for key, call in options.items() if "letter" not in _keywords(call))
    given = {x.partition("=")[0] for x in match[2].split(",")}
    return [value[: match.start(3)] + x for x in words if x.partition("=")[0] not in given]


def _classes(path: str) -> dict[str, dict[str, ast.expr]]:
    """Return the values of the class attributes in a file, by class; none if it can't be read."""
    try:
        tree = ast.parse(Path(path).read_bytes() if path.endswith(".py") else b"")
    except (OSError, SyntaxError, ValueError):
        return {}
    fields_of: dict[str, dict[str, ast.expr]] = {}
    for node in (x for x in tree.body if isinstance(x, ast.ClassDef)):
        for x in node.body:
            if isinstance(x, ast.Assign | ast.AnnAssign) and x.value:
                targets = x.targets if isinstance(x, ast.Assign) else [x.target]
                names = (name for target in targets for name in ast.walk(target))
                assigned = {name.id: x.value for name in names if isinstance(name, ast.Name)}
                fields_of[node.name] = fields_of.get(node.name, {}) | assigned
    return fields_of


def _options(classes: dict[str, dict[str, ast.expr]], mechanism: str) -> dict[str, ast.Call]:
    """Return the fields of a mechanism's options by name."""
    match classes.get(mechanism, {}).get("options"):
        case ast.Name(id=name):
            return {key: x for key, x in classes.get(name, {}).items() if isinstance(x, ast.Call)}
    return {}


def _keywords(call: ast.Call) -> set[str | None]:
    return {x.arg for x in call.keywords}


def _number(classes: dict[str, dict[str, ast.expr]], mechanism: str) -> str:
    """Return the default of the number in a mechanism's name, `-32`; empty if the class doesn't state it."""
    for call in _options(classes, mechanism).values():
        match call.args:
            case [ast.Constant(value=int(number))] if "letter" in _keywords(call):
                return f"-{number}"
    return ""


def option_values(command: str, second: str) -> dict[str, tuple[str, ...]]:
    """Return the options of a command, groups of configurations first, with the values to offer for each."""
    if command not in COMMANDS:
        return {}
    taken = COMMANDS[command]
    try:
        schema = taken.schema([second] if second else [])
    except UserError:  # no such recipe or action
        return {}
    values_of: dict[str, tuple[str, ...]] = {}
    if taken.trains:
        values_of |= {group: tuple(names) for group, names in sorted(config_groups().items())}
        values_of |= {x.key: x.values for x in describe(COMMANDS["train"].options)}
    values_of |= {x.key: x.values for x in describe(schema)} if schema else {}
    return values_of | ({"folder": ()} if command == "prepare" else {})
