"""NIST's global mapping rules (GLM): what may be written differently is made equal before scoring.

The rules and the steps around them are those of rfilter1 and csrfilt in NIST's scoring toolkit SCTK
(GLMRules.txt, V. 2.2), so that the filtered text is the same.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from asr.errors import UserError
from asr.text.files import read_lines

Side = Literal["reference", "hypothesis"]
# What `INPUT_DEPENDENT_APPLICATION` is matched against: the format and the purpose of the text.
NAMES: dict[Side, tuple[str, str]] = {"reference": ("stm", "ref"), "hypothesis": ("ctm", "hyp")}
TRUE = ("t", "true", "yes")
NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class Rule:
    """`pattern => output / left __ right`, all literal text, blanks included."""

    pattern: str
    output: str
    left: str = ""
    right: str = ""


@dataclass(frozen=True)
class Glm:
    """A set of rules, applied from left to right; at each place the first that fits is taken.

    >>> glm = Glm([Rule("OKAY", "O. K.", " ", " "), Rule("UH", "%HESITATION", " ", " ")])
    >>> glm.filter("okay (uh) well-known ba-")
    'O. K. (%HESITATION) WELL KNOWN BA-'
    """

    rules: list[Rule]
    case_sensitive: bool = False
    copy_unmatched: bool = True

    def filter(self, text: str) -> str:
        """Return the text in upper case, mapped, hyphenated words split, optional words one by one.

        Raises:
            ValueError: parentheses that don't pair.
        """
        spaced = re.sub(r"\)", " )", re.sub(r"\(", "( ", text.upper()))
        if _unpaired(spaced):
            raise ValueError(f"expected (optional) words in pairs of parentheses, found {text!r}")
        mapped = self.apply(f" {' '.join(spaced.split())} ")
        mapped = re.sub(r"([^( ])-(?=[^) ])", r"\1 ", mapped)
        mapped = _each_optional(mapped)
        return " ".join(re.sub(r"\s+\)", ")", re.sub(r"\(\s+", "(", mapped)).split())

    def apply(self, text: str) -> str:
        """Return the text with the rules applied once; contexts are looked up in the given text."""
        source = text if self.case_sensitive else text.upper()
        mapped: list[str] = []
        position = 0
        while position < len(source):
            rules, fitting = self._by_first_character.get(source[position], ([], NEVER))
            match = fitting.match(source, position)
            if match:
                mapped.append(rules[match.lastindex - 1].output)  # type: ignore[operator]
                position = match.end()
                continue
            if self.copy_unmatched:
                mapped.append(text[position])
            position += 1
        return "".join(mapped)

    @cached_property
    def _by_first_character(self) -> dict[str, tuple[list[Rule], re.Pattern[str]]]:
        """Rules with the expression of which group i fits where rule i does, the first one first."""
        index: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if rule.pattern:
                first = rule.pattern[0]
                index.setdefault(first if self.case_sensitive else first.upper(), []).append(rule)
        return {
            first: (rules, re.compile("|".join(map(self._expression, rules))))
            for first, rules in index.items()
        }

    def _expression(self, rule: Rule) -> str:
        pattern, left, right = rule.pattern, rule.left, rule.right
        if not self.case_sensitive:
            pattern, left, right = pattern.upper(), left.upper(), right.upper()
        return f"({re.escape(pattern)})(?<={re.escape(left + pattern)})(?={re.escape(right)})"


def read_glm(path: str | Path, side: Side) -> Glm:
    """Read the rules that apply to references, or to hypotheses.

    A rule after `;; INPUT_DEPENDENT_APPLICATION = "regexp"` applies where the regular expression matches
    stm or ref for references, ctm or hyp for hypotheses.

    Raises:
        UserError: no such file, other bytes than UTF-8, a line without an arrow, another format than
            NIST1 (as file:line).
    """
    rules: list[Rule] = []
    switches = {"case_sensitive": True, "copy_no_hit": True}
    comment = ""
    applies = True
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        if number == 1:
            comment = (line.split() or [""])[0]
        section = re.match(r';;\s+INPUT_DEPENDENT_APPLICATION\s*=\s*"([^"]*)"', line)
        if section:
            applies = any(re.search(section[1].lower(), name) for name in NAMES[side])
        if number == 1 or not applies or (comment and line.startswith(comment)):
            continue
        if line.startswith("*"):
            _read_switch(line, switches, where)
            continue
        content = line.partition(comment)[0] if comment else line
        if content.strip():
            rules.append(parse_rule(content.rstrip(), where))
    return Glm(rules, switches["case_sensitive"], switches["copy_no_hit"])


def parse_rule(line: str, where: str) -> Rule:
    """Return the rule of a line without comment; `where` is for messages."""
    before, arrow, after = line.partition("=>")
    if not arrow:
        raise UserError(f"{where}: expected a rule `A => B / C __ D`, found {line.strip()[:60]!r}")
    context = ""
    slash = after.rfind("/")
    # The last slash begins the context unless it stands before `] … [`, as rfilter1 has it: an output
    # with alternatives needs a context after it.
    if slash >= 0 and not _within_brackets(after[slash:]):
        after, context = after[:slash], after[slash + 1 :]
    left, slot, right = context.partition("_")
    return Rule(
        _unbracketed(before),
        _unbracketed(after),
        _unbracketed(left) if slot else "",
        _unbracketed(right.lstrip("_")) if slot else "",
    )


def _within_brackets(rest: str) -> bool:
    closing, opening = rest.find("]"), rest.find("[")
    return closing < opening


def _unbracketed(text: str) -> str:
    text = text.strip()
    quoted = len(text) > 1 and text[0] + text[-1] in ("[]", '""')
    return text[1:-1] if quoted else text


def _read_switch(line: str, switches: dict[str, bool], where: str) -> None:
    value = re.search(r"\"([^\"']*)\"|'([^\"']*)'", line)
    if value is None:
        raise UserError(f"{where}: expected a quoted value, found {line.strip()!r}")
    content = (value[1] or value[2] or "").lower()
    if "FORMAT" in line.upper() and content != "nist1":
        raise UserError(f"{where}: expected rules of the format NIST1, found {content!r}")
    for name in switches:
        if name in line.lower():
            switches[name] = content in TRUE


def _unpaired(spaced: str) -> bool:
    depth = 0
    for character in spaced:
        depth += (character == "(") - (character == ")")
        if depth not in (0, 1):
            return True
    return depth != 0


def _each_optional(text: str) -> str:
    """Turn `( a b )` into `( a ) ( b )`: each word may be missing for itself."""
    several = re.compile(r"(\(\s+[^()\s]+\s+)([^()\s]+)")
    while several.search(text):
        text = several.sub(r"\1) ( \2", text, count=1)
    return text
