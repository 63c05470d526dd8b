"""Options of the report, apart from the modules that draw it: `asr report --help` is quick."""

from dataclasses import dataclass

from asr.config import option


@dataclass
class ReportOptions:
    """Content of a report besides the results."""

    metric: str = option(
        "",
        help="main error rate: per | wer | cer | official | official-<subset>; empty: the one chosen by "
        "asr compare",
    )
    bench: str = option("", help="results of asr bench; empty: bench*.json in the folder or above")
    audio: int = option(
        5, help="number of each model's worst utterances with an audio player; 0: no audio", maximum=10_000
    )
    maps: bool = option(True, help="show attention maps and approximation errors (loads a trained model)")
    utterance: str = option("", help="utterance for the attention maps; empty: the one of median length")
    layer: int = option(0, help="layer for the attention maps, from 1; 0: the last")
    head: int = option(0, help="head for the attention maps, from 1; 0: the one with the most peaked weights")
    static: bool = option(True, help="write figures/*.png and *.pdf")
