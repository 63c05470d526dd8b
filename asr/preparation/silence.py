"""Start and end of the speech in a recording, by the energy of 10 ms frames."""

import numpy as np

FRAME_S = 0.01  # the usual frame shift of features


def speech_bounds(samples: np.ndarray, sample_rate: int, silence_db: float) -> tuple[float, float] | None:
    """Return start and end of the speech in seconds; None if all is silence.

    Args:
        samples: [samples], integers or floats.
        sample_rate: sample rate in Hz.
        silence_db: silence threshold in dB below the loudest frame.
    """
    size = round(FRAME_S * sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = (frames.astype(np.float64) ** 2).mean(axis=1)
    if not power.size or power.max() == 0:
        return None
    loud = np.flatnonzero(power > power.max() * 10 ** (-silence_db / 10))
    return float(loud[0] * size / sample_rate), float((loud[-1] + 1) * size / sample_rate)
