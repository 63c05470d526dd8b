"""Options of `asr bench`, and the mechanisms that they stand for."""

from dataclasses import dataclass
from pathlib import Path

from asr.attention import MECHANISMS, default_names, parse_name
from asr.attention.layer import OwnParameterLayer
from asr.benchmark.mechanisms import DTYPES, PASSES, causal_form, split_threads
from asr.config import option
from asr.errors import UserError

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
    )
    attentions: list[str] = option(
        ["full", "lsh-1", "lsh-4", "clustered-100", "i-clustered-100"],
        help="mechanisms, or all; name@reference selects a backend, name@2 two threads (with clock=wall), "
        "peer:i-clustered-100 selects pytorch-fast-transformers, peer:lsh-4 reformer-pytorch",
        affects="result",
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
    baseline: str = option("full", help="mechanism that the others are compared with", affects="result")
    layer: bool = option(
        False,
        help="measure a whole transformer layer, with projections and feed-forward part; includes mechanisms "
        "with parameters of their own",
        affects="result",
    )
    feedforward: int = option(
        1536,
        help="hidden size of the feed-forward part; 0: self-attention alone",
        affects="result",
        only=("layer", True),
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
    heads: int = option(6, help="heads H", affects="result", minimum=1, maximum=100_000)
    head_dim: int = option(64, help="head size D", affects="result", minimum=1, maximum=4096)
    passes: list[str] = option(list(PASSES), help=" | ".join(PASSES), affects="result", choices=PASSES)
    dtype: str = option("float32", help=" | ".join(DTYPES), affects="result", choices=DTYPES)
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
        help="time limit for the rounds of one length and pass; at least three rounds run",
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
        """Raise UserError for an empty list, a name that can't be measured."""
        for name in ("attentions", "lengths", "passes"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        if Path(self.out).suffix != ".json":
            raise UserError(f"out={self.out}: expected a name that ends in .json")
        if self.batch != "max" and not (self.batch.isdecimal() and 1 <= int(self.batch) <= LARGEST_BATCH):
            raise UserError(f"batch={self.batch}: expected max or a number 1 … {LARGEST_BATCH}")
        for name in self.attentions:
            if name != ALL:
                self._check_name(name)

    def _check_name(self, name: str) -> None:
        head, (_, threads) = name.partition("@")[0], split_threads(name)
        if threads == 0:
            raise UserError(f"attentions={name}: expected at least 1 thread")
        if threads and self.clock == "cpu":
            raise UserError(f"attentions={name}: CPU time adds up over threads; use clock=wall")
        if name.startswith("peer:"):
            if self.layer:
                raise UserError(f"attentions={name}: expected a mechanism of this program with layer=true")
        elif not self.layer and has_own_parameters(head):
            raise UserError(f"attentions={name}: has parameters of its own; use layer=true")

    def names(self) -> list[str]:
        """Return what to measure: `attentions` with `all` and `causal` resolved."""
        every = [name for name in default_names() if self.layer or not has_own_parameters(name)]
        named = [x for name in self.attentions for x in (every if name == ALL else [name])]
        if self.causal == "both":
            named = [x for name in named for x in (name, causal_form(name)) if x]
        return list(dict.fromkeys(named))


def has_own_parameters(name: str) -> bool:
    """Return whether a mechanism is measured as part of a layer only."""
    return issubclass(MECHANISMS[parse_name(name).mechanism], OwnParameterLayer)
