"""What every recipe's `prepare.py` is made of: options, reading, processes, writing, the data card.

A recipe in one file is in `recipes/README.md`.
"""

from asr.preparation.cuts import audio_facts, recording, utterance_cut
from asr.preparation.fingerprint import file_state
from asr.preparation.lexicon import word_lexicon
from asr.preparation.options import TOKENIZERS_HELP, PreparationOptions
from asr.preparation.run import Preparation
from asr.text.files import read_lines, read_text

__all__ = [
    "TOKENIZERS_HELP",
    "Preparation",
    "PreparationOptions",
    "audio_facts",
    "file_state",
    "read_lines",
    "read_text",
    "recording",
    "utterance_cut",
    "word_lexicon",
]
