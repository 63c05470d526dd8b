"""Options of the report, in a module without slow imports, so that `asr report --help` is quick."""

from dataclasses import dataclass

from asr.config import option


@dataclass
class ReportOptions:
    """Options of a report: what it contains, and how it is shown."""

    metric: str = option(
        "",
        help="main error rate: per | wer | cer | official | official-<subset>; empty: the one chosen by "
        "asr compare",
        affects="result",
    )
    audio: int = option(
        5,
        help="number of each model's worst utterances with an audio player; 0: no audio",
        affects="result",
        maximum=10_000,
    )
    maps: bool = option(
        True, help="show attention maps and approximation errors (loads a trained model)", affects="result"
    )
    refresh: int = option(
        0,
        help="update the page at this interval until the training or comparison ends; a browser that shows "
        "it reloads it by itself; 0: write it once",
        affects="place",
        unit="s",
        maximum=86_400,
    )
    static: bool = option(True, help="write figures/*.png and *.pdf", affects="place")
