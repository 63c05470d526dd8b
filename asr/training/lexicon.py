"""The lexicon of a training; a separate module, so that planning a comparison doesn't load Lightning."""

import functools
from pathlib import Path

from asr.data.places import LEXICON, manifest_path
from asr.files import file_state
from asr.text.lexicon import Lexicon
from asr.training.options import TrainConfig


def training_lexicon(options: TrainConfig) -> Lexicon | None:
    """Return the lexicon named in the options, or those next to the training manifests, merged.

    Returns None unless the tokens are phones.
    """
    if options.tokenizer.kind != "phone":
        return None
    # The lexicons of all corpora: otherwise words that only the second one has would be trained as SPN.
    beside = [manifest_path(place, "train").parent / LEXICON for place in options.data.train]
    named = [Path(options.tokenizer.lexicon)] if options.tokenizer.lexicon else dict.fromkeys(beside)
    return _merged(tuple((path, file_state(path)) for path in named))


# The trainings of a comparison share one lexicon. With 130,000 words, reading it takes 0.4 s of CPU time, and
# its two digests 0.5 s.
@functools.lru_cache(maxsize=1)
def _merged(files: tuple[tuple[Path, str], ...]) -> Lexicon:
    return functools.reduce(Lexicon.merged, (Lexicon.load(path) for path, _ in files))
