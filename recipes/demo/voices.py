"""The speakers of the embedded corpus: espeak-ng voices, pitches, rates and resampling factors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Voice:
    """A speaker.

    Attributes:
        speaker: speaker id.
        espeak: espeak-ng accent and voice variant.
        pitch: espeak-ng pitch, 0 to 100.
        rate: words per minute.
        warp: resampling factor, which shifts pitch and formants together like a different vocal tract.
    """

    speaker: str
    espeak: str
    pitch: int
    rate: int
    warp: float

    @property
    def rhotic(self) -> bool:
        """Whether the accent has a distinct reduced r-coloured vowel."""
        return self.espeak.startswith("gmw/en-US")


# Do not use the variants f2, f3, f5, Alicia, sandro and victor: their samples differ between processes.
TRAINING_VOICES = [
    Voice("ann", "gmw/en-US+Annie", 52, 165, 1.00),
    Voice("bob", "gmw/en-US+m1", 45, 175, 0.97),
    Voice("carl", "gmw/en-US+m3", 55, 160, 1.03),
    Voice("dora", "gmw/en-US+f4", 50, 170, 1.02),
    Voice("ed", "gmw/en-GB-x-rp+edward", 50, 165, 1.06),
    Voice("fay", "gmw/en+f1", 55, 165, 1.00),
    Voice("gus", "gmw/en-US+m7", 40, 180, 0.92),
    Voice("hal", "gmw/en+m2", 60, 160, 1.10),
    Voice("ida", "gmw/en-US+linda", 45, 175, 0.95),
    Voice("jack", "gmw/en-US+Michael", 65, 170, 1.04),
    Voice("kim", "gmw/en-GB-x-rp+grandma", 55, 170, 0.98),
    Voice("leo", "gmw/en-US+max", 35, 165, 1.00),
]
UNSEEN_VOICES = [
    Voice("mona", "gmw/en-US+aunty", 55, 170, 1.04),
    Voice("ned", "gmw/en-US+Andy", 50, 170, 1.00),
    Voice("otto", "gmw/en+m5", 50, 165, 0.94),
    Voice("pam", "gmw/en-GB-x-rp+belinda", 45, 165, 0.97),
    Voice("quin", "gmw/en-US+robert", 60, 175, 1.07),
]
