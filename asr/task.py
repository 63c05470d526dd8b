"""The thin LightningModule: training and validation steps, optimiser, metrics."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from asr.checkpoint import FORMAT
from asr.config import option
from asr.ctc import ctc_loss
from asr.data.batch import Batch
from asr.data.module import SpeechData
from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.search.greedy import greedy_search

log = logging.getLogger(__name__)

SCHEDULES = ("cosine", "plateau", "constant")


@dataclass
class OptimizerConfig:
    """The optimiser and its learning rate."""

    name: str = option("adamw", help="adamw | radam")
    learning_rate: float = option(1e-3, help="peak rate")
    betas: list[float] = option([0.9, 0.98], help="decay of the moments")
    weight_decay: float = option(0.01, help="decoupled weight decay, on matrices only")
    schedule: str = option("cosine", help=" | ".join(SCHEDULES))
    warmup_steps: int = option(0, help="linear warm-up; not with schedule=plateau", unit="steps")
    final_ratio: float = option(0.01, help="cosine: last rate / peak rate")
    plateau_factor: float = option(0.5, help="plateau: the rate is multiplied by this")
    plateau_patience: int = option(3, help="plateau: validations without a better dev loss")


def build_optimizer(parameters: dict[str, torch.nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """Return AdamW, or RAdam with decoupled weight decay (the paper's).

    Biases, norms and other vectors are not decayed.
    """
    trained = [x for x in parameters.values() if x.requires_grad]
    groups = [
        {"params": [x for x in trained if x.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [x for x in trained if x.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (config.betas[0], config.betas[1])
    match config.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas)
        case "radam":
            return torch.optim.RAdam(
                groups, lr=config.learning_rate, betas=betas, decoupled_weight_decay=True
            )
    raise UserError(f"optimizer.name={config.name!r}: expected adamw or radam")


def rate_factor(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate at `step` of `steps` relative to the peak rate."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = 0.5 * (1 + np.cos(np.pi * min(1.0, progress)))
    return float(config.final_ratio + (1 - config.final_ratio) * cosine)


class RecognitionTask(lightning.LightningModule):
    """CTC training of a recogniser.

    All random numbers of a step (dropout, augmentation) follow from (seed, batch, rank), so a run
    that was interrupted goes on exactly as if it had not been.

    Args:
        recognizer: the model.
        optimizer: optimiser and schedule.
        steps: optimiser steps of the whole training.
        seed: of the random numbers in the steps.
        clip: greatest gradient norm; 0: not clipped.
        validate_every: batches between validations.
        nonfinite_patience: successive batches without a finite loss before training stops.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        optimizer: OptimizerConfig,
        *,
        steps: int,
        seed: int,
        clip: float,
        validate_every: int,
        nonfinite_patience: int = 10,
    ) -> None:
        super().__init__()
        if optimizer.schedule not in SCHEDULES:
            raise UserError(f"optimizer.schedule={optimizer.schedule!r}: expected one of {SCHEDULES}")
        if optimizer.schedule == "plateau" and optimizer.warmup_steps:
            raise UserError("optimizer.warmup_steps and optimizer.schedule=plateau exclude each other")
        self.recognizer = recognizer
        self.optimizer = optimizer
        self.steps = steps
        self.seed = seed
        self.clip = clip
        self.validate_every = validate_every
        self.nonfinite_patience = nonfinite_patience
        self.nonfinite = {"successive": 0, "total": 0}
        self.finite_in_window = False
        self.error_counts = np.zeros(2)
        self.dev_losses = np.zeros(2)

    @property
    def error_rate_name(self) -> str:
        """The dev error rate that belongs to the vocabulary: `dev_per`, `dev_cer` or `dev_ter`."""
        return {"phone": "dev_per", "character": "dev_cer"}.get(self.recognizer.tokenizer.unit, "dev_ter")

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of each utterance [B], log-probabilities [B, T, V] and frames [B]."""
        log_probs, frames = self.recognizer(batch.audio, batch.audio_lengths)
        return ctc_loss(log_probs, frames, batch.tokens, batch.token_lengths), log_probs, frames

    def on_train_start(self) -> None:
        """Train on the worst batch and forget it: memory runs out now or never."""
        batch = self._data.worst_batch()
        try:
            losses, *_ = self.losses(batch.to(self.device))
            losses.sum().backward()
        except torch.OutOfMemoryError as error:
            longest_s = float(batch.audio_lengths.max()) / self.recognizer.config.features.sample_rate
            raise UserError(
                f"out of memory on the worst batch: {len(batch.ids)} utterances of up to {longest_s:.1f} s; "
                f"lower data.frames_per_batch={self._data.config.frames_per_batch} or data.max_duration_s"
            ) from error
        finally:
            self.zero_grad(set_to_none=True)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make the step's random numbers a function of (seed, batch, rank)."""
        key = [self.seed, self._data.cursor.batches, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))
        self.step_started = time.perf_counter()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the CTC loss per target token; a batch without a finite loss has no gradient."""
        losses, *_ = self.losses(batch)
        self._data.consumed(batch)
        loss = losses.sum() / batch.token_lengths.sum().clamp(min=1)
        if not self.trainer.strategy.reduce_boolean_decision(bool(loss.isfinite()), all=True):
            self._count_nonfinite(batch, losses)
            return loss if self._scaled else self._no_gradient()
        self.nonfinite["successive"] = 0
        self.finite_in_window = True
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Log the throughput in feature frames, padding not counted."""
        frames = float(self.recognizer.filter_banks.frames(batch.audio_lengths).sum())
        self.log("data_epoch", float(batch.plan.epoch))
        self.log("frames_per_s", frames / (time.perf_counter() - self.step_started), prog_bar=True)

    @property
    def _data(self) -> SpeechData:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    @property
    def _scaled(self) -> bool:
        """Whether a gradient scaler skips steps without finite gradients itself (fp16)."""
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def _no_gradient(self) -> Tensor:
        """Return a zero that reaches every parameter, as DDP expects of a loss."""
        parameters = [x for x in self.parameters() if x.requires_grad]
        return torch.stack([x.flatten()[0] * 0 for x in parameters]).sum()

    def _count_nonfinite(self, batch: Batch, losses: Tensor) -> None:
        self.nonfinite["total"] += 1
        self.nonfinite["successive"] += 1
        culprits = [i for i, finite in zip(batch.ids, losses.isfinite().tolist(), strict=True) if not finite]
        log.warning("batch skipped, its loss is not finite: %s", ", ".join(culprits) or "on another rank")
        if self.nonfinite["successive"] > self.nonfinite_patience:
            raise UserError(
                f"the loss was not finite in {self.nonfinite['successive']} successive batches, lastly in "
                f"{', '.join(culprits[:5])}: lower optimizer.learning_rate or look at these utterances"
            )

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip, log the norm, and drop gradients that are not finite so that the step changes nothing."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip or float("inf"))
        self.log("gradient_norm", norm)
        self.log("learning_rate", optimizer.param_groups[0]["lr"])
        if not self._scaled and not (self.finite_in_window and bool(norm.isfinite())):
            if self.finite_in_window:
                self.nonfinite["total"] += 1
                log.warning("step %d skipped: the gradient's norm is %s", self.global_step, norm.item())
            optimizer.zero_grad(set_to_none=True)
        self.finite_in_window = False

    def configure_optimizers(self) -> Any:
        """Return the optimiser and its schedule."""
        optimizer = build_optimizer(dict(self.recognizer.named_parameters()), self.optimizer)
        if self.optimizer.schedule == "plateau":
            plateau = ReduceLROnPlateau(
                optimizer, factor=self.optimizer.plateau_factor, patience=self.optimizer.plateau_patience
            )
            every = {"interval": "step", "frequency": self.validate_every, "monitor": "dev_loss"}
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **every}}
        schedule = LambdaLR(optimizer, lambda step: rate_factor(step, self.steps, self.optimizer))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_validation_epoch_start(self) -> None:
        """Start counting errors."""
        self.error_counts[:] = 0
        self.dev_losses[:] = 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the errors of greedy search and sum the losses."""
        losses, log_probs, frames = self.losses(batch)
        for i, path in enumerate(greedy_search(log_probs, frames)):
            reference = batch.tokens[i, : batch.token_lengths[i]].tolist()
            self.error_counts += Levenshtein.distance(reference, path.ids), len(reference)
        self.dev_losses += float(losses.sum()), float(batch.token_lengths.sum())

    def on_validation_epoch_end(self) -> None:
        """Log the error rate over all ranks and the loss per token."""
        sums = torch.tensor([*self.error_counts, *self.dev_losses], device=self.device, dtype=torch.float32)
        errors, wanted, loss, tokens = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        self.log(self.error_rate_name, errors / max(wanted, 1), prog_bar=True, rank_zero_only=True)
        self.log("dev_loss", loss / max(tokens, 1), rank_zero_only=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what it takes to load the recogniser without this class."""
        checkpoint["format"] = FORMAT
        checkpoint["recognizer"] = self.recognizer.state()
        checkpoint["nonfinite"] = dict(self.nonfinite)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another vocabulary; go on counting skipped batches."""
        check_vocabulary(checkpoint, self.recognizer, "resume")
        self.nonfinite = checkpoint["nonfinite"]


def check_vocabulary(checkpoint: dict[str, Any], recognizer: Recognizer, source: str) -> None:
    """Raise UserError where a checkpoint's vocabulary is not the recogniser's."""
    theirs = checkpoint["recognizer"]["tokenizer"]
    if theirs != recognizer.tokenizer.state():
        raise UserError(
            f"{source}: the checkpoint has another vocabulary or lexicon than this training "
            f"(digest {recognizer.tokenizer.digest}): it can't be resumed with it"
        )
