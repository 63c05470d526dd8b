"""Options of the recorded prompts."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TOKENIZERS_HELP, PreparationOptions


@dataclass
class Options(PreparationOptions):
    """Languages, source of the prompts, and trimming."""

    languages: list[str] = option(
        ["en"], help="languages of the prompts: en, es, fr, it, ru", affects="result"
    )
    sample_rate: int = option(
        8000,
        help="8000: wav files, read in place | 16000: g722 files, converted to wav",
        affects="result",
        unit="Hz",
        choices=(8000, 16000),
    )
    source: str = option(
        "",
        help="folder with the recordings and core-sounds-<language>.txt[.gz]; empty: Debian packages are "
        "downloaded",
        affects="result",
    )
    silence_db: float = option(
        40.0, help="silence threshold below the loudest 10 ms", affects="result", unit="dB", maximum=200
    )
    margin_s: float = option(
        0.1, help="silence kept before and after speech", affects="result", unit="s", maximum=60
    )
    max_s: float = option(
        40.0,
        help="longest recording after trimming; longer ones are left out",
        affects="result",
        unit="s",
        minimum=0.1,
    )
    tokenizers: list[str] = option(["character", "phone"], help=TOKENIZERS_HELP, affects="result")
