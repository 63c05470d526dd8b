"""Train, decode, score and compare CTC speech recognisers with exchangeable attention."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.recognizer import Recognizer

__version__ = "0.1.0"
__all__ = ["Recognizer", "__version__"]


def __getattr__(name: str) -> object:
    """Import `Recognizer` on first use, so that `import asr` stays fast."""
    if name == "Recognizer":
        from asr.recognizer import Recognizer

        return Recognizer
    raise AttributeError(f"module 'asr' has no attribute {name!r}")
