"""Options of the augmentation of training audio."""

from dataclasses import dataclass

from asr.config import option
from asr.errors import UserError

CODECS = ("narrow", "mu-law", "gsm", "mp3")
WHITE, GENERATED = "white", "generated"  # values in place of a folder


@dataclass
class WaveformConfig:
    """Augmentation of training audio."""

    speed_factors: list[float] = option(
        [1.0],
        help="speed factors, which also change the pitch, one drawn for each utterance and epoch",
        affects="result",
        minimum=0.1,
        maximum=10,
    )
    tempo_factors: list[float] = option(
        [1.0],
        help="speed factors that preserve the pitch, one drawn for each utterance and epoch",
        affects="result",
        minimum=0.5,
        maximum=2,
    )
    impulse_responses: str = option(
        "",
        help=f"folder of recorded impulse responses to convolve with; {GENERATED}: random rooms; empty: none",
        affects="result",
        suggested=(GENERATED,),
    )
    noise: str = option(
        "",
        help=f"folder of recordings to add; {WHITE}: white noise; empty: none",
        affects="result",
        suggested=(WHITE,),
    )
    noise_snr_db: list[float] = option(
        [5.0, 20.0],
        help="range of the SNR of noise, [low, high]",
        affects="result",
        only=("noise",),
        unit="dB",
        minimum=-200,
        maximum=200,
    )
    volume_db: float = option(
        0.0, help="gain drawn from ±volume_db", affects="result", unit="dB", maximum=100
    )
    codecs: list[str] = option(
        [],
        help=f"codecs to draw from: {' | '.join(CODECS)}; all but mp3 at 8 kHz",
        affects="result",
        choices=CODECS,
    )
    share: float = option(
        0.5, help="probability of each of impulse response, noise and codec", affects="result", maximum=1
    )
    examples: int = option(
        0,
        help="number of utterances to write to <run>/augmented before training, as wav files before and "
        "after augmentation",
        affects="place",
        maximum=1000,
    )

    @property
    def folders(self) -> dict[str, str]:
        """Folders of recordings, by option."""
        given = [
            ("augment.impulse_responses", self.impulse_responses, GENERATED),
            ("augment.noise", self.noise, WHITE),
        ]
        return {option: folder for option, folder, other in given if folder not in ("", other)}

    @property
    def slowest(self) -> float:
        """Lowest factor of speed and tempo together."""
        return min(self.speed_factors) * min(self.tempo_factors)

    @property
    def fastest(self) -> float:
        """Highest factor of speed and tempo together."""
        return max(self.speed_factors) * max(self.tempo_factors)

    def check(self) -> None:
        """Raise UserError for factors or ranges that can't be used."""
        for name in ("speed_factors", "tempo_factors"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected one or more numbers")
        limits = self.noise_snr_db
        if len(limits) != 2 or limits[0] > limits[1]:
            raise UserError(f"noise_snr_db={limits}: expected two ascending numbers, [low, high]")
