"""Building blocks of every recipe's `prepare.py`: options, audio facts, problems, parallel reading, output.

`recipes/README.md` shows a complete recipe in one file.
"""

from asr.data.facts import VERIFY_HELP, audio_facts, header_facts, samples_as_expected
from asr.files import parse_json
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.lexicon import lexicon_packages, word_lexicon
from asr.preparation.run import TOKENIZERS_HELP, Preparation, PreparationOptions
from asr.text.files import read_lines, read_text

__all__ = [
    "TOKENIZERS_HELP",
    "VERIFY_HELP",
    "Preparation",
    "PreparationOptions",
    "audio_facts",
    "header_facts",
    "lexicon_packages",
    "parse_json",
    "read_lines",
    "read_text",
    "recording",
    "samples_as_expected",
    "utterance_cut",
    "word_lexicon",
]
