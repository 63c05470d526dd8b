"""Options for your own audio."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TEXT_HELP, TEXT_RULES, OwnDataOptions


@dataclass
class Options(OwnDataOptions):
    """Location of audio and transcripts, and how to match them."""

    audio: str = option(
        "",
        help="folder with the recordings, or a published corpus; subfolders are searched",
        affects="result",
    )
    transcripts: str = option(
        "",
        help="table (.tsv, .csv, .json, .jsonl, .parquet), folder with one table per split (train.tsv, …), "
        "with a published corpus's transcripts or one .txt per recording; empty: in audio=",
        affects="result",
    )
    columns: str = option(
        "", help="unusual column names of the table: audio:clip,text:phrase", affects="result"
    )
    speaker: str = option(
        "",
        help="without a speaker column: regular expression on the path below audio=, e.g. '^([^/]+)/'",
        affects="result",
    )
    channel: int | None = option(
        None,
        help="channel to use, from 0; null: recordings must have one channel",
        affects="result",
        maximum=1023,
    )
    unlisted: bool = option(
        False, help="leave out and list recordings without a transcript", affects="result"
    )
    text: str = option(
        "auto",
        help=TEXT_HELP,
        affects="result",
        choices=(*TEXT_RULES, "auto"),
    )
