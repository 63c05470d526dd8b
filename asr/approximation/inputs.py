"""Inputs of a model of speech: utterances, alone or joined."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr.data.audio import load_cut
from asr.data.audio_file import Samples
from asr.data.concatenate import join

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PAUSE_S = 0.5  # between utterances that are one input


@dataclass(frozen=True)
class JoinedInput:
    """Utterances that are one input of the model, joined with pauses.

    Attributes:
        number: position among the inputs, which decides on the pauses.
        cuts: utterances.
        length: encoder positions.
    """

    number: int
    cuts: "Sequence[MonoCut]"
    length: int

    @property
    def id(self) -> str:
        """Id of the first utterance."""
        return str(self.cuts[0].id)

    @property
    def longest(self) -> "MonoCut":
        """The longest utterance."""
        return max(self.cuts, key=lambda cut: cut.duration)

    @property
    def text(self) -> str:
        """Transcripts, with spaces between them."""
        return " ".join(cut.supervisions[0].text for cut in self.cuts)

    def samples(self, rate: int) -> Samples:
        """Return the samples at a rate in Hz."""
        parts = [load_cut(cut, rate) for cut in self.cuts]
        return join(parts, rate, seed=0, epoch=0, group=(self.number,), pause_s=(PAUSE_S, PAUSE_S))
