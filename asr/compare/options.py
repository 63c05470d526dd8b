"""Options of `asr compare`: its own, those of training that all candidates share, and those of decoding."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from asr import config
from asr.attention.table import canonical
from asr.compare.grids import Paper, with_grid
from asr.compare.results import METRICS, OFFICIAL
from asr.config import flat, option, to_dict
from asr.environment import pick_device
from asr.errors import UserError
from asr.files import file_digest
from asr.search.options import DecodeOptions, SearchOptions
from asr.training.budget import CLOCKS, parse_budget
from asr.training.config import chosen_recipe, train_options, train_schema
from asr.transcription.decode import system_name

ORACLE = "oracle-top-32"  # table 1 of the paper: full attention restricted to its 32 largest weights
OWN = "own"
LARGEST_SEED = 2**32 - 1
STEPS = "steps"
# Training options that asr compare sets itself, and what to use instead.
TRAINING_SET_HERE = {
    "attention": "attentions=[…]",
    "seed": "seeds=[…]",
    "run": "folder=…",
    "init_from": "candidates=[{attention: …, init_from: …}]",
    "resume": "nothing: a comparison always resumes",
    "trainer.budget": "budget=…",
    "trainer.budget_clock": "budget_clock=…",
    "trainer.max_steps": "steps=…",
    "trainer.max_epochs": "epochs=…",
}
# Decoding options that asr compare takes under their own names, and those that it sets itself.
OWN_DECODING = (*(entry.name for entry in fields(SearchOptions)), "device")
DECODING_SET_HERE = {
    "split": "splits=[…]",
    "data": "splits=[…]",
    "attention": "evaluate=[…]",
    "output": "folder=…",
}
UNKEYED_DECODING = ("jobs",)  # hypotheses do not depend on them


@dataclass
class CompareConfig(SearchOptions):
    """What to compare, how long to train, and how to evaluate."""

    plan: str = option(
        "",
        help="file of options, which those beside it override: a name in conf/plan, e.g. wsj_table1, "
        "or a path",
        affects="result",
    )
    attentions: list[str] = option([], help="mechanisms; each becomes a candidate", affects="result")
    candidates: list[Any] = option(
        [],
        help="further candidates with options of their own: {attention: full, model.layers: 6, "
        "seeds: [0,1,2]}; init_from: <run or label of another candidate> finetunes that model",
        affects="result",
    )
    evaluate: list[str] = option(
        [],
        help="mechanisms to evaluate every exchangeable model with, in addition to its own; empty: those of "
        f"all candidates and {ORACLE}; [{OWN}]: none",
        affects="result",
    )
    seeds: list[int] = option(
        [0],
        help="one training each, unless a candidate sets its own seeds",
        affects="result",
        maximum=LARGEST_SEED,
    )
    budget: str = option(
        "", help="training time per model, e.g. 10min; alternatively steps or epochs", affects="result"
    )
    budget_clock: str = option(
        "wall",
        help="wall | cpu: CPU seconds, fairer on a shared machine | steps: as many steps as fit in this CPU "
        "time by the cost of a step, which is measured for all candidates in turns before training",
        affects="result",
        only=("budget",),
        choices=(*CLOCKS, STEPS),
    )
    steps: int = option(0, help="optimiser steps per model", affects="result")
    epochs: int = option(
        0, help="epochs per model; without budget, steps and epochs the recipe decides", affects="result"
    )
    splits: list[str] = option(
        ["test"], help="splits of the data, or manifests, to evaluate on", affects="result"
    )
    metric: str = option(
        "",
        help="main error rate of tables and figures: per | wer | cer | official; "
        "empty: wer for decoder=beam, else the first one available",
        affects="result",
    )
    decode: list[str] = option(
        [], help="further options of asr decode, e.g. [checkpoint=best]", affects="result"
    )
    # The ranges of two equally fast models are disjoint in 1 % of all cases with 5 repeats, in 10 % with 3.
    timing_repeats: int = option(
        5,
        help="timed forward passes per model; tables show their median and range",
        affects="result",
        minimum=1,
        maximum=100_000,
    )
    timing_threads: int = option(
        1, help="CPU threads of timed forward passes; 0: PyTorch's default", affects="result", maximum=1024
    )
    device: str = option("auto", help="device for evaluation and timing: auto | cpu | cuda", affects="cost")
    folder: str = option("", help="output folder; empty: exp/compare/<recipe>", affects="place")
    reuse: str = option(
        "",
        help="folder whose finished runs, at any depth, are used instead of training again; "
        "empty: exp/<recipe>; none: train all",
        affects="place",
    )
    changed: str = option(
        "refuse",
        help="if existing results have other settings: refuse | rerun",
        affects="place",
        choices=("refuse", "rerun"),
    )
    dry_run: bool = option(False, help="print the plan with a time estimate and stop", affects="place")
    launcher: str = option(
        "",
        help="what runs the jobs: submitit_slurm | submitit_local | ray; empty: this process, one by one",
        affects="place",
        choices=("", "submitit_slurm", "submitit_local", "ray"),
    )
    launch: list[str] = option(
        [],
        help="options of submitit or Ray: [slurm_partition=gpu,gpus_per_node=1], [num_gpus=1]",
        affects="place",
        only=("launcher",),
    )

    def check(self) -> None:
        """Raise UserError if there is nothing to compare, or options conflict."""
        if not self.attentions and not self.candidates:
            raise UserError("nothing to compare: attentions=[full,i-clustered-25], or candidates=[…]")
        if sum(map(bool, (self.budget, self.steps, self.epochs))) > 1:
            raise UserError(
                "budget, steps and epochs all set the length of training: expected only one of them"
            )
        parse_budget(self.budget)
        if self.metric and self.metric.partition("-")[0] not in (*METRICS, OFFICIAL):
            raise UserError(f"metric={self.metric}: expected {' | '.join((*METRICS, OFFICIAL))}")
        for name in ("seeds", "splits"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds={self.seeds}: expected distinct seeds")
        if not self.launcher:  # the machines that it starts may have other devices
            pick_device(self.device)


@dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        options: options of the comparison.
        shared: overrides of training that all candidates share.
        command: all overrides as given.
        paper: published figures of the plan; None if there are none.
    """

    options: CompareConfig
    shared: list[str]
    command: list[str]
    paper: Paper | None = None


def parse(overrides: list[str]) -> Request:
    """Split `key=value` overrides into options of the comparison and of training, and check both.

    Raises:
        UserError: an unknown option, an invalid value, or nothing to compare.
    """
    command = overrides
    overrides, paper = with_grid(overrides)
    own, shared = config.divide(overrides, CompareConfig, train_schema(chosen_recipe(overrides)))
    options = config.parse(CompareConfig, own)
    for override in shared:
        key = override.partition("=")[0]
        if key in TRAINING_SET_HERE:
            raise UserError(f"{override}: asr compare sets this itself; use {TRAINING_SET_HERE[key]}")
    options.attentions = canonical(options.attentions)
    options.evaluate = options.evaluate if options.evaluate == [OWN] else canonical(options.evaluate)
    if options.budget and options.budget_clock == STEPS:
        shared += ["trainer.budget="]  # each candidate has a number of steps of its own
    elif options.budget:
        shared += [f"trainer.budget={options.budget}", f"trainer.budget_clock={options.budget_clock}"]
        shared += ["trainer.max_steps=0"]
    elif options.steps:
        shared += [f"trainer.max_steps={options.steps}", "trainer.budget="]
    elif options.epochs:
        shared += [f"trainer.max_epochs={options.epochs}", "trainer.max_steps=0", "trainer.budget="]
    train_options(shared)
    return Request(options, shared, command, paper)


@dataclass(frozen=True)
class Decoding:
    """How every model is decoded.

    Attributes:
        options: options of `asr decode` without split, data, mechanism and output. Search weights come from
            the command line or the defaults, never from a run folder; they are open if tuned.
        files: hashes of the files that the search reads, by option: `beam.lm`, `beam.lexicon`.
    """

    options: DecodeOptions
    files: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return what the outcome of an evaluation depends on, as plain data."""
        defaults = DecodeOptions()
        fixed = {name: getattr(defaults, name) for name in UNKEYED_DECODING}
        return {"options": to_dict(self.options) | fixed} | ({"files": self.files} if self.files else {})

    def unkeyed(self) -> dict[str, Any]:
        """Return the options that the outcome does not depend on."""
        return {name: getattr(self.options, name) for name in UNKEYED_DECODING}

    def overrides(self) -> list[str]:
        """Return the options that differ from the defaults as overrides for `asr decode`."""
        defaults = flat(to_dict(DecodeOptions()))
        options = flat(to_dict(self.options))
        return [f"{key}={value}" for key, value in options.items() if value != defaults[key]]

    def system(self, attention: str) -> str:
        """Return the folder name of an evaluation, as in `asr decode`: `full-beam-trigram`."""
        return system_name(attention, self.options.decoder, self.options.beam.lm)

    def described(self) -> dict[str, Any]:
        """Return the entries for the protocol of the results."""
        options = self.options
        return {
            "decoder": options.decoder,
            "beam": {} if options.decoder == "greedy" else asdict(options.beam),
            "tune": options.tune,
            "files": self.files,
            "decode": [x for x in self.overrides() if _stem(x) not in OWN_DECODING],
        }


def plan_decoding(options: CompareConfig) -> Decoding:
    """Return how every model is to be decoded.

    Raises:
        UserError: an invalid option or a missing file.
    """
    for override in options.decode:
        key = override.partition("=")[0]
        if _stem(override) in OWN_DECODING:
            raise UserError(f"decode=[{override}]: asr compare has this option itself; use {override}")
        if key in DECODING_SET_HERE:
            raise UserError(
                f"decode=[{override}]: asr compare sets this itself; use {DECODING_SET_HERE[key]}"
            )
    decoder, beam, tune = options.decoder, options.beam, options.tune
    if decoder == "cuda" and not options.launcher and not torch.cuda.is_available():
        raise UserError("decoder=cuda: this machine has no CUDA device")
    own = {name: getattr(options, name) for name in OWN_DECODING}
    if not tune and decoder != "greedy":
        own["beam"] = beam.complete(decoder)
    files = {}
    for key, path in (("beam.lm", beam.lm), ("beam.lexicon", beam.lexicon)):
        if path and not Path(path).is_file():
            raise UserError(f"{key}={path}: expected a file, found none")
        if path:
            files[key] = file_digest(Path(path))
    return Decoding(replace(config.parse(DecodeOptions, options.decode), **own), files)


def _stem(override: str) -> str:
    return override.partition("=")[0].partition(".")[0]
