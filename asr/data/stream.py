"""Training data as one stream of batches with a cursor that a checkpoint keeps."""

from abc import abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import lightning
import torch

from asr.data.sampler import BatchPlan, Cursor


class StreamBatch(Protocol):
    """What training asks of a batch, whatever it holds."""

    @property
    def ids(self) -> list[str]:
        """Names of the items."""

    @property
    def plan(self) -> BatchPlan:
        """Where in the stream the batch stands."""

    def to(self, device: torch.device) -> "StreamBatch":
        """Return the batch on another device."""


class TrainingData(lightning.LightningDataModule):
    """A stream of training batches that goes on from a cursor, and development batches.

    Attributes:
        batches: length of training, in batches of one rank; set before training.
        cursor: the next batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.cursor = Cursor()

    @abstractmethod
    def epoch_batches(self, epoch: int, ranks: int = 1) -> int:
        """Return the number of batches of an epoch for one rank."""

    @abstractmethod
    def worst_batch(self) -> Any:
        """Return the batch that needs most memory."""

    @abstractmethod
    def advice(self, batch: Any) -> str:
        """Say what to lower where a batch doesn't fit in memory."""

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what there is to train on."""

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """Return a hash of each source of data."""

    def rank(self) -> tuple[int, int]:
        """Return the number of ranks and this one's; a single one outside training."""
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)

    def write_report(self, folder: Path) -> None:
        """Write to the run folder what a user should know of the data."""

    def padding_share(self) -> float:
        """Return the share of padding in the first epoch, 0 … 1."""
        return 0.0

    def consumed(self, batch: StreamBatch) -> None:
        """Move the cursor behind a batch that has been trained on."""
        self.cursor = Cursor(batch.plan.epoch, batch.plan.position + 1, self.cursor.batches + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor as plain data."""
        return asdict(self.cursor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved cursor."""
        self.cursor = Cursor(**state_dict)
