"""Options of training and development data."""

from dataclasses import dataclass

from asr.config import option

MAX_DURATION_S = 40.0  # longer utterances are left out of training by default
MIN_DURATION_S = 0.1  # shorter utterances are always left out: they hardly contain a phone


@dataclass
class DataConfig:
    """Training and development data, and how to batch them."""

    train: list[str] = option(
        [],
        help="training manifests: folders written by `asr prepare`, *.cuts.jsonl.gz files, or folders in "
        "Lhotse Shar format",
        affects="result",
    )
    dev: str = option(
        "",
        help="development manifest; empty: split `dev` next to the first training manifest",
        affects="result",
    )
    frames_per_batch: int = option(
        20000,
        help="maximum number of feature frames per batch, padding included; 0: chosen by the amount of data",
        affects="result",
        unit="frames",
    )
    utterances_per_batch: int = option(
        0,
        help="size of a training batch; 0: frames_per_batch decides",
        affects="result",
        unit="utterances",
    )
    workers: int = option(
        1,
        help="audio loading processes per rank; 0: load in the training process",
        affects="cost",
        maximum=1024,
    )
    max_duration_s: float = option(
        MAX_DURATION_S,
        help="maximum duration; longer utterances are left out and listed",
        affects="result",
        unit="s",
        minimum=MIN_DURATION_S,
    )
    concatenate_s: float = option(
        0.0,
        help="join training utterances, with pauses, up to this length; 0: don't join",
        affects="result",
        unit="s",
    )
    concatenate_epochs: int = option(
        0,
        help="epochs in which the length grows to concatenate_s, from single utterances in the first; 0: "
        "full length from the first step",
        affects="result",
        only=("concatenate_s",),
    )
