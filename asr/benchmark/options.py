"""Options of `asr bench`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asr.config import configurations, option, options_of
from asr.config.names import MECHANISMS, PRECISIONS
from asr.errors import UserError
from asr.losses.options import LossConfig
from asr.model.options import FRAMES

PASSES = ("forward", "forward+backward")
GROUPING = "grouping"  # a pass that only mechanisms with groups of queries have
SIZED = ("mechanism", "layer")  # a model has the sizes of its preset
UNITS = (*SIZED, "model")
CLOCKS = ("cpu", "wall")
CAUSAL = ("named", "both")
ALL = "all"
LARGEST_BATCH = 1_000_000


@dataclass
class Options:
    """Options of `asr bench`."""

    figure: str = option(
        "",
        help="options of a paper's figure, conf/figure/<name>.yaml; other options override them: "
        "clustered | agglomerative | cast",
        affects="result",
        suggested=partial(configurations, "figure"),
    )
    attentions: list[str] = option(
        ["full", "lsh-1", "lsh-4", "clustered-100", "i-clustered-100"],
        help="mechanisms, or all; values in turn: i-clustered-25/100:topk=16/32; name@reference selects "
        "a backend, name@2 two threads (with clock=wall), "
        "peer:i-clustered-100 selects pytorch-fast-transformers, peer:lsh-4 reformer-pytorch",
        affects="result",
        suggested=MECHANISMS,
    )
    causal: str = option(
        "named",
        help="named: as in attentions; both: also the causal form of mechanisms that have one",
        affects="result",
        choices=CAUSAL,
    )
    lengths: list[int] = option(
        [512, 1024, 2048, 4096, 8192, 16384, 32768],
        help="sequence lengths N",
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
        choices=UNITS,
    )
    model: str = option(
        "wsj",
        help="preset in conf/model",
        affects="result",
        only=("unit", "model"),
        suggested=partial(configurations, "model"),
    )
    frames: str = option("1", help=FRAMES, affects="result", only=("unit", "model"))
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
    threads: int = option(1, help="threads on the CPU", affects="result", minimum=1, maximum=1024)
    rounds: int = option(
        15,
        help="maximum number of rounds, after one warm-up round",
        affects="result",
        minimum=1,
        maximum=1_000_000,
    )
    seconds: float = option(
        10.0,
        help="time limit for the rounds of one length and pass; at least five rounds run",
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
