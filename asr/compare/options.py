"""Options of `asr compare`: its own, and those of training that all candidates share."""

from dataclasses import dataclass, field
from typing import Any

from asr import config
from asr.attention import parse_name
from asr.compare.results import METRICS, OFFICIAL
from asr.config import option
from asr.errors import UserError
from asr.search.decoder import DECODERS, BeamConfig
from asr.training.config import chosen_recipe, train_options, train_schema
from asr.training.plan import CLOCKS

ORACLE = "oracle-top-32"  # table 1's: full attention with its 32 largest weights alone
# Options of training that comparing decides itself, and what to say instead.
DECIDED = {
    "attention": "attentions=[…]",
    "seed": "seeds=[…]",
    "run": "folder=…",
    "init_from": "candidates=[{attention: …, init_from: …}]",
    "resume": "nothing: a comparison always goes on where it was",
    "trainer.budget": "budget=…",
    "trainer.budget_clock": "budget_clock=…",
    "trainer.max_steps": "steps=…",
    "trainer.max_epochs": "epochs=…",
}


@dataclass
class CompareConfig:
    """What is compared, how long each is trained, and how it is evaluated."""

    attentions: list[str] = option([], help="one candidate for each mechanism")
    candidates: list[Any] = option(
        [],
        help="further candidates that differ in more: {attention: full, model.layers: 6, seeds: [0,1,2]}; "
        "init_from: a run, or another candidate's label, finetunes it",
    )
    evaluate: list[str] = option(
        [],
        help="mechanisms to evaluate every exchangeable model with, besides its own; empty: the candidates' "
        f"and {ORACLE}",
    )
    seeds: list[int] = option([0], help="a training each, where a candidate doesn't say otherwise")
    budget: str = option("", help="training time of each, e.g. 10min; or else …")
    budget_clock: str = option("wall", help="wall | cpu: CPU seconds, the fair clock on a shared machine")
    steps: int = option(0, help="… optimiser steps; or else …")
    epochs: int = option(0, help="… epochs; 0: as the recipe says")
    splits: list[str] = option(["test"], help="splits of the data, or manifests, to evaluate on")
    metric: str = option(
        "",
        help="error rate that heads tables and figures: per | wer | cer | official; "
        "empty: of words for decoder=beam, else the first that there is",
    )
    decoder: str = option("greedy", help=" | ".join(DECODERS))
    beam: BeamConfig = field(default_factory=BeamConfig)
    tune: str = option(
        "",
        help="find the weights of the search for every model and mechanism on this split, e.g. dev; "
        "empty: beam.lm_weight and beam.word_score are those of all",
    )
    tune_utterances: int = option(300, help="tune on at most so many utterances of the split")
    jobs: int = option(1, help="processes that search")
    decode: list[str] = option([], help="further options of asr decode, e.g. [checkpoint=best]")
    timing_repeats: int = option(3, help="forward passes over a split, of which the median counts")
    device: str = option("auto", help="of evaluation: auto | cpu | cuda")
    folder: str = option("", help="where everything goes; empty: exp/compare/<recipe>")
    reuse: str = option("", help="finished runs below it are not trained again; empty: exp/<recipe>; none")
    changed: str = option("refuse", help="what to do with cells of other settings: refuse | rerun")
    dry_run: bool = option(False, help="print the plan and an estimate, train nothing")
    launcher: str = option("", help="a Hydra launcher: submitit_slurm, ray, joblib …; empty: this machine")
    launch: list[str] = option([], help="the launcher's options: [hydra.launcher.partition=gpu]")


@dataclass(frozen=True)
class Request:
    """A comparison as asked for.

    Attributes:
        options: of comparing.
        words: options of training that all candidates share.
        command: all words, as they were given.
    """

    options: CompareConfig
    words: list[str]
    command: list[str]


def parse(words: list[str]) -> Request:
    """Split `key=value` words into options of comparing and of training, and check the former.

    Raises:
        UserError: an unknown option, a value that can't be, or nothing to compare.
    """
    own, shared = config.divide(words, CompareConfig, train_schema(chosen_recipe(words)))
    options = config.parse(CompareConfig, own)
    for word in shared:
        key = word.partition("=")[0]
        if key in DECIDED:
            raise UserError(f"{word}: asr compare decides this; use {DECIDED[key]}")
    _check(options)
    options.attentions = joined(options.attentions)
    options.evaluate = joined(options.evaluate)
    if options.budget:
        shared += [f"trainer.budget={options.budget}", f"trainer.budget_clock={options.budget_clock}"]
        shared += ["trainer.max_steps=0"]
    elif options.steps:
        shared += [f"trainer.max_steps={options.steps}"]
    elif options.epochs:
        shared += [f"trainer.max_epochs={options.epochs}", "trainer.max_steps=0"]
    train_options(shared)
    return Request(options, shared, words)


def joined(names: list[str]) -> list[str]:
    """Put together names that a list's commas have torn: `lsh-4:chunk=16`, `buckets=8` are one.

    Example:
        >>> joined(["full", "lsh-4:chunk=16", "buckets=8"])
        ['full', 'lsh-4:chunk=16,buckets=8']
    """
    whole: list[str] = []
    for name in map(str, names):
        if whole and ":" in whole[-1] and ":" not in name and "=" in name:
            whole[-1] += f",{name}"
        else:
            whole.append(name)
    return [parse_name(name).name for name in whole]


def check_metric(metric: str) -> None:
    """Raise a `UserError` for what is no error rate; empty is none in particular."""
    if metric and metric.partition("-")[0] not in (*METRICS, OFFICIAL):
        raise UserError(f"metric={metric}: expected {' | '.join((*METRICS, OFFICIAL))}")


def _check(options: CompareConfig) -> None:
    if not options.attentions and not options.candidates:
        raise UserError("nothing to compare: attentions=[full,i-clustered-25], or candidates=[…]")
    if sum(map(bool, (options.budget, options.steps, options.epochs))) > 1:
        raise UserError("budget, steps and epochs are three ways to say how long training is: give one")
    if options.budget_clock not in CLOCKS:
        raise UserError(f"budget_clock={options.budget_clock!r}: expected {' | '.join(CLOCKS)}")
    if options.changed not in ("refuse", "rerun"):
        raise UserError(f"changed={options.changed!r}: expected refuse | rerun")
    check_metric(options.metric)
    if options.timing_repeats < 1:
        raise UserError(f"timing_repeats={options.timing_repeats}: expected at least 1")
    if not options.seeds or not options.splits:
        raise UserError("seeds and splits need at least one entry each")
