"""`asr attention`: list attention mechanisms, describe one, or check one of your own."""

import re
from collections.abc import Sequence

from asr import config
from asr.attention import own
from asr.attention.checks import run_checks
from asr.attention.spec import allowed_values, number, pattern
from asr.attention.table import MECHANISMS, exchange, given_name, mechanism_class
from asr.config.names import split_name
from asr.console import Column, Table, open_console, progress
from asr.errors import UserError, did_you_mean

CHECK = "check"
LINK = re.compile(r"\[(.*?)\]\((.*?)\)")  # in Markdown


def main(paths: list[str], overrides: list[str]) -> None:
    """List mechanisms, describe the named ones, or check them.

    Raises:
        UserError: an unknown mechanism, code that can't be loaded, or a check that fails.
    """
    names = [*paths, *overrides]
    if names[:1] != [CHECK]:
        open_console().print(describe(names))
        return
    if not names[1:]:
        raise UserError(f"asr attention {CHECK} takes mechanisms, e.g. ./nystrom.py:Nystrom-32, found none")
    for name in names[1:]:
        check(name)


def describe(names: Sequence[str]) -> Table:
    """Return a table of all mechanisms, or of the options of the named ones."""
    return _options([_mechanism(name) for name in names]) if names else _overview()


def check(name: str) -> None:
    """Run the checks that every mechanism must pass; print those that fail, or that all pass.

    Raises:
        UserError: an unknown mechanism, code that can't be loaded, or a check that fails.
    """
    canonical = given_name(name)
    with progress() as bars:
        task = bars.add_task(f"checking {canonical}", total=None)
        outcomes = []
        for outcome in run_checks(canonical):
            outcomes.append(outcome)
            bars.update(task, description=f"{outcome.name}: {outcome.title}")
    failed = [(x.name, x.title, x.failure) for x in outcomes if x.failure]
    if failed:
        open_console().print(Table.of("", ("attention", "expected", "found"), failed, numbers=False))
        raise UserError(f"{canonical}: {len(failed)} of {len(outcomes)} checks fail")
    names = list(dict.fromkeys(x.name for x in outcomes))
    print(f"{canonical}: passes {len(outcomes)} checks as {', '.join(names)}")


def _mechanism(name: str) -> str:
    """Return the mechanism that a name stands for; number and options may be missing."""
    mechanism = split_name(own.load(name))[0]
    if ":" not in mechanism and mechanism not in {*MECHANISMS, *own.entry_points()}:
        raise UserError(f"unknown attention {name!r}{did_you_mean(mechanism, [*MECHANISMS, CHECK])}")
    mechanism_class(mechanism)  # raises UserError if it doesn't exist
    return mechanism


def _overview() -> Table:
    rows = [
        (
            pattern(key, cls.options),
            cls.family,
            exchange(key),
            cls.time,
            cls.memory,
            LINK.sub(r"\1", cls.source),  # the table would cut addresses; a single mechanism's are shown
        )
        for key, cls in MECHANISMS.items()
    ]
    for key, entry in own.entry_points().items():
        kind = "installed, but the name is taken" if key in MECHANISMS else "installed"
        rows.append((key, kind, "", "", "", entry.value))
    names = ("family", "exchangeable", "time", "memory", "source")
    caption = (
        "capital letters stand for numbers; asr attention <name> shows options and source\n"
        "one of your own: ./nystrom.py:Nystrom-32, my_module:Nystrom-32"
    )
    return Table.of(
        "", [Column("attention", number=False, wrap=False), *names], rows, caption=caption, numbers=False
    )


def _options(mechanisms: Sequence[str]) -> Table:
    rows = []
    for key in mechanisms:
        kind = mechanism_class(key)
        name = pattern(key, kind.options)
        purpose = (kind.__doc__ or "").strip().partition("\n")[0]
        source = LINK.sub(r"\1, \2", kind.source)
        facts = (purpose, f"source: {source}", f"time: {kind.time}", f"memory: {kind.memory}")
        rows.append((name, "", "", "", "\n".join(filter(None, facts))))
        size = number(kind.options)
        for x in config.describe(kind.options):
            label = size.letter if size and x.key == size.key else f"{x.key}="
            rows.append((name, label, x.default, allowed_values(x), x.help))
    heads = ("attention", "option", "default", "values", "meaning")
    return Table.of("", heads, rows, caption="N: number of positions", numbers=False)
