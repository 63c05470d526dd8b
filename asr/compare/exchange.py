"""Which mechanisms a trained model can be run with."""

from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import MECHANISMS, parse_name


def is_exchangeable(attention: str) -> bool:
    """Return whether a mechanism is of the softmax family, without parameters of its own."""
    return MECHANISMS[parse_name(attention).mechanism].exchangeable


def ties_keys(attention: str) -> bool:
    """Return whether a mechanism needs keys that are tied to the queries, as its own models have them."""
    build = MECHANISMS[parse_name(attention).mechanism].build
    return issubclass(build, SoftmaxMechanism) and build.needs_shared_keys


def runs(trained: str, other: str) -> bool:
    """Return whether a model that was trained with one mechanism can be run with another.

    The softmax family is exchangeable, but for what needs tied keys (lsh, shared-full): it runs models with
    such keys only. Mechanisms with parameters of their own run their own models only.
    """
    if trained == other:
        return True
    both = is_exchangeable(trained) and is_exchangeable(other)
    return both and (ties_keys(trained) or not ties_keys(other))
