"""What `asr bench` measures: the mechanisms that its options stand for."""

from asr.attention.clustered import ClusteredAttention
from asr.attention.layer import OwnParameterLayer
from asr.attention.table import class_named, default_names
from asr.benchmark.mechanisms import causal_form, split_threads
from asr.benchmark.options import ALL, GROUPING, Options
from asr.errors import UserError


def measured_names(options: Options) -> list[str]:
    """Return what to measure: `attentions` with `all` and `causal` resolved.

    Raises:
        UserError: an unknown mechanism, or one that can't be measured with the other options.
    """
    for name in options.attentions:
        if name != ALL:
            _check_name(name, options)
    every = [name for name in default_names() if options.unit != "mechanism" or not has_own_parameters(name)]
    named = [x for name in options.attentions for x in (every if name == ALL else [name])]
    if options.causal == "both":
        forms = [x for name in named for x in (name, causal_form(name)) if x]
        if len(forms) == len(named) and not options.figure:
            raise UserError(f"causal=both: has no effect: none of {', '.join(named)} has a causal form")
        named = forms
    if GROUPING in options.passes:
        for name in named:
            if not groups_queries(name):
                raise UserError(f"attentions={name}: expected groups of queries with passes={GROUPING}")
    return list(dict.fromkeys(named))


def _check_name(name: str, options: Options) -> None:
    head, (_, threads) = name.partition("@")[0], split_threads(name)
    if threads == 0:
        raise UserError(f"attentions={name}: expected at least 1 thread")
    if threads and options.clock == "cpu":
        raise UserError(f"attentions={name}: CPU time adds up over threads; use clock=wall")
    if name.startswith("peer:"):
        if options.unit != "mechanism":
            raise UserError(
                f"attentions={name}: expected a mechanism of this program with unit={options.unit}"
            )
    elif options.unit == "mechanism" and has_own_parameters(head):
        raise UserError(f"attentions={name}: has parameters of its own; use unit=layer or unit=model")


def has_own_parameters(name: str) -> bool:
    """Return whether a mechanism is measured as part of a layer only."""
    return issubclass(class_named(name), OwnParameterLayer)


def groups_queries(name: str) -> bool:
    """Return whether a mechanism has groups of queries, which are measured alone by passes=grouping."""
    if name.startswith("peer:"):
        return False
    return issubclass(class_named(name.partition("@")[0]), ClusteredAttention)
