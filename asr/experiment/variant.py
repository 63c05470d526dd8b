"""Variants of a model: what can be exchanged in a trained or published model without training it again."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from asr import config
from asr.attention.table import canonical
from asr.config import by_key, option
from asr.environment import pick_precision
from asr.errors import UserError

_AXES = re.compile(r" (?=\w+=)")


@dataclass(frozen=True)
class Variant:
    """A way to run a model. Model and text of the variant name a system: `near-25 frames=1,2*3`.

    A further axis is a field here, with its implementation in `Recognizer.load` or the workload's model.
    """

    attention: str = option("", help="mechanism, or one for each layer", affects="result")
    frames: str = option("", help="schedule of frame rates; empty: the model's own", affects="result")
    layers: int = option(
        0, help="number of encoder layers, evenly spread; 0: all", affects="result", maximum=999
    )
    precision: str = option(
        "",
        help="precision of matrix products; empty: that of the experiment",
        affects="result",
        choices=("", "fp32", "bf16", "fp16"),
    )

    def __str__(self) -> str:
        axes = ((x.name, getattr(self, x.name)) for x in fields(self)[1:])
        return " ".join([self.attention, *(f"{name}={value}" for name, value in axes if value)])

    def options(self) -> dict[str, str]:
        """Return the options of `Recognizer.load` that the variant sets."""
        return {name: x for name in ("attention", "frames", "precision") if (x := getattr(self, name))}

    def overrides(self) -> list[str]:
        """Return the variant as options of a command."""
        return [f"{name}={value}" for name, value in self.options().items()]

    @classmethod
    def read(cls, text: str) -> "Variant":
        """Return the variant of a text from `str`; for the user's texts, see `given_variants`.

        Example:
            >>> Variant.read("full*3,near-25*9 frames=1,2*11 precision=bf16")
            Variant(attention='full*3,near-25*9', frames='1,2*11', layers=0, precision='bf16')
        """
        attention, *axes = _AXES.split(text)
        values = dict(axis.split("=", 1) for axis in axes)
        return cls(
            attention, values.get("frames", ""), int(values.get("layers", 0)), values.get("precision", "")
        )


def attention_only(text: str) -> str:
    """Return the mechanism of a variant that changes nothing else.

    Raises:
        UserError: the variant changes more, which needs recordings.
    """
    variant = Variant.read(text)
    if text != variant.attention:
        raise UserError(f"{text.removeprefix(variant.attention).strip()}: has an effect on recordings only")
    return variant.attention


def given_variants(texts: list[str], names: Callable[[list[str]], list[str]] = canonical) -> list[str]:
    """Return the canonical texts of the user's variants.

    Args:
        texts: variants.
        names: maps the user's names of mechanisms to the mechanisms that they stand for.

    Raises:
        UserError: an unknown mechanism, option or precision, or an invalid number of layers.
    """
    variants = []
    for text in texts:
        attention, *axes = _AXES.split(text)
        try:
            variant = config.parse(Variant, {**by_key(axes), "attention": attention})
        except UserError as error:
            raise UserError(f"{text}: {error}") from None
        variants += [str(replace(variant, attention=name)) for name in names([attention])]
    return variants


def check_precisions(variants: Iterable[Variant], device: str) -> None:
    """Raise UserError for a precision that the device lacks, and warn of one that is slow there."""
    for precision in dict.fromkeys(x.precision for x in variants if x.precision):
        pick_precision(precision, device)


def mechanism_of(text: str) -> str:
    """Return the mechanism of a variant, without the backend and the threads of `asr bench`.

    Example:
        >>> mechanism_of("near-25@reference frames=2"), mechanism_of("full@2")
        ('near-25', 'full')
    """
    return Variant.read(text).attention.partition("@")[0]
