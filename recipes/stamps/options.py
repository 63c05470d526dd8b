"""Options of the spoken descriptions."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TOKENIZERS_HELP, PreparationOptions

LANGUAGES = ["es", "ro", "ru", "fr", "bg", "el", "be", "ca", "da"]


@dataclass
class Options(PreparationOptions):
    """Languages, source of the recordings, and trimming."""

    languages: list[str] = option(
        LANGUAGES, help="languages of the recordings, e.g. [es,fr]", affects="result"
    )
    source: str = option(
        "", help="folder that contains tuxpaint/stamps; empty: apt-get download", affects="result"
    )
    fastest: float = option(
        24.0,
        help="leave out faster recordings, which are cut short",
        affects="result",
        unit="characters/s",
        minimum=1,
        maximum=1000,
    )
    silence_db: float = option(
        40.0, help="silence threshold below the loudest 10 ms", affects="result", unit="dB", maximum=200
    )
    margin_s: float = option(
        0.1, help="silence kept before and after speech", affects="result", unit="s", maximum=60
    )
    joined_s: float = option(
        0.0,
        help="join the recordings of dev and test, within a language, up to this length as dev_joined and "
        "test_joined; 0: don't",
        affects="result",
        unit="s",
        maximum=3600,
    )
    tokenizers: list[str] = option(["character"], help=TOKENIZERS_HELP, affects="result")
