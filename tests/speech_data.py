"""The data of a training run on a corpus of tones."""

from pathlib import Path
from typing import Any

from asr import Recognizer
from asr.augmentation.options import WaveformConfig
from asr.data.module import SpeechData, load_training_cuts
from asr.data.options import DataConfig


def speech_data(
    corpus: Path,
    recognizer: Recognizer,
    speed_factors: tuple[float, ...] = (1.0,),
    seed: int = 0,
    augment: dict[str, Any] | None = None,
    **options: object,
) -> SpeechData:
    """Return data with the features and vocabulary of a recogniser."""
    defaults = {"train": [str(corpus)], "frames_per_batch": 1500, "workers": 0}
    config = DataConfig(**{**defaults, **options})  # type: ignore[arg-type]
    features = recognizer.model.config.features
    return SpeechData(
        config,
        load_training_cuts(config),
        recognizer.tokenizer,
        recognizer.model.encoder_lengths,
        sample_rate=features.sample_rate,
        frame_shift_ms=features.frame_shift_ms,
        topology="ctc",
        seed=seed,
        augment=WaveformConfig(speed_factors=list(speed_factors), **(augment or {})),
    )
