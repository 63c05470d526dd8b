"""Candidates of a comparison: what each is trained with, and what it may be evaluated with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from asr.attention.table import MECHANISMS, parse_name
from asr.compare.exchange import runs
from asr.compare.options import Request
from asr.compare.records import Candidate
from asr.config import flat, to_dict
from asr.errors import UserError
from asr.training.config import TrainConfig, train_options

OWN_KEYS = ("attention", "label", "seeds", "init_from")
NOT_PROTOCOL = ("attention", "run", "seed", "resume", "init_from")


@dataclass(frozen=True)
class Planned:
    """A candidate with everything that its training depends on.

    Attributes:
        candidate: what the results say of it.
        training: its options; seed and run folder belong to each training.
        parent: label of the candidate that it starts from, None where it starts from a run or afresh.
    """

    candidate: Candidate
    training: TrainConfig
    parent: str | None


def plan_candidates(request: Request) -> list[Planned]:
    """Return the candidates in the order of the command line, those to be finetuned after their parents.

    Raises:
        UserError: an unknown key or mechanism, two candidates of one label, a circle of finetunings.
    """
    protocol = flat(to_dict(train_options(request.words)))
    asked = [{"attention": name} for name in request.options.attentions]
    asked += [_keys(entry) for entry in request.options.candidates]
    planned = [_plan(entry, protocol, request) for entry in asked]
    labels = [entry.candidate.label for entry in planned]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"candidate {label!r} is there twice: give one of them a label")
    return _parents_first([_with_parent(entry, labels) for entry in planned])


def evaluated_with(candidate: Candidate, wanted: Sequence[str]) -> list[str]:
    """Return the mechanisms a trained candidate is evaluated with, its own first."""
    names = dict.fromkeys([candidate.attention, *wanted])
    return [name for name in names if runs(candidate.attention, name)]


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with dotted names as nested dictionaries: the inverse of `asr.config.flat`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def _keys(entry: Any) -> dict[str, Any]:
    """Return what an entry of `candidates` says; `"full model.layers=6"` is a short form."""
    if isinstance(entry, str):
        words = [word if "=" in word.partition(":")[0] else f"attention={word}" for word in entry.split()]
        pairs = (word.partition("=") for word in words)
        # Seeds are a list; all other values stay the text that asr train would be given.
        entry = {key: yaml.safe_load(value) if key == "seeds" else value for key, _, value in pairs}
    if not isinstance(entry, dict):
        raise UserError(f"candidates: expected {{attention: full, model.layers: 6}}, found {entry!r}")
    entry = {str(key): value for key, value in flat(entry).items()}
    if "attention" not in entry:
        raise UserError(f"candidate {entry}: expected an attention")
    if "seeds" in entry:
        seeds = [entry["seeds"]] if isinstance(entry["seeds"], int) else entry["seeds"]
        if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
            raise UserError(f"candidate {entry['attention']}: seeds={seeds!r}, expected a list of numbers")
        entry["seeds"] = seeds
    return entry


def _plan(entry: dict[str, Any], protocol: Mapping[str, Any], request: Request) -> Planned:
    spec = parse_name(str(entry["attention"]))
    changes = [f"{key}={_word(value)}" for key, value in entry.items() if key not in OWN_KEYS]
    training = train_options([*request.words, *changes, f"attention={spec.name}"])
    resolved = flat(to_dict(training))
    overrides = {
        key: value for key, value in resolved.items() if value != protocol[key] and key not in NOT_PROTOCOL
    }
    source = str(entry.get("init_from", "")) or None
    training.init_from = source or ""
    schema_size = MECHANISMS[spec.mechanism].schema.size
    size = spec.arguments[schema_size.name] if schema_size else None
    candidate = Candidate(
        label=_label(entry, overrides),
        attention=spec.name,
        mechanism=spec.mechanism,
        size=size if isinstance(size, int) else None,
        layers=training.model.layers,
        subsampling=training.model.subsampling,
        overrides=overrides,
        finetuned_from=source,
        seeds=list(entry.get("seeds") or request.options.seeds),
    )
    return Planned(candidate, training, None)


def _with_parent(planned: Planned, labels: list[str]) -> Planned:
    source = planned.candidate.finetuned_from
    if source not in labels:
        return planned
    return replace(planned, training=replace(planned.training, init_from=""), parent=source)


def _label(entry: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """Return e.g. `6 layers, i-clustered-200`, `full → i-clustered-25`."""
    if "label" in entry:
        return str(entry["label"])
    name = parse_name(str(entry["attention"])).name
    if entry.get("init_from"):
        name = f"{entry['init_from']} → {name}"
    rest = [f"{key}={_word(value)}" for key, value in overrides.items() if key != "model.layers"]
    layers = [f"{overrides['model.layers']} layers"] if "model.layers" in overrides else []
    return ", ".join([*layers, name, *rest])


def _word(value: Any) -> str:
    """Return a value as `asr train` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)


def _parents_first(planned: list[Planned]) -> list[Planned]:
    def ordered() -> Iterator[Planned]:
        done: set[str] = set()
        waiting = list(planned)
        while waiting:
            ready = [x for x in waiting if x.parent is None or x.parent in done]
            if not ready:
                names = ", ".join(x.candidate.label for x in waiting)
                raise UserError(f"candidates {names}: each is to start from another one of them")
            yield from ready
            done |= {x.candidate.label for x in ready}
            waiting = [x for x in waiting if x not in ready]

    return list(ordered())
