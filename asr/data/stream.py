"""Training data as one stream of batches with a cursor, which checkpoints store."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from asr.data.sampler import BatchPlan, Cursor, NumberedPlans
from asr.errors import UserError

if TYPE_CHECKING:  # takes seconds to import
    import lightning

Moved = TypeVar("Moved", bound="StreamBatch")


@dataclass(frozen=True)
class StreamBatch:
    """A batch of a stream; subclasses add tensors.

    Attributes:
        ids: names of the B items, for messages.
        plan: position in the stream.
    """

    ids: list[str]
    plan: BatchPlan

    def to(self: Moved, device: torch.device, non_blocking: bool = False) -> Moved:
        """Return the batch on another device."""
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self: Moved) -> Moved:
        """Return the batch in page-locked memory."""
        return self._map(Tensor.pin_memory)

    def _map(self: Moved, function: Callable[[Tensor], Tensor]) -> Moved:
        moved: dict[str, Any] = {
            name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


class TrainingData:
    """A stream of training batches that starts at a cursor, and development batches.

    Attributes:
        batches: total number of training batches per rank; set before training.
        cursor: position of the next batch.
        trainer: Lightning's trainer; None outside training.
    """

    def __init__(self) -> None:
        self.trainer: lightning.Trainer | None = None
        self.batches = 0
        self.cursor = Cursor()

    @abstractmethod
    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training batches from the cursor on."""

    @abstractmethod
    def val_dataloader(self) -> DataLoader[Any]:
        """Return the development batches."""

    @abstractmethod
    def epoch_batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch, over all ranks."""

    def epochs(self) -> float:
        """Return the number of epochs consumed."""
        return self.cursor.epoch + self.cursor.position / self.epoch_batches(self.cursor.epoch)

    @abstractmethod
    def worst_batch(self) -> Any:
        """Return the batch that needs the most memory."""

    @abstractmethod
    def advice(self, batch: Any) -> str:
        """Return the size of a batch and the options to lower if it doesn't fit in memory."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line for the start of training: the amount of data and the fraction of padding."""

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """Return the hash of each data source by its name, for environment.json."""

    def rank(self) -> tuple[int, int]:
        """Return the number of ranks and the index of this rank; (1, 0) outside training."""
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)

    def write_report(self, folder: Path) -> None:
        """Write a report on the data, if any, to the run folder."""

    def padding_share(self) -> float:
        """Return the fraction of padding in the first epoch, 0 … 1."""
        return 0.0

    def consumed(self, batch: StreamBatch) -> None:
        """Advance the cursor past a batch, and past those that the other ranks consume at the same time.

        The position is that of the first rank, which writes the checkpoints.
        """
        ranks, rank = self.rank()
        position = batch.plan.position - rank + ranks
        self.cursor = Cursor(batch.plan.epoch, position, self.cursor.batches + 1, self.cursor.total + ranks)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor as plain data."""
        return asdict(self.cursor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved cursor."""
        self.cursor = Cursor(**{name: state_dict[name] for name in asdict(self.cursor)})


class Batches(Protocol):
    """Batches by number, from 0; each access returns the same batch."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def __getitem__(self, number: int) -> Any:
        """Return batch `number`, 0 … len − 1."""


class NumberedBatches(TrainingData):
    """Training batches that are functions of their number, and fixed development batches; ranks take turns.

    Args:
        training: returns the batch of a plan; only the plan's `position` is set, the batch's number in the
            stream of all ranks.
        dev: development batches.
    """

    def __init__(self, training: Dataset[Any], dev: Batches) -> None:
        super().__init__()
        self.training_batches, self.dev_batches = training, dev

    def epochs(self) -> float:
        """Return the number of epochs consumed; positions are counted across epochs."""
        return self.cursor.position / self.epoch_batches(0)

    @abstractmethod
    def held_out(self, split: str, items: int) -> Batches:
        """Return the batches of `dev` or `test`.

        Args:
            split: name of the split.
            items: maximum number of items; 0: all, or 2,000 if they are endless.
        """

    @abstractmethod
    def digest(self, split: str) -> str:
        """Return a hash of the files that a split is read from; empty if it is generated."""

    def digests(self) -> dict[str, str]:
        """Return the hashes of training and development data."""
        return {split: digest for split in ("train", "dev") if (digest := self.digest(split))}

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training batches from the cursor on."""
        plans = NumberedPlans(self.batches, *self.rank(), start=self.cursor)
        return DataLoader(self.training_batches, batch_size=None, sampler=plans)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the development batches."""
        ranks, rank = self.rank()
        if len(self.dev_batches) < ranks:
            found = len(self.dev_batches)
            raise UserError(f"split dev: expected at least {ranks} batches, one for each rank, found {found}")
        numbers = range(rank, len(self.dev_batches), ranks)
        return DataLoader(self.dev_batches, batch_size=None, sampler=numbers)  # type: ignore[arg-type]
