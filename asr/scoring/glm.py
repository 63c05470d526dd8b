"""NIST's global mapping rules (GLM), which normalise spelling variants before scoring.

The filter gives the same text as rfilter1 and csrfilt in NIST's scoring toolkit SCTK (GLMRules.txt, V. 2.2).
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from asr.errors import UserError
from asr.text.files import read_lines

Side = Literal["reference", "hypothesis"]
# What `INPUT_DEPENDENT_APPLICATION` is matched against: the format and the role of the text.
NAMES: dict[Side, tuple[str, str]] = {"reference": ("stm", "ref"), "hypothesis": ("ctm", "hyp")}


@dataclass(frozen=True)
class Rule:
    """`pattern => output / left __ right`; all fields are literal text, including spaces."""

    pattern: str
    output: str
    left: str = ""
    right: str = ""


@dataclass(frozen=True)
class Glm:
    """A list of rules, applied from left to right; at each position the first matching rule wins.

    >>> glm = Glm([Rule("OKAY", "O. K.", " ", " "), Rule("UH", "%HESITATION", " ", " ")])
    >>> glm.filter("okay (uh) well-known ba-")
    'O. K. (%HESITATION) WELL KNOWN BA-'
    """

    rules: list[Rule]
    case_sensitive: bool = False
    copy_unmatched: bool = True

    def filter(self, text: str) -> str:
        """Return the text upper-cased and mapped, with hyphenated words and optional groups split into words.

        Raises:
            ValueError: parentheses are unbalanced or nested.
        """
        if not re.fullmatch(r"[^()]*(\([^()]*\)[^()]*)*", text):
            raise ValueError(f"expected (optional) words in balanced parentheses, found {text!r}")
        spaced = text.upper().replace("(", "( ").replace(")", " )")
        mapped = self.apply(f" {' '.join(spaced.split())} ")
        mapped = re.sub(r"([^( ])-(?=[^) ])", r"\1 ", mapped)
        mapped = _each_optional(mapped)
        return " ".join(re.sub(r"\s+\)", ")", re.sub(r"\(\s+", "(", mapped)).split())

    def apply(self, text: str) -> str:
        """Return the text with the rules applied once; contexts are matched against the input text."""
        source = text if self.case_sensitive else text.upper()
        mapped: list[str] = []
        position = 0
        while position < len(source):
            rules, fitting = self._by_first_character.get(source[position], ([], None))
            match = fitting and fitting.match(source, position)
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
        """Rules by first character, in order, with an expression whose i-th group matches the i-th rule."""
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
    """Read the rules that apply to references, or those that apply to hypotheses.

    Rules after `;; INPUT_DEPENDENT_APPLICATION = "regexp"` apply if the regular expression matches stm or
    ref (for references), or ctm or hyp (for hypotheses).

    Raises:
        UserError: the file is missing or not UTF-8, its format is not NIST1, or a rule has no arrow (named
            as file:line).
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
            try:
                applies = any(re.search(section[1].lower(), name) for name in NAMES[side])
            except re.error as error:
                raise UserError(
                    f"{where}: expected a regular expression, found {section[1]!r} ({error})"
                ) from None
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
    """Parse a line without comment; `where` names its place in messages."""
    before, arrow, after = line.partition("=>")
    if not arrow:
        raise UserError(f"{where}: expected a rule `A => B / C __ D`, found {line.strip()[:60]!r}")
    context = ""
    slash = after.rfind("/")
    # As in rfilter1, the last slash starts the context unless it is inside brackets: an output with
    # alternatives needs a context after it.
    if slash >= 0 and after.find("]", slash) >= after.find("[", slash):
        after, context = after[:slash], after[slash + 1 :]
    left, slot, right = context.partition("_")
    return Rule(
        _unbracketed(before),
        _unbracketed(after),
        _unbracketed(left) if slot else "",
        _unbracketed(right.lstrip("_")),
    )


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
        raise UserError(f"{where}: expected rules in the format NIST1, found {content!r}")
    for name in switches:
        if name in line.lower():
            switches[name] = content in ("t", "true", "yes")


def _each_optional(text: str) -> str:
    """Turn `( a b )` into `( a ) ( b )`, so that each word is optional on its own."""
    several = re.compile(r"(\(\s+[^()\s]+\s+)([^()\s]+)")
    while several.search(text):
        text = several.sub(r"\1) ( \2", text, count=1)
    return text
