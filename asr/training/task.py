"""The LightningModule that all tasks share: training steps, skipped batches, optimiser and validation."""

import logging
import math
import time
from abc import abstractmethod
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asr.attention.own import backward_pass, bad_gradient_again, nan_again
from asr.data.stream import StreamBatch, TrainingData
from asr.errors import UserError
from asr.model.checkpoint import FORMAT
from asr.seeds import derived_seed
from asr.training.optimizer import configure, follow_plan
from asr.training.plan import TrainingPlan

log = logging.getLogger(__name__)
# More successive batches that run out of memory or lack a finite loss and gradient are no accident.
SKIP_PATIENCE = 10


class TrainingTask(lightning.LightningModule):
    """Trains a model on a stream of batches.

    The random numbers of a step (dropout, augmentation) are functions of (seed, batch, rank), so an
    interrupted run resumes exactly.

    A subclass defines the loss, the dev error rate and the state to store in checkpoints.

    Args:
        model: model to train.
        plan: length of training, optimiser and clipping.
    """

    # Validation measure; lower is better. A fraction, or a quantity such as `dev_bits_per_character`.
    error_rate_name = "dev_error"

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        super().__init__()
        self.model = model
        self.plan = plan
        self.run = ""  # identity of the run
        # Steps that changed the weights; batches and steps that were skipped, in total and most recently.
        self.counts = {"taken": 0, "skipped": 0, "successive": 0}
        self.batch: StreamBatch | None = None  # the current one
        self.usable = False  # whether its loss is finite
        self.usable_in_window = False
        self.window = torch.zeros(2)  # sum of the losses and number of targets of a step's batches
        self.most_targets = 1.0  # largest number of targets of a batch, over all ranks
        self.skipped_before = 0  # successive batches and steps skipped before the current step
        self.dev_sums = np.zeros(4)
        self.dev_error = float("nan")  # error rate of the latest validation
        self.dev_loss = float("nan")  # per target
        self.heard: dict[str, tuple[str, str]] = {}  # a few dev utterances: reference and hypothesis
        self.spent = 0.0  # fraction of the time budget used

    @abstractmethod
    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of each item of a batch, [B], summed over targets, and the number of targets."""

    @abstractmethod
    def dev_counts(self, batch: Any) -> tuple[float, float, float, float]:
        """Return the errors, reference labels, summed loss and targets of a dev batch."""

    @abstractmethod
    def frames(self, batch: Any) -> int:
        """Return the number of valid frames or positions of a batch."""

    def fixed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the current step must not change."""
        return []

    @abstractmethod
    def model_state(self) -> dict[str, Any]:
        """Return the model as plain data and tensors, with its parameters under `weights`."""

    @abstractmethod
    def describe(self, device_type: str) -> dict[str, Any]:
        """Return entries for environment.json, e.g. mechanism, backend on the device, hashes of inputs."""

    def on_fit_start(self) -> None:
        """Set the number of threads again, because Lightning changes it when it starts the processes."""
        if threads := self.plan.options.trainer.threads:
            torch.set_num_threads(threads)

    def on_train_start(self) -> None:
        """Run the largest batch forward and backward, so that memory runs out now rather than later."""
        batch = self._data.worst_batch()
        try:
            # In float32, batches that fit at the training's precision would be refused.
            with self.trainer.precision_plugin.forward_context():
                losses, targets = self.losses(batch.to(self.device))
            with backward_pass():
                losses.sum().backward()
        except torch.OutOfMemoryError as error:
            raise UserError(f"out of memory on the largest batch: {self._data.advice(batch)}") from error
        finally:
            self.zero_grad(set_to_none=True)
        self.most_targets = max(1.0, float(self.trainer.strategy.reduce(targets.float(), reduce_op="sum")))

    def on_train_batch_start(self, batch: StreamBatch, batch_idx: int) -> None:
        """Seed the step's random numbers with (seed, batch, rank), and set its learning rate."""
        torch.manual_seed(derived_seed(self.plan.options.seed, self._data.cursor.batches, self.global_rank))
        follow_plan(self.lr_schedulers())
        self.step_started = time.perf_counter()

    def training_step(self, batch: StreamBatch, batch_idx: int) -> Tensor:
        """Return the loss per target; skip a batch that doesn't fit in memory or has no finite loss.

        With several batches in a step, it is divided by `most_targets` until the step's targets are known.
        """
        self.batch, self.usable = batch, False
        self._data.consumed(batch)
        fits = True
        try:
            losses, targets = self.losses(batch)
        except torch.OutOfMemoryError:
            fits = False
        if not fits:  # outside the handler, whose traceback would keep the memory
            self.trainer.strategy.reduce_boolean_decision(False, all=True)
            return self._skip_out_of_memory()
        loss = losses.sum() / (targets.clamp(min=1) if self._batches == 1 else self.most_targets)
        if self.fixed_parameters() and self.trainer.world_size > 1:
            # The parameters of a frozen encoder, too, need a gradient in DDP.
            loss = loss + self._no_gradient()
        if not self.trainer.strategy.reduce_boolean_decision(bool(loss.isfinite()), all=True):
            culprits = [
                x for x, finite in zip(batch.ids, losses.isfinite().tolist(), strict=True) if not finite
            ]
            names = ", ".join(culprits[:5]) or "another rank"
            if cause := nan_again(self, lambda: self.losses(batch)):
                self._skip(f"the loss is not finite for {names}: {cause}")
            else:
                advice = ": lower optimizer.learning_rate or check these utterances"
                self._skip(f"the loss is not finite for {names}", advice)
            return loss if self._scaled else self._no_gradient()
        self.usable = True
        self.window += torch.stack([losses.detach().sum(), targets]).float().cpu()
        return loss

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients; skip the batch if it doesn't fit in memory."""
        try:
            with backward_pass():
                super().backward(loss, *args, **kwargs)
            if self.usable:
                self.counts["successive"] = self.skipped_before
                self.usable_in_window = True
            return
        except torch.OutOfMemoryError:
            pass
        self.zero_grad(set_to_none=True)  # some were already added to the window's gradients
        self.usable_in_window = False
        self.window.zero_()
        if self.trainer.world_size > 1:
            self._end_out_of_memory()
        super().backward(self._skip_out_of_memory(), *args, **kwargs)

    def on_train_batch_end(self, outputs: Any, batch: StreamBatch, batch_idx: int) -> None:
        """Log the throughput."""
        seconds = time.perf_counter() - self.step_started
        self.log("data_epoch", float(batch.plan.epoch))
        self.log("frames_per_s", self.frames(batch) / seconds)
        if self.trainer.global_step >= self.plan.steps:
            self.trainer.should_stop = True  # makes Lightning validate after the last step, too

    @property
    def _data(self) -> TrainingData:
        return self.trainer.datamodule.data  # type: ignore[attr-defined]

    @property
    def _batches(self) -> int:
        """Number of batches in a step, over all ranks."""
        return self.trainer.accumulate_grad_batches * self.trainer.world_size

    @property
    def _scaled(self) -> bool:
        """Whether a gradient scaler (fp16) skips steps with non-finite gradients itself."""
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def _no_gradient(self) -> Tensor:
        """Return a zero loss that depends on every parameter, as DDP requires."""
        parameters = [x for x in self.parameters() if x.requires_grad]
        return torch.stack([x.flatten()[0] * 0 for x in parameters]).sum()

    def _skip(self, reason: str, advice: str = "") -> None:
        """Count the batch as skipped.

        Raises:
            UserError: more than SKIP_PATIENCE successive batches were skipped.
        """
        self.counts["skipped"] += 1
        self.counts["successive"] += 1
        if self.counts["successive"] > SKIP_PATIENCE:
            raise UserError(
                f"{self.counts['successive']} successive batches were skipped; the last: {reason}{advice}"
            )
        log.warning("batch skipped: %s", reason)

    def _skip_out_of_memory(self) -> Tensor:
        """Skip the batch; return a loss that has no effect."""
        torch.cuda.empty_cache()
        self._skip(f"out of memory: {self._data.advice(self.batch)}")
        return self._no_gradient() * (float("nan") if self._scaled else 1)

    def _end_out_of_memory(self) -> None:
        """Raise UserError: this rank can't skip a batch, because the others wait for its gradients."""
        raise UserError(
            f"step {self.global_step}: out of memory: {self._data.advice(self.batch)}, in a new run that "
            "starts from this one (init_from=…)"
        )

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip gradients, log their norm, and discard them if they aren't finite.

        Raises:
            UserError: the gradients of more than SKIP_PATIENCE successive steps weren't finite.
        """
        for parameter in self.fixed_parameters():
            parameter.grad = None  # the optimiser skips it, weight decay included
        if self.usable_in_window:
            self._per_target()
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters(), self.plan.options.trainer.clip or float("inf")
        )
        self.log("gradient_norm", norm)
        self.log("learning_rate", optimizer.param_groups[0]["lr"])
        if self.usable_in_window and bool(norm.isfinite()):
            self.counts["taken"] += 1
            self.counts["successive"] = 0
        else:
            if self.usable_in_window:
                norm_is = f"the gradient norm of step {self.global_step} is {norm.item()}"
                if cause := bad_gradient_again(self, self._loss_again):
                    self._skip(f"{norm_is}: {cause}")
                else:
                    self._skip(norm_is, ": lower optimizer.learning_rate or check the data")
            if not self._scaled:
                optimizer.zero_grad(set_to_none=True)
        self.skipped_before = self.counts["successive"]
        self.usable_in_window = False

    def _loss_again(self) -> Tensor:
        assert self.batch is not None
        with self.trainer.precision_plugin.forward_context(), torch.enable_grad():
            return self.losses(self.batch)[0].sum()

    def _per_target(self) -> None:
        """Log the step's loss per target, and scale the gradients to be those of this loss.

        Before, they are means over the batches of all ranks, each divided by `most_targets`.
        """
        sums = self.trainer.strategy.reduce(self.window.to(self.device), reduce_op="sum")
        loss, targets = sums[0].item(), max(1.0, sums[1].item())
        self.window.zero_()
        self.log("loss", loss / targets)
        if self._batches > 1:
            gradients = [x.grad for x in self.parameters() if x.grad is not None]
            torch._foreach_mul_(gradients, self.most_targets * self._batches / targets)

    def configure_optimizers(self) -> Any:
        """Return the optimiser and its schedule."""
        return configure(
            dict(self.model.named_parameters()),
            self.plan.options.optimizer,
            steps=self.plan.steps,
            validate_every=self.plan.validate_every,
            spent=(lambda: self.spent) if self.plan.budget else None,
        )

    def on_validation_epoch_start(self) -> None:
        """Reset the sums."""
        self.dev_sums[:] = 0
        self.heard = {}
        if self.trainer.global_step >= self.plan.steps:
            self.trainer.should_stop = False  # the plan ends training; early stopping may set it again

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accumulate errors and losses."""
        self.dev_sums += self.dev_counts(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the error rate over all ranks and the loss per target."""
        sums = torch.tensor(self.dev_sums, device=self.device, dtype=torch.float32)
        errors, wanted, loss, targets = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        self.dev_error = errors / max(wanted, 1)
        self.log(self.error_rate_name, self.dev_error, rank_zero_only=True)
        self.dev_loss = loss / max(targets, 1)
        self.log("dev_loss", self.dev_loss, rank_zero_only=True)
        if self.trainer.is_global_zero and not math.isfinite(loss):
            log.warning("step %d: the dev loss is not finite", self.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the model in a form that loads without this class, and the counters."""
        checkpoint |= {"format": FORMAT, "counts": dict(self.counts), "dev_error": self.dev_error}
        checkpoint |= {"model": self.model_state(), "run": self.run}
        if self.trainer.should_stop and self.spent < 1:
            checkpoint["stopped"] = self.plan.stopping_rules

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters."""
        self.counts = checkpoint["counts"]
        self.skipped_before = self.counts["successive"]
        self.dev_error = checkpoint["dev_error"]
