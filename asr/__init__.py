"""Train, decode, score and compare CTC speech recognisers with exchangeable attention."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.errors import UserError
    from asr.library import compare, decode, prepare, score, train
    from asr.recognizer import Recognizer

__version__ = "0.1.0"
__all__ = [
    "Recognizer",
    "UserError",
    "__version__",
    "compare",
    "decode",
    "prepare",
    "score",
    "train",
]


def __getattr__(name: str) -> object:
    """Import the names in `__all__` on first use, so that `import asr` stays fast."""
    if name in __all__ and not name.startswith("__"):
        homes = {"Recognizer": "asr.recognizer", "UserError": "asr.errors"}
        return getattr(importlib.import_module(homes.get(name, "asr.library")), name)
    raise AttributeError(f"module 'asr' has no attribute {name!r}")
