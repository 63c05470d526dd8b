"""The length of training."""

from unittest.mock import Mock

from asr.data.sampler import Cursor
from asr.data.stream import TrainingData
from asr.training.config import train_options
from asr.training.plan import training_plan


def test_the_length_of_training_follows_from_the_first_epoch() -> None:
    """Every epoch was planned before the first batch: 40 times the work of one for a million utterances."""
    data = Mock(TrainingData, cursor=Cursor())
    data.epoch_batches.side_effect = lambda epoch: [70][epoch]
    plan = training_plan(train_options(["trainer.max_epochs=40", "trainer.accumulate=3"]), data)
    assert (plan.steps, data.batches) == (40 * 70 // 3, 40 * 70 // 3 * 3)


def test_a_run_that_resumes_on_other_processes_takes_the_steps_that_are_left() -> None:
    data = Mock(TrainingData, cursor=Cursor(epoch=3, position=40, batches=30, total=10 * 3 * 4))
    data.epoch_batches.side_effect = lambda epoch: [70][epoch]
    for devices, accumulate in ((4, 3), (2, 6), (2, 3)):
        overrides = [
            "trainer.max_epochs=40",
            f"trainer.accumulate={accumulate}",
            f"trainer.devices={devices}",
        ]
        plan = training_plan(train_options(overrides), data, taken=10)
        assert plan.steps == 10 + (40 * 70 - 120) // (devices * accumulate)
        assert data.batches == plan.steps * accumulate
