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
        "",
        help="folder that contains tuxpaint/stamps; empty: a Debian package is downloaded",
        affects="result",
    )
    fastest: float = option(
        24.0,
        help="highest rate of speech; a faster recording counts as cut short and is left out",
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
        help="length up to which recordings of a language in dev and test are joined, for two more splits, "
        "dev_joined and test_joined; 0: none",
        affects="result",
        unit="s",
        maximum=3600,
    )
    tokenizers: list[str] = option(["character"], help=TOKENIZERS_HELP, affects="result")
