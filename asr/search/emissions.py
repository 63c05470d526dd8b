"""Log-probabilities of a split, batch by batch, as input for a search."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from lhotse import CutSet
from torch import Tensor
from torch.utils.data import DataLoader

from asr.data.batch import Utterances
from asr.data.sampler import BatchPlan, plan_by_length
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, evaluating


@dataclass(frozen=True)
class Emissions:
    """Log-probabilities of a batch.

    Attributes:
        ids: [B] names of the utterances.
        log_probs_BTV: [B, T, V] log-probabilities on the model's device, blank at index 0.
        lengths_B: [B] valid frames.
        encode_s: wall time of features and encoder in seconds.
    """

    ids: list[str]
    log_probs_BTV: Tensor
    lengths_B: Tensor
    encode_s: float


def emissions(
    model: AcousticModel, cuts: CutSet, *, frames_per_batch: int, workers: int = 0, resample: bool = True
) -> Iterator[Emissions]:
    """Yield the log-probabilities of all cuts, longest first.

    Args:
        model: acoustic model.
        cuts: utterances with audio.
        frames_per_batch: maximum number of feature frames per batch, padding included.
        workers: number of processes that load audio.
        resample: resample audio with another sample rate; false: raise UserError.
    """
    features = model.config.features
    frames = np.array([max(1, round(cut.duration * 1000 / features.frame_shift_ms)) for cut in cuts])
    plans = plan_by_length(frames, frames_per_batch, np.argsort(-frames, kind="stable"))
    loader = DataLoader(
        Utterances(cuts, None, features.sample_rate, resample=resample),
        batch_size=None,
        sampler=[BatchPlan(tuple(plan.tolist())) for plan in plans],
        num_workers=workers,
    )
    for batch in loader:
        started = time.perf_counter()
        batch = batch.to(model.device)
        with torch.inference_mode(), evaluating(model):
            log_probs_BTV, lengths_B = model(batch.audio, batch.audio_lengths)
        for name, log_probs_TV, length in zip(batch.ids, log_probs_BTV, lengths_B.tolist(), strict=True):
            if log_probs_TV[:length].isnan().any():
                raise UserError(
                    f"utterance {name}: expected log-probabilities, found NaN (samples far beyond "
                    "1, or a broken model?)"
                )
        if model.device.type == "cuda":
            torch.cuda.synchronize()  # otherwise the encoder's time would count as search time
        yield Emissions(batch.ids, log_probs_BTV, lengths_B, time.perf_counter() - started)
