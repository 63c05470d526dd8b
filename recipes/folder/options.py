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
        help="table (.tsv, .csv, .json, .jsonl, .parquet), or folder with a table per split (train.tsv, …), "
        "a published corpus's transcripts, or a .txt per recording; empty: the folder of audio=",
        affects="result",
    )
    columns: str = option(
        "",
        help="columns with unusual names, e.g. audio:clip,text:phrase if `clip` has the audio files",
        affects="result",
    )
    speaker: str = option(
        "",
        help="if no column has the speaker: regular expression for the path below audio=, whose first group "
        "is the speaker, e.g. '^([^/]+)/'",
        affects="result",
    )
    channel: int | None = option(
        None,
        help="channel to use, from 0; null: recordings must have one channel",
        affects="result",
        maximum=1023,
    )
    unlisted: bool = option(
        False,
        help="leave out recordings without a transcript, and list them in excluded.tsv",
        affects="result",
    )
    text: str = option(
        "auto",
        help=TEXT_HELP,
        affects="result",
        choices=(*TEXT_RULES, "auto"),
    )
