"""Mechanisms of the table that a test doesn't list, so that common tests take them too."""

from collections.abc import Iterable

from asr.attention import MECHANISMS, parse_name
from asr.attention.checks.inputs import small_names

__all__ = ["small_names", "unlisted"]


def unlisted(names: Iterable[str]) -> list[str]:
    """Return the mechanisms of the table that none of the names stands for."""
    listed = {parse_name(name).mechanism for name in names}
    return [mechanism for mechanism in MECHANISMS if mechanism not in listed]
