"""Options of the embedded corpus."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import PreparationOptions


@dataclass
class Options(PreparationOptions):
    """Contents of the embedded corpus; published results use the defaults."""

    # CMUdict has many vulgar words; seed 26 draws none.
    seed: int = option(
        26,
        help="random seed for sentences, random words and voice variation",
        affects="result",
        maximum=2**32 - 1,
    )
    train_minutes: float = option(
        66.0,
        help="approximate amount of speech in train",
        affects="result",
        unit="min",
        minimum=0.1,
        maximum=100_000,
    )
    dev_minutes: float = option(
        4.0,
        help="approximate amount of speech in dev",
        affects="result",
        unit="min",
        minimum=0.1,
        maximum=100_000,
    )
    test_minutes: float = option(
        7.0,
        help="approximate amount of speech in test: unseen sentences, training voices",
        affects="result",
        unit="min",
        minimum=0.1,
        maximum=100_000,
    )
    test_voices_minutes: float = option(
        7.0,
        help="approximate amount of speech in test_voices: unseen sentences and voices",
        affects="result",
        unit="min",
        minimum=0.1,
        maximum=100_000,
    )
    voices: int = option(12, help="voices in train, dev and test", affects="result", minimum=1, maximum=12)
    unseen_voices: int = option(5, help="voices in test_voices", affects="result", minimum=1, maximum=5)
    random_words: int = option(
        950,
        help="random CMUdict words in the lexicon, for phone coverage",
        affects="result",
        minimum=1,
        maximum=20_000,
    )
    random_share: float = option(
        0.15, help="fraction of words replaced by random ones", affects="result", maximum=1
    )
    sample_rate: int = option(
        16000,
        help="sample rate of the wav files; 8000 to combine them with prompts",
        affects="result",
        unit="Hz",
        minimum=8000,
        maximum=22_050,
    )
