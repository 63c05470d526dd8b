"""A comparison's command line: options of the comparison, and of training and decoding all candidates."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from asr import config
from asr.attention.table import canonical
from asr.config import Given, as_overrides, by_key, flat, to_dict
from asr.config.schema import conditions
from asr.environment import pick_device, pick_precision
from asr.errors import UserError
from asr.experiment.grids import Paper, with_grid
from asr.experiment.options import ALL, ENGINES, LENGTHS, OWN, STEPS, TRAINED, CompareConfig
from asr.experiment.records import TriedRate
from asr.experiment.variant import Variant, given_variants
from asr.files import near_path
from asr.search.decoder import WeightedDecoder
from asr.search.options import DecodeOptions, SearchOptions
from asr.training.config import chosen_recipe, train_options
from asr.training.options import RecipeConfig, TrainConfig, train_schema, workload_options
from asr.transcription.decode import system_name

# Training options that are a candidate's own, and those that set its length, with what to use instead.
LEARNING_RATE = "optimizer.learning_rate"
PER_CANDIDATE = {
    "attention": "attentions=[…]",
    "seed": "seeds=[…]",
    "run": "folder=…",
    "init_from": "candidates=[{attention: …, init_from: …}]",
    "resume": "nothing: a comparison always resumes",
}
TRAINING_SET_HERE = {
    **PER_CANDIDATE,
    **{training: f"{own}=…" for own, training in LENGTHS.items()},
    "trainer.budget_clock": "budget_clock=…",
}
# Options of an exchange whose names are training options if models are trained.
IN_TRAINING = ("model", "backend")
SEARCHED = tuple(entry.name for entry in fields(SearchOptions))
OWN_DECODING = (*SEARCHED, "device", "precision")  # options of asr decode


@dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        options: options of the comparison.
        shared: training options that all candidates share, by dotted key.
        command: all overrides as given.
        paper: published figures of the plan; None if there are none.
        tried: learning rates with which candidates were trained to choose theirs.
        recipe: `WorkloadOptions` of the recipe with the task of a trained model; None: the model transcribes,
            or models are trained.
    """

    options: CompareConfig
    shared: dict[str, Any]
    command: list[str]
    paper: Paper | None = None
    tried: list[TriedRate] = field(default_factory=list)
    recipe: RecipeConfig | None = None

    def exchanged(self) -> dict[str, Any]:
        """Return the options of an exchange, and of its recipe, for the protocol of the results."""
        (trained,) = conditions(TRAINED)
        others = ("plan", "folder", *SEARCHED)
        names = [x.name for x in fields(CompareConfig) if trained not in x.metadata.get("only", ())]
        named = {name: getattr(self.options, name) for name in names if name not in others}
        return named | (to_dict(self.recipe) if self.recipe else {})


def parse(given: Given) -> Request:
    """Split options into those of the comparison and of training, and check both.

    Raises:
        UserError: an unknown option, an invalid value, or nothing to compare.
    """
    command = by_key(given)
    values, paper = with_grid(command)
    if "data" in values:
        return _parse_exchange(values, as_overrides(command))
    own, shared = config.divide(values, CompareConfig, train_schema(chosen_recipe(values)))
    shared |= {key: own.pop(key) for key in IN_TRAINING if key in own}
    options = config.parse(CompareConfig, own)
    config.check_effect(options, own.keys() & command.keys(), defaults=True)
    if not options.launcher:  # the machines that it starts may have other devices
        # `auto` is resolved, so that cells of different machines don't share a key.
        device = pick_device(options.device)
        options.precision = pick_precision(options.precision, device, recognising=True).name
        for name in options.precisions:
            pick_precision(name, device, "precisions")  # refuses what the device lacks, before any training
    for key, value in shared.items():
        if key in TRAINING_SET_HERE:
            raise UserError(f"{key}={value}: asr compare sets this itself; use {TRAINING_SET_HERE[key]}")
        if options.learning_rates and key == LEARNING_RATE and key in command:
            raise UserError(f"{key}={value}: can't be combined with learning_rates, which set it")
    options.attentions = canonical(options.attentions)
    if options.evaluate != [OWN]:
        options.evaluate = given_variants(options.evaluate)
    if options.budget and options.budget_clock == STEPS:
        shared["trainer.budget"] = ""  # each candidate has a number of steps of its own
    elif options.budget:
        # With several budgets, candidates override this one.
        shared |= {"trainer.budget": options.budget[-1], "trainer.budget_clock": options.budget_clock}
        shared["trainer.max_steps"] = 0
    elif options.steps:
        # A recipe's own budget, e.g. that of stamps, would end training first.
        shared |= {"trainer.max_steps": options.steps, "trainer.budget": ""}
    elif options.epochs:
        shared |= {"trainer.max_epochs": options.epochs, "trainer.max_steps": 0, "trainer.budget": ""}
    train_options(shared)
    return Request(options, shared, as_overrides(command), paper)


def _parse_exchange(values: dict[str, Any], command: list[str]) -> Request:
    """Return the request to run a trained model in several ways; see `parse`."""
    name = str(values.get("recipe", ""))
    schema = workload_options(name) if name else None
    if name and schema is None:
        raise UserError(f"recipe={name}: has no effect with data=, as it has no task for trained models")
    own, others = config.divide(
        values, CompareConfig, TrainConfig(recipe=schema()) if schema else TrainConfig()
    )
    task = {key.removeprefix("recipe."): others.pop(key) for key in list(others) if key.startswith("recipe.")}
    others.pop("recipe", None)
    trained = others | {key: x for key, x in own.items() if key.partition(".")[0] in SEARCHED}
    if trained:
        given = as_overrides(trained)[0]
        raise UserError(f"{given}: has no effect with data=, which trains nothing and searches greedily")
    options = config.parse(CompareConfig, own)
    config.check_effect(options, own, defaults=True)
    options.attentions = list(dict.fromkeys(canonical(options.attentions)))
    (options.baseline,) = given_variants([options.baseline])
    options.candidates = given_variants(options.candidates)
    options.device = pick_device(options.device)
    options.peers = list(dict.fromkeys(ENGINES if ALL in options.peers else options.peers))
    if options.peers and options.device != "cpu":
        raise UserError(f"peers={options.peers[0]}: expected device=cpu, found {options.device}")
    options.precision = pick_precision(options.precision, options.device, recognising=True).name
    recipe = config.parse(schema, {"name": name} | task) if schema else None
    return Request(options, {}, command, recipe=recipe)


@dataclass(frozen=True)
class Decoding:
    """Decoding of every model.

    Attributes:
        options: options of `asr decode` without split, data, mechanism and output. Search weights come from
            the command line or the defaults, never from a run folder; they are None if they will be tuned.
        files: hashes of the files that the search reads, by option: `beam.lm`, `beam.lexicon`,
            `beam.hotwords`.
    """

    options: DecodeOptions
    files: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the options that the outcome of an evaluation depends on, as plain data."""
        fixed = replace(self.options, jobs=DecodeOptions().jobs)
        return {"options": to_dict(fixed)} | ({"files": self.files} if self.files else {})

    def unkeyed(self) -> dict[str, Any]:
        """Return the options that don't affect the outcome."""
        return {"jobs": self.options.jobs}

    def overrides(self) -> list[str]:
        """Return the options that differ from the defaults as overrides for `asr decode`."""
        defaults = flat(to_dict(DecodeOptions()))
        options = flat(to_dict(self.options))
        return [f"{key}={value}" for key, value in options.items() if value != defaults[key]]

    def system(self, variant: Variant) -> str:
        """Return the folder name of an evaluation, as in `asr decode`: `full-beam-trigram`."""
        return system_name(str(variant).replace(" ", "-"), self.options.chosen_decoder)

    def described(self) -> dict[str, Any]:
        """Return the entries for the protocol of the results."""
        options = self.options
        return {
            "decoder": options.decoder,
            "beam": asdict(options.chosen_decoder),
            "tune": options.tune,
            "files": self.files,
        }


def plan_decoding(options: CompareConfig) -> Decoding:
    """Return how every model is to be decoded.

    Raises:
        UserError: an invalid option or a missing file.
    """
    decoder = options.chosen_decoder
    decoding = {name: getattr(options, name) for name in OWN_DECODING}
    if not options.tune:
        decoding["beam"] = replace(options.beam, **asdict(decoder.complete()))
    for name, path in decoder.files().items():
        if not Path(path).is_file():
            raise UserError(f"beam.{name}={path}: expected a file, found none{near_path(path)}")
    files = {f"beam.{name}": digest for name, digest in decoder.digests().items()}
    if isinstance(decoder, WeightedDecoder):
        decoder.phrases()  # errors before any training
    return Decoding(DecodeOptions(**decoding), files)
