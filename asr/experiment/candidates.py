"""Candidates of a comparison: how each one's training differs, and which mechanisms it can run with."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from asr import config
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism
from asr.attention.spec import effective
from asr.attention.table import given_name, is_causal, layer_names, layer_runs, mechanism_class
from asr.config import as_overrides, by_key, flat, to_dict
from asr.config.schedule import layer_factors
from asr.errors import UserError
from asr.experiment.options import LENGTHS, STEPS, CandidateOptions
from asr.experiment.records import Candidate
from asr.experiment.request import PER_CANDIDATE, TRAINING_SET_HERE, Request
from asr.experiment.variant import Variant
from asr.training.config import check_determined, determined, sizes, train_options
from asr.training.options import TrainConfig
from asr.training.sizes import settled

OWN_KEYS = tuple(x.name for x in fields(CandidateOptions))  # other keys are options of `asr train`
LAYERWISE = "layers"  # family of models with a mechanism for each layer


def plan_candidates(request: Request) -> tuple[list[Candidate], dict[str, TrainConfig]]:
    """Return the candidates in the order of the command line, but finetuned ones after their parents.

    With several budgets, each model is a candidate for every budget.

    Returns:
        The candidates, and by label their training options without seed and run folder. `init_from` is empty
        if the initial model is another candidate.

    Raises:
        UserError: an unknown key or mechanism, a duplicate label, the same training without a label, circular
            finetuning, or finetuning of a candidate that has another size or several budgets.
    """
    protocol = flat(to_dict(settled(train_options(request.shared))))
    asked = entries(request)
    budgets = request.options.budget if len(request.options.budget) > 1 else [""]
    waiting: list[Candidate] = []
    trainings: dict[str, TrainConfig] = {}
    unnamed: dict[str, str] = {}  # label by training
    for entry, budget in itertools.product(asked, budgets):
        candidate, training = _plan(entry, protocol, request, budget)
        if candidate.label in trainings:
            raise UserError(f"candidate {candidate.label!r} appears twice: give one of the two another label")
        if "label" not in entry:
            same = unnamed.setdefault(_in_layers(candidate, training), candidate.label)
            if same != candidate.label:
                raise UserError(f"candidates {same!r} and {candidate.label!r}: the same in every layer")
        waiting.append(candidate)
        trainings[candidate.label] = training
    for candidate in waiting:
        if candidate.budget and candidate.finetuned_from in {x.model for x in waiting}:
            raise UserError(
                f"candidate {candidate.label}: init_from={candidate.finetuned_from} has several budgets, "
                "expected one"
            )
        if candidate.finetuned_from in trainings:
            parent, sizes_given = (
                flat(to_dict(trainings[label])) for label in (candidate.finetuned_from, candidate.label)
            )
            check_determined(sizes_given, sizes(parent), f"init_from={candidate.finetuned_from}")
            trainings[candidate.label].init_from = ""
    ordered: list[Candidate] = []
    while waiting:
        labels = [candidate.label for candidate in waiting]
        ready = [candidate for candidate in waiting if candidate.finetuned_from not in labels]
        if not ready:
            raise UserError(
                f"candidates {', '.join(labels)}: init_from is circular, each starts from another one"
            )
        ordered += ready
        waiting = [candidate for candidate in waiting if candidate not in ready]
    return ordered, trainings


def entries(request: Request) -> list[dict[str, Any]]:
    """Return the options of each candidate by key; first `attentions`, with each of `frames` and `layers`.

    Raises:
        UserError: an entry of `candidates` isn't a candidate.
    """
    options = request.options
    axes: dict[str, Sequence[Any]] = {
        "attention": options.attentions,
        "model.frames": options.frames,
        "model.layers": options.layers,
    }
    given = {name: values for name, values in axes.items() if values or name == "attention"}
    asked: list[dict[str, Any]] = [
        dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())
    ]
    return asked + [_keys(entry) for entry in request.options.candidates]


def is_exchangeable(variant: str) -> bool:
    """Return whether a variant's mechanism, or every layer's, belongs to the softmax family."""
    runs = layer_runs(Variant.read(variant).attention)
    return all(issubclass(mechanism_class(x.mechanism), SoftmaxMechanism) for x, _ in runs)


def can_run(trained: str, other: str) -> bool:
    """Return whether a model trained with one mechanism can run as another variant.

    Mechanisms of the softmax family are exchangeable, except that those with tied keys (lsh, shared-full) can
    only run models trained with tied keys, and causal models only run with causal mechanisms. Models with any
    other attention only run with theirs.
    """
    other = Variant.read(other).attention
    if trained == other:
        return True
    both = is_exchangeable(trained) and is_exchangeable(other)
    sees_later = is_causal(trained) and not is_causal(other)
    return both and not sees_later and (all(_ties_keys(trained)) or not any(_ties_keys(other)))


def evaluated_with(candidate: Candidate, wanted: Sequence[str]) -> list[str]:
    """Return the variants in which to evaluate a candidate, its own first."""
    names = dict.fromkeys([candidate.attention, *wanted])
    return [name for name in names if can_run(candidate.attention, name) and _fits(name, candidate.layers)]


def _fits(variant: str, layers: int) -> bool:
    """Return whether a variant's mechanisms and frame rates are those of so many layers."""
    axes = Variant.read(variant)
    try:
        layer_names(axes.attention, layers)
        layer_factors(axes.frames or "1", layers)
    except UserError:
        return False
    return True


def _ties_keys(attention: str) -> list[bool]:
    """Return whether keys are tied to the queries, for each run of layers."""
    classes = [mechanism_class(spec.mechanism) for spec, _ in layer_runs(attention)]
    return [issubclass(kind, QueryKeyMechanism) and kind.needs_shared_keys for kind in classes]


def _keys(entry: Any) -> dict[str, Any]:
    """Return the options of an entry of `candidates`; `"full model.layers=6"` is the short form."""
    if isinstance(entry, str):
        entry = by_key(x if "=" in x.partition(":")[0] else f"attention={x}" for x in entry.split())
    if not isinstance(entry, dict):
        raise UserError(f"candidates: expected {{attention: full, model.layers: 6}}, found {entry!r}")
    entry = {str(key): value for key, value in flat(entry).items()}
    if "attention" not in entry:
        raise UserError(f"candidate {entry}: expected an attention")
    # They would have no effect, because a comparison sets them itself.
    for key in entry.keys() & {"seed", "run", "resume"}:
        raise UserError(f"candidate {entry['attention']}: {key}= can't differ; use {TRAINING_SET_HERE[key]}")
    given = {key: value for key, value in entry.items() if key in OWN_KEYS}
    try:
        parsed = to_dict(config.parse(CandidateOptions, given))
    except UserError as error:
        raise UserError(f"candidate {entry['attention']}: {error}") from None
    return entry | {key: parsed[key] for key in given}


def _plan(
    entry: dict[str, Any], protocol: Mapping[str, Any], request: Request, budget: str
) -> tuple[Candidate, TrainConfig]:
    entry = entry | {"attention": given_name(str(entry["attention"]))}
    name = entry["attention"]
    if budget:
        if lengths := entry.keys() & LENGTHS.values():
            raise UserError(f"candidate {name}: {min(lengths)}= can't be combined with several budgets")
        if request.options.budget_clock != STEPS:
            entry["trainer.budget"] = budget
    changes = {key: value for key, value in entry.items() if key not in OWN_KEYS}
    if entry.get("init_from"):  # may be a label; LoRA is refused without initial weights
        changes["init_from"] = str(entry["init_from"])
    training = settled(train_options(request.shared | changes | {"attention": name}))
    layer_names(name, training.model.layers)
    resolved = flat(to_dict(training))
    overrides = {
        key: value for key, value in resolved.items() if value != protocol[key] and key not in PER_CANDIDATE
    }
    # What initial weights determine is no difference worth a name: it would exceed that of a file.
    started = determined(f"init_from={entry.get('init_from', '')}").keys() - entry.keys()
    named = {key: value for key, value in overrides.items() if key not in started}
    (spec, layers), *others = layer_runs(name)
    numbers = [x.value for x in effective(spec.options) if x.letter and not layers]
    candidate = Candidate(
        label=_label(entry, named, budget),
        attention=name,
        mechanism=spec.mechanism if not others else LAYERWISE,
        size=numbers[0] if numbers else None,
        layers=training.model.layers,
        subsampling=training.model.subsampling,
        overrides=overrides,
        finetuned_from=training.init_from or None,
        seeds=list(entry.get("seeds") or request.options.seeds),
        budget=budget,
    )
    return candidate, training


def _in_layers(candidate: Candidate, training: TrainConfig) -> str:
    """Return what a training is in each layer: `model.frames=2*3` is the same as 2 for three layers."""
    layers = training.model.layers
    own = replace(
        training,
        attention=",".join(layer_names(training.attention, layers)),
        model=replace(training.model, frames=str(layer_factors(training.model.frames, layers))),
    )
    return repr((own, candidate.seeds, candidate.budget))


def _label(entry: Mapping[str, Any], overrides: Mapping[str, Any], budget: str) -> str:
    """Return e.g. `6 layers, i-clustered-200`, `full → i-clustered-25` or `full, 10min`."""
    ending = [budget] if budget else []
    if "label" in entry:
        return ", ".join([str(entry["label"]), *ending])
    name = str(entry["attention"])
    if entry.get("init_from"):
        name = f"{entry['init_from']} → {name}"
    shown = {"model.layers"} | ({"trainer.budget"} if budget else set())
    rest = as_overrides({key: value for key, value in overrides.items() if key not in shown})
    layers = [f"{overrides['model.layers']} layers"] if "model.layers" in overrides else []
    return ", ".join([*layers, name, *rest, *ending])
