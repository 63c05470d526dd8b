"""Options of `asr compare`, `asr advise` and `asr bench`."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from asr.config import configurations, describe, option, options_of
from asr.config.names import BACKENDS, MECHANISMS, PRECISIONS
from asr.config.schema import MISSING
from asr.errors import UserError
from asr.losses.options import LossConfig
from asr.model.options import FRAMES
from asr.search.options import SearchOptions
from asr.training.budget import CLOCKS, parse_budget

METRICS = ("per", "wer", "cer")  # order of precedence unless the protocol names a metric
# With one thread, CPU time per wall-clock time shows whether the machine was busy; see `Conditions`.
TIMING_THREADS = 1  # of timed forward passes
OFFICIAL = "official"  # for test sets with a reference in NIST's formats; subsets: `official-swbd`
LARGEST_SEED = 2**32 - 1  # NumPy seeds are 32 bits wide
STEPS = "steps"
FULL, LAYERS, GREEDY = "full", "layers", "greedy"
# Conditions: candidates are trained here, or a trained model is given.
TRAINED, FOUND = ("data", ("",)), ("data",)
# Options for the length of training, with the training options that they set.
LENGTHS = {"budget": "trainer.budget", "steps": "trainer.max_steps", "epochs": "trainer.max_epochs"}
ORACLE = "oracle-top-32"  # table 1 of the paper: full attention restricted to its 32 largest weights
OWN = "own"
# Of `asr bench`.
PASSES = ("forward", "forward+backward")
GROUPING = "grouping"  # a pass that only mechanisms with groups of queries have
SIZED = ("mechanism", "layer")  # a model has the sizes of its preset
ALL = "all"
# Of `peers`; see `asr.experiment.engines`.
ENGINES = (
    *("transformers", "transformers-bf16", "faster-whisper", "faster-whisper-int8"),
    *("openvino", "openvino-bf16", "onnxruntime", "onnxruntime-int8"),
)
LARGEST_BATCH = 1_000_000


@dataclass
class CandidateOptions:
    """Options of a candidate, in addition to training options."""

    attention: str = option(MISSING, help="mechanism", affects="result", suggested=MECHANISMS)
    label: str = option("", help="name; empty: the mechanism and what differs", affects="result")
    seeds: list[int] = option(
        [], help="one training each; empty: as for all candidates", affects="result", maximum=LARGEST_SEED
    )
    init_from: str = option(
        "", help="run, or label of another candidate, whose model is finetuned", affects="result"
    )

    def check(self) -> None:
        """Raise UserError for a repeated seed."""
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds={self.seeds}: expected distinct seeds")


@dataclass
class CompareConfig(SearchOptions):
    """What to compare, how long to train, and how to evaluate; with `data`, how to run a trained model."""

    data: str = option(
        "",
        help="train nothing: run `model` in several ways on a folder of `asr prepare`, a manifest, or "
        "a recipe's files; with sweep=greedy also a folder of recordings; empty: train each candidate",
        affects="result",
    )
    model: str = option(
        "",
        help="with data: the trained model, a run, a folder of transformers (CTC or Whisper) or its name on "
        "the Hub; without: a group of training options",
        affects="result",
    )
    plan: str = option(
        "",
        help="file of options, which other options override: a name in conf/plan, e.g. wsj_table1, or a path",
        affects="result",
        suggested=partial(configurations, "plan"),
    )
    attentions: list[str] = option(
        [],
        help="mechanisms to train, or with data to exchange; alternatives as i-clustered-25/100:topk=16/32",
        affects="result",
        suggested=MECHANISMS,
    )
    candidates: list[Any] = option(
        [],
        help="further candidates, each with its own training options, e.g. {attention: full, "
        "model.layers: 6, seeds: [0,1,2]}, or 'full model.layers=6'; also: "
        + "; ".join(f"{x.key} ({x.help})" for x in describe(CandidateOptions))
        + "; with data: further ways to run the model, e.g. ['near-25 frames=2']",
        affects="result",
    )
    frames: list[str] = option(
        [],
        help="schedules of frame rates, each with each mechanism: 1,2 are two, 1,2* is one, [1,'1,2*'] two; "
        "pad-10: Whisper's padding as means of 10 frames",
        affects="result",
    )
    layers: list[int] = option(
        [],
        help="numbers of encoder layers, each with each mechanism; with data, only Whisper's: "
        "evenly spread layers",
        affects="result",
        minimum=1,
        maximum=1000,
    )
    precisions: list[str] = option(
        [],
        help="further precisions to evaluate and time in, e.g. bf16",
        affects="result",
        choices=PRECISIONS[1:],
    )
    peers: list[str] = option(
        [],
        help="other programs that run the encoder of a Whisper folder on the CPU, timed in turns with this "
        "one; those that aren't installed are skipped; all: each of them",
        affects="result",
        only=FOUND,
        choices=(*ENGINES, ALL),
    )
    baseline: str = option(
        FULL,
        help="denominator of all ratios: a mechanism, or another way to run the model",
        affects="result",
        only=FOUND,
        suggested=MECHANISMS,
    )
    sweep: str = option(
        "",
        help="layers: each mechanism in one layer at a time, full in the others, and each factor of frames "
        "from each layer on; greedy: search for the mechanism and the frame rate of each layer, with KL up "
        "to `limit`; empty: the same in all layers",
        affects="result",
        only=FOUND,
        choices=("", LAYERS, GREEDY),
    )
    limit: float = option(
        0.01,
        help="maximum KL divergence from full attention, mean over tokens or frames",
        affects="result",
        only=("sweep", GREEDY),
        unit="nats",
        minimum=1e-9,
        maximum=100,
    )
    join_s: float = option(
        0.0,
        help="join successive utterances, with pauses, into inputs of at most this length; 0: don't join",
        affects="result",
        only=FOUND,
        unit="s",
        maximum=7200,
    )
    language: str = option(
        "",
        help="language of the recordings, e.g. de; empty: English, for models of English only",
        affects="result",
        only=FOUND,
    )
    examples: int = option(
        0, help="evaluate this many inputs, the first ones; 0: all", affects="result", only=FOUND
    )
    batch: int = option(
        4096,
        help="size of a batch, padding included; each input of Whisper has 1,500",
        affects="cost",
        only=FOUND,
        unit="positions",
        minimum=1,
        maximum=100_000_000,
    )
    backend: str = option(
        "auto",
        help="auto | reference | native; without data as in asr train",
        affects="result",
        choices=BACKENDS,
    )
    evaluate: list[str] = option(
        [],
        help="mechanisms to evaluate every exchangeable model with, besides the one of training; empty: all "
        f"candidates' and {ORACLE}; [{OWN}]: no other",
        affects="result",
        only=TRAINED,
        suggested=MECHANISMS,
    )
    seeds: list[int] = option(
        [0],
        help="one training each, unless a candidate sets its own seeds",
        affects="result",
        only=TRAINED,
        maximum=LARGEST_SEED,
    )
    budget: list[str] = option(
        [],
        help="training time per model, e.g. 10min; several, e.g. 3min,12min: a training for each; "
        "alternatively steps or epochs",
        affects="result",
        only=TRAINED,
    )
    budget_clock: str = option(
        "wall",
        help="wall | cpu: CPU seconds, fairer on a shared machine | steps: as many steps as fit in this CPU "
        "time by the cost of a step, which is measured for all candidates in turns before training",
        affects="result",
        only=[TRAINED, ("budget",)],
        choices=(*CLOCKS, STEPS),
    )
    steps: int = option(0, help="optimiser steps per model", affects="result", only=TRAINED)
    epochs: int = option(
        0,
        help="epochs per model; without budget, steps and epochs the recipe decides",
        affects="result",
        only=TRAINED,
    )
    learning_rates: list[float] = option(
        [],
        help="peak learning rates: each candidate is first trained with each of them and its first seed, and "
        "keeps the one with the lowest error on dev; empty: no choice, optimizer.learning_rate",
        affects="result",
        only=TRAINED,
        maximum=100,
    )
    splits: list[str] = option(
        ["test"], help="splits of the data, or manifests, to evaluate on", affects="result"
    )
    metric: str = option(
        "",
        help="main error rate of tables and figures: per | wer | cer | official, which needs NIST's sclite; "
        "empty: the one measured in training",
        affects="result",
        only=TRAINED,
    )
    # The ranges of two equally fast models are disjoint in 1 % of cases with 5 repeats, in 10 % with 3.
    timing_repeats: int = option(
        5,
        help="timed forward passes per model; tables show their median and range",
        affects="result",
        only=TRAINED,
        minimum=1,
        maximum=100_000,
    )
    device: str = option("auto", help="device for evaluation and timing: auto | cpu | cuda", affects="cost")
    precision: str = option(
        "fp32",
        help=f"precision of evaluation and timing: {' | '.join(PRECISIONS)}; auto: fp32; "
        "trainings have trainer.precision",
        affects="result",
        choices=PRECISIONS,
    )
    folder: str = option("", help="output folder; empty: exp/compare/<recipe>", affects="place")
    reuse: str = option(
        "",
        help="folder whose finished runs, at any depth, are used instead of training again; "
        "empty: exp/<recipe>; none: train all",
        affects="place",
        only=TRAINED,
    )
    changed: str = option(
        "refuse",
        help="if existing results have other settings: refuse | rerun",
        affects="place",
        only=TRAINED,
        choices=("refuse", "rerun"),
    )
    dry_run: bool = option(
        False, help="print the plan with a time estimate and stop", affects="place", only=TRAINED
    )
    launcher: str = option(
        "",
        help="runs the jobs: submitit_slurm | submitit_local | ray; empty: worker processes on this machine",
        affects="place",
        only=TRAINED,
        choices=("", "submitit_slurm", "submitit_local", "ray"),
    )
    launch: list[str] = option(
        [],
        help="for submitit: parameters that its documentation lists under AutoExecutor.update_parameters, "
        "e.g. slurm_partition=gpu,gpus_per_node=1; for ray: address=<address> of a cluster (without it, one "
        "on this machine), and what Ray's documentation lists under RemoteFunction.options, e.g. num_gpus=1",
        affects="place",
        only=[TRAINED, ("launcher",)],
        suggested=(
            *("slurm_partition=", "gpus_per_node=", "cpus_per_task=", "mem_gb=", "timeout_min="),
            *("address=", "num_gpus=", "num_cpus=", "memory="),
        ),
    )

    def check(self) -> None:
        """Raise UserError if there is nothing to compare, or options conflict."""
        if self.data:
            self._check_exchange()
        elif not self.attentions and not self.candidates:
            raise UserError("nothing to compare: attentions=[full,i-clustered-25], or candidates=[…]")
        if sum(map(bool, (self.budget, self.steps, self.epochs))) > 1:
            raise UserError(
                "budget, steps and epochs all set the length of training: expected only one of them"
            )
        seconds = [budget.seconds for text in self.budget if (budget := parse_budget(text))]
        if len(set(seconds)) < len(self.budget):
            raise UserError(f"budget={','.join(self.budget)}: expected distinct times")
        rates = self.learning_rates
        if rates and (len(set(rates)) < max(len(rates), 2) or min(rates) <= 0):
            raise UserError(
                f"learning_rates={','.join(f'{rate:g}' for rate in rates)}: expected at least two distinct "
                "rates above 0; for one, use optimizer.learning_rate"
            )
        if rates and len(self.budget) > 1:
            raise UserError(
                f"budget={','.join(self.budget)}: expected one budget with learning_rates, because a rate is "
                "chosen for one length of training"
            )
        if self.metric and self.metric.partition("-")[0] not in (*METRICS, OFFICIAL):
            raise UserError(f"metric={self.metric}: expected {' | '.join((*METRICS, OFFICIAL))}")
        if wrong := [x for x in self.launch if not re.fullmatch(r"\w+=.*", x, re.DOTALL)]:
            raise UserError(f"launch={wrong[0]}: expected <name>=<value>, such as mem_gb=8")
        for name in ("seeds", "splits"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds={self.seeds}: expected distinct seeds")

    def _check_exchange(self) -> None:
        """Raise UserError if there is no model, no way to run it, or if options conflict."""
        if not self.model:
            raise UserError(f"data={self.data}: expected model=<run, folder or name on the Hub> beside it")
        axes = ("frames", "layers", "precisions", "candidates", "peers")
        given = [name for name in axes if getattr(self, name)]
        if not (self.attentions or given):
            raise UserError(
                "nothing to compare: attentions=[full,i-clustered-25], frames=[2] or candidates=[…]"
            )
        if wrong := [x for x in self.candidates if not isinstance(x, str)]:
            raise UserError(
                f"candidates: expected text with data=, e.g. near-25 frames=2, found {wrong[0]!r}"
            )
        if self.sweep:
            self._check_sweep([name for name in given if name != "frames"])

    def _check_sweep(self, wrong: list[str]) -> None:
        """Raise UserError for axes that a sweep doesn't have, or without a mechanism or factor to try."""
        if wrong:
            raise UserError(f"{wrong[0]}=: has no effect with sweep={self.sweep}")
        tried = bool(set(self.attentions) - {FULL} or self.frames)
        if self.baseline != FULL or not tried:
            raise UserError(
                f"sweep={self.sweep}: expected baseline={FULL} and other attentions or frames beside it"
            )
        if any("*" in name for name in self.attentions):
            raise UserError(
                f"sweep={self.sweep}: expected one mechanism for all layers in each of attentions"
            )
        if bad := [x for x in self.frames if not re.fullmatch("[1-9][0-9]?", x)]:
            raise UserError(
                f"frames={bad[0]}: expected one factor for a layer with sweep={self.sweep}, e.g. 2"
            )


@dataclass
class TurnOptions:
    """How operations on random input take turns."""

    threads: int = option(1, help="CPU threads", affects="result", minimum=1, maximum=1024)
    rounds: int = option(
        25,
        help="maximum number of rounds, after one warm-up round; fewer than five show no difference",
        affects="result",
        minimum=1,
        maximum=1_000_000,
    )
    seconds: float = option(
        20.0,
        help="time limit for the rounds of one length; at least five rounds run",
        affects="result",
        unit="s",
        maximum=1e6,
    )


@dataclass
class AdviceConfig(TurnOptions):
    """Mechanisms to measure, and how."""

    attentions: list[str] = option(
        [],
        help="mechanisms of the softmax family to measure beside full, also 'near-25 frames=2'; empty: those "
        "of the map, and full with half the frames and in bfloat16",
        affects="result",
        suggested=MECHANISMS,
    )
    measure: bool = option(
        False, help="measure even if the map has this processor, model and length", affects="result"
    )
    longest: int = option(
        4096,
        help="longest sequence to measure",
        affects="result",
        unit="encoder positions",
        minimum=16,
        maximum=10_000_000,
    )
    device: str = option("auto", help="auto | cpu (timed in CPU seconds) | cuda", affects="result")


@dataclass
class BenchOptions(TurnOptions):
    """Operations to run on random input, and how."""

    figure: str = option(
        "",
        help="options of a paper's figure, conf/figure/<name>.yaml; other options override them: "
        "clustered | agglomerative | cast; map: what pays at which length",
        affects="result",
        suggested=partial(configurations, "figure"),
    )
    attentions: list[str] = option(
        ["full", "lsh-1", "lsh-4", "clustered-100", "i-clustered-100"],
        help="mechanisms, or all; alternatives as i-clustered-25/100:topk=16/32; name@reference selects "
        "a backend, name@2 two threads (with clock=wall), "
        "peer:i-clustered-100 selects pytorch-fast-transformers, peer:lsh-4 reformer-pytorch; "
        "with unit=model also 'full frames=1,2*8 precision=bf16'",
        affects="result",
        suggested=MECHANISMS,
    )
    causal: str = option(
        "named",
        help="named: as in attentions; both: also the causal form of mechanisms that have one",
        affects="result",
        choices=("named", "both"),
    )
    lengths: list[int] = option(
        [512, 1024, 2048, 4096, 8192, 16384, 32768],
        help="sequence lengths N (unit=model: in feature frames)",
        affects="result",
        minimum=1,
        maximum=100_000_000,
    )
    baseline: str = option(
        "full", help="mechanism that the others are compared with", affects="result", suggested=MECHANISMS
    )
    unit: str = option(
        "mechanism",
        help="mechanism | layer (a transformer layer, with projections and feed-forward part) | model "
        "(encoder, loss and optimiser); the last two include mechanisms with parameters of their own",
        affects="result",
        choices=(*SIZED, "model"),
    )
    model: str = option(
        "wsj",
        help="preset in conf/model, or the folder of a run",
        affects="result",
        only=("unit", "model"),
        suggested=partial(configurations, "model"),
    )
    frames: str = option(
        "", help=f"{FRAMES}; empty: the model's own", affects="result", only=("unit", "model")
    )
    loss: LossConfig = options_of(LossConfig, only=("unit", "model"))
    feedforward: int = option(
        1536,
        help="hidden size of the feed-forward part; 0: self-attention alone",
        affects="result",
        only=("unit", "layer"),
        maximum=1_000_000,
    )
    batch: str = option("1", help="sequences B, or max: as many as fit into `memory`", affects="result")
    memory: float = option(
        2.0,
        help="memory that a call may take beyond parameters and input",
        affects="result",
        only=("batch", "max"),
        unit="GiB",
        minimum=0.01,
        maximum=100_000,
    )
    heads: int = option(6, help="heads H", affects="result", only=("unit", SIZED), minimum=1, maximum=100_000)
    head_dim: int = option(
        64, help="head size D", affects="result", only=("unit", SIZED), minimum=1, maximum=4096
    )
    passes: list[str] = option(
        list(PASSES),
        help="forward (unit=model: encoding) | forward+backward (unit=model: a training step) | "
        "grouping (the groups of clustered attention alone)",
        affects="result",
        choices=(*PASSES, GROUPING),
    )
    precision: str = option(
        "fp32",
        help=f"type of input and parameters (unit=model: of matrix products): {' | '.join(PRECISIONS)}; "
        "auto: bf16 if the processor has instructions for it",
        affects="result",
        choices=PRECISIONS,
    )
    device: str = option("cpu", help="auto | cpu | cuda", affects="result")
    clock: str = option(
        "cpu",
        help="cpu: CPU time; wall: elapsed time (always used on cuda)",
        affects="result",
        choices=CLOCKS,
    )
    longest_call: float = option(
        0.0,
        help="leave out calls that would take longer, judged by the next shorter length; where this leaves "
        "out the baseline, time the others once; 0: leave out nothing",
        affects="result",
        unit="s",
        maximum=1e6,
    )
    peak_memory: bool = option(
        True, help="also measure peak memory (on the CPU: Linux only)", affects="result"
    )
    out: str = option(
        "exp/bench.json", help="results file; the plot is written beside it as .png and .pdf", affects="place"
    )
    seed: int = option(0, help="random seed for the input", affects="result", maximum=2**32 - 1)

    def check(self) -> None:
        """Raise UserError for an empty list, an invalid file name or an invalid batch."""
        for name in ("attentions", "lengths", "passes"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        if GROUPING in self.passes and self.unit != "mechanism":
            raise UserError(f"passes={GROUPING}: expected unit=mechanism")
        if self.loss != LossConfig() and PASSES[-1] not in self.passes:
            raise UserError(f"loss.name={self.loss.name}: has no effect without passes={PASSES[-1]}")
        if self.loss.intermediate or self.loss.consistency:
            raise UserError("loss.intermediate, loss.consistency: have no effect in asr bench")
        if Path(self.out).suffix != ".json":
            raise UserError(f"out={self.out}: expected a name that ends in .json")
        if self.batch != "max" and not (self.batch.isdecimal() and 1 <= int(self.batch) <= LARGEST_BATCH):
            raise UserError(f"batch={self.batch}: expected max or a number 1 … {LARGEST_BATCH}")
