"""Log-probabilities of a split, batch by batch, as input for a search."""

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from asr.data.batch import Batch, Utterances
from asr.data.cuts import Cuts
from asr.data.sampler import BatchPlan, plan_by_length
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.threads import in_threads
from asr.shards import Shard


@dataclass(frozen=True)
class Emissions:
    """Log-probabilities of a batch.

    Attributes:
        ids: [B] names of the utterances.
        log_probs_BTV: [B, T, V] log-probabilities on the model's device, blank at index 0.
        lengths_B: [B] valid frames.
        encode_s: time of features and encoder in seconds, in a thread of its own.
    """

    ids: list[str]
    log_probs_BTV: Tensor
    lengths_B: Tensor
    encode_s: float


def emissions(
    model: AcousticModel,
    cuts: Cuts,
    *,
    frames_per_batch: int,
    resample: bool = True,
    shard: Shard | None = None,
    done: Container[int] = (),
) -> Iterator[Emissions]:
    """Yield the log-probabilities of all cuts, longest first; audio is read ahead in threads.

    Args:
        model: acoustic model.
        cuts: utterances with audio.
        frames_per_batch: maximum number of feature frames per batch, padding included.
        resample: resample audio with another sample rate; false: raise UserError.
        shard: only the batches of a shard.
        done: positions of cuts; a batch of these alone is left out.
    """
    features = model.config.features
    frames = np.maximum(1, np.rint(cuts.durations_s * 1000 / features.frame_shift_ms)).astype(np.int64)
    plans = plan_by_length(frames, frames_per_batch, np.argsort(-frames, kind="stable"))
    utterances = Utterances(cuts, None, features.sample_rate, resample=resample)
    batches = [BatchPlan(tuple(plan.tolist())) for plan in plans]
    own = shard.of(batches) if shard else batches
    left = [batch for batch in own if not all(position in done for position in batch.utterances)]
    return in_threads(model, utterances.__getitem__, partial(_encode, model), left)


@torch.inference_mode()
def _encode(model: AcousticModel, batch: Batch) -> Emissions:
    started = time.perf_counter()
    batch = batch.to(model.device)
    log_probs_BTV, lengths_B = model(batch.audio, batch.audio_lengths)
    for name, log_probs_TV, length in zip(batch.ids, log_probs_BTV, lengths_B.tolist(), strict=True):
        if log_probs_TV[:length].isnan().any():
            raise UserError(
                f"utterance {name}: expected log-probabilities, found NaN (samples far beyond "
                "1, or a broken model?)"
            )
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)  # otherwise the encoder's time would count as search time
    return Emissions(batch.ids, log_probs_BTV, lengths_B, time.perf_counter() - started)
