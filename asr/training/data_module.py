"""Lightning's view of the training data; a separate module because importing Lightning takes seconds."""

from typing import Any

import lightning

from asr.data.stream import TrainingData


class DataModule(lightning.LightningDataModule):
    """Hands the training data to Lightning's trainer, and the trainer to the data.

    Args:
        data: the data.
        trainer: Lightning's trainer.
    """

    def __init__(self, data: TrainingData, trainer: lightning.Trainer) -> None:
        super().__init__()
        self.data = data
        data.trainer = trainer
        self.train_dataloader = data.train_dataloader  # type: ignore[method-assign]
        self.val_dataloader = data.val_dataloader  # type: ignore[method-assign]

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor, the position in the stream of batches, as plain data."""
        return self.data.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved cursor."""
        self.data.load_state_dict(state_dict)
