"""The length of training."""

from unittest.mock import Mock

from asr.data.stream import TrainingData
from asr.training.config import train_options
from asr.training.plan import training_plan


def test_the_length_of_training_follows_from_the_first_epoch() -> None:
    """Every epoch was planned before the first batch: 40 times the work of one for a million utterances."""
    data = Mock(TrainingData)
    data.epoch_batches.side_effect = lambda epoch, ranks=1: [70][epoch] // ranks
    plan = training_plan(train_options(["trainer.max_epochs=40", "trainer.accumulate=3"]), data)
    assert (plan.steps, data.batches) == (40 * 70 // 3, 40 * 70 // 3 * 3)
