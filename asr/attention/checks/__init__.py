"""Checks that every mechanism must pass: padding, lengths, batches, gradients, precision, state.

`asr attention check` runs them on a mechanism of your own, and the tests run them on those in the table. A
check takes a mechanism's name, and raises AssertionError with a description of the fault.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asr.attention.checks import layers, mechanisms
from asr.attention.checks.inputs import small_names
from asr.attention.layer import OwnParameterLayer
from asr.attention.none import NoAttention
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import class_named, parse_name
from asr.config import user_code
from asr.errors import UserError

Check = Callable[[str], None]
OF_LAYERS: tuple[Check, ...] = (
    layers.layer_padding_and_batch,
    layers.determinism,
    layers.state,
    layers.autocast,
    layers.empty_sizes,
    layers.copies_and_checkpointing,
    layers.layer_wrong_lengths,
)
OF_MECHANISMS: tuple[Check, ...] = (
    mechanisms.padding_and_batch,
    mechanisms.no_lengths,
    mechanisms.weights_times_values,
    mechanisms.huge_logits,
    mechanisms.strides,
    mechanisms.half_precision,
    mechanisms.gradients,
    mechanisms.wrong_lengths,
    mechanisms.empty_batches,
    *OF_LAYERS,
)
# Checks for a layer without parameters, whose output doesn't depend on its input.
OF_NO_PARAMETERS: tuple[Check, ...] = (
    layers.layer_padding_and_batch,
    layers.determinism,
    layers.layer_half_precision,
    layers.layer_gradients,
    layers.layer_wrong_lengths,
)
OF_OWN_PARAMETERS: tuple[Check, ...] = (
    *OF_LAYERS,
    layers.frozen_empty_batches,
    layers.layer_huge_input,
    layers.layer_half_precision,
    layers.layer_gradients,
)


def checks_of(name: str) -> tuple[Check, ...]:
    """Return the checks for a mechanism."""
    kind = class_named(name)
    if issubclass(kind, NoAttention):
        return OF_NO_PARAMETERS
    if issubclass(kind, OwnParameterLayer):
        return OF_OWN_PARAMETERS
    return (*OF_MECHANISMS, layers.exchange) if issubclass(kind, SoftmaxMechanism) else OF_MECHANISMS


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check.

    Attributes:
        name: mechanism, with its numbers and options.
        title: checked property.
        failure: description of the fault; empty if the check passed.
    """

    name: str
    title: str
    failure: str


def run_checks(name: str) -> Iterator[Outcome]:
    """Check a mechanism as named, with small numbers, and with every value of its options.

    Args:
        name: name of a mechanism whose code is loaded; see `given_name`.
    """
    spec = parse_name(name)
    for small in dict.fromkeys([spec.name, *small_names(spec.mechanism)]):
        for check in checks_of(small):
            title = (check.__doc__ or "").strip().partition("\n")[0].rstrip(".")
            yield Outcome(small, title, _failure(check, small))


def _failure(check: Check, name: str) -> str:
    try:
        check(name)
    except AssertionError as error:
        return UserError(str(error) or "failed").line
    except UserError as error:
        return error.line
    except (Exception, SystemExit) as error:
        return UserError(user_code.failure(error)).line
    return ""
