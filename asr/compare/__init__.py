"""Comparison of attention mechanisms under one protocol: from candidates to error rates, costs and advice."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package as a function: once imported, it hides the function `asr.compare`, which has its name."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """See `asr.library.compare`."""
        from asr.library import compare

        return compare(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable
