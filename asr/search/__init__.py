"""From CTC posteriors to labels, times and words."""

from asr.search.build import DECODERS, Search, SearchConfig, build_search
from asr.search.path import TokenPath, Word

__all__ = ["DECODERS", "Search", "SearchConfig", "TokenPath", "Word", "build_search"]
