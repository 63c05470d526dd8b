"""Batches of padded utterances, and the data set that loads and collates them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from lhotse.cut import MonoCut
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from asr.augmentation.stages import Waveforms
from asr.data.audio import load_cut
from asr.data.concatenate import Concatenation, join
from asr.data.sampler import BatchPlan
from asr.data.stream import StreamBatch
from asr.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Batch(StreamBatch):
    """Utterances padded to one length; ids of joined utterances are separated by `+`.

    Attributes:
        audio: [B, samples] float32, right-padded with zeros.
        audio_lengths: [B] valid samples.
        tokens: [B, U] int64 targets, right-padded with zeros.
        token_lengths: [B] valid targets.
    """

    audio: Tensor
    audio_lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor


class Utterances(Dataset[Batch]):
    """Data set of whole batches, indexed by `BatchPlan`.

    The augmentation of an utterance depends only on (seed, epoch, utterance), not on the worker that loads it
    or on previous batches.

    Args:
        cuts: checked cuts; each is accessed when its utterance is loaded.
        tokenizer: encodes transcripts as targets; None: no targets.
        sample_rate: sample rate of the model in Hz.
        speed_factors: speed perturbation factors; one is drawn for each utterance and epoch.
        seed: random seed for speeds and pauses.
        waveforms: further augmentation.
        concatenation: joins utterances; a plan's indices then refer to the groups of its epoch.
    """

    def __init__(
        self,
        cuts: Sequence[MonoCut],
        tokenizer: Tokenizer | None,
        sample_rate: int,
        *,
        speed_factors: list[float] | None = None,
        seed: int = 0,
        waveforms: Waveforms | None = None,
        concatenation: Concatenation | None = None,
    ) -> None:
        self.cuts = cuts
        self.tokenizer = tokenizer
        self.sample_rate = sample_rate
        self.speed_factors = speed_factors or [1.0]
        self.seed = seed
        self.waveforms = waveforms
        self.concatenation = concatenation

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, plan: BatchPlan) -> Batch:
        groups = self.concatenation.groups(plan.epoch) if self.concatenation else None
        chosen = [groups[i] if groups else (i,) for i in plan.utterances]
        joined = [{i: self.cuts[i] for i in group} for group in chosen]
        audio = [torch.from_numpy(self._samples(plan.epoch, cuts)) for cuts in joined]
        tokens = [torch.tensor(self._targets(cuts.values()), dtype=torch.int64) for cuts in joined]
        return Batch(
            ids=["+".join(cut.id for cut in cuts.values()) for cuts in joined],
            audio=pad_sequence(audio, batch_first=True),
            audio_lengths=torch.tensor([len(x) for x in audio]),
            tokens=pad_sequence(tokens, batch_first=True),
            token_lengths=torch.tensor([len(x) for x in tokens]),
            plan=plan,
        )

    def _samples(self, epoch: int, cuts: dict[int, MonoCut]) -> NDArray[np.float32]:
        parts = []
        for i, cut in cuts.items():
            part = load_cut(cut, self.sample_rate, speed=self._speed(epoch, i))
            parts.append(self.waveforms.apply(part, epoch, i)[0] if self.waveforms else part)
        return join(parts, self.sample_rate, seed=self.seed, epoch=epoch, group=tuple(cuts))

    def _targets(self, cuts: Iterable[MonoCut]) -> list[int]:
        if self.tokenizer is None:
            return []
        return self.tokenizer.encode(" ".join(cut.supervisions[0].text or "" for cut in cuts))

    def _speed(self, epoch: int, utterance: int) -> float:
        if len(self.speed_factors) == 1:
            return self.speed_factors[0]
        draw = np.random.default_rng([self.seed, epoch, utterance]).integers(len(self.speed_factors))
        return self.speed_factors[int(draw)]
