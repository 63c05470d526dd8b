"""Long-range classification: batches, padding, exact resuming, evaluation."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from asr_recipes.longrange.data import POOL, EvaluationBatches, ItemData, TrainingBatches, collate
from asr_recipes.longrange.items import Item, ItemSource
from asr_recipes.longrange.listops import ListOps
from asr_recipes.longrange.model import Classifier, PixelFeatures
from asr_recipes.longrange.task import build_model, build_source
from runs import assert_same_weights, killed, metrics, weights

from asr import Recognizer
from asr.cli import main
from asr.data.sampler import BatchPlan
from asr.errors import UserError
from asr.experiment.results import read_results
from asr.training.config import train_options
from asr.training.labelling import evaluate, load_task
from asr.training.run import train

SMALL = ["recipe=longrange", "model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=64"]
SMALL += [
    "trainer.accelerator=cpu",
    "optimizer.learning_rate=3e-3",
    "recipe.length=16",
    "recipe.dev_items=200",
]


class Numbers(ItemSource):
    """Item i is a sequence of i + 1 numbers i mod 256."""

    classes, values, longest = 2, 256, 256

    def item(self, split: str, index: int) -> Item:
        return Item(np.full(index + 1, index % 256, dtype=np.uint8), index % 2)

    def describe(self) -> str:
        return "numbers"


def test_no_item_is_drawn_twice() -> None:
    batches = TrainingBatches(Numbers(), batch=3, seed=0)
    plans = [batches[BatchPlan((), 0, position)].plan for position in range(2 * POOL * 5)]
    drawn = Counter(index for plan in plans for index in plan.utterances)
    assert drawn == Counter(range(3 * len(plans)))


def test_batches_hold_little_padding_and_do_not_depend_on_those_before() -> None:
    source = ListOps(400, seed=0)
    data = ItemData(source, batch=8, dev_items=100, seed=0)
    assert data.padding_share() < 0.15
    in_order = [data.training[BatchPlan((), 0, position)] for position in range(20)]
    alone = TrainingBatches(source, 8, 0)[BatchPlan((), 0, 13)]
    assert torch.equal(alone.values, in_order[13].values)
    assert alone.ids == in_order[13].ids
    widths = [batch.values.shape[1] for batch in in_order]
    assert widths != sorted(widths)
    other = TrainingBatches(source, 8, 1)[BatchPlan((), 0, 13)]
    assert other.ids != alone.ids
    assert data.worst_batch().values.shape == (8, 400)


def test_evaluation_covers_the_first_items_of_a_split() -> None:
    batches = EvaluationBatches(Numbers(), "dev", batch=8, count=18)
    assert len(batches) == 3
    drawn = [index for i in range(3) for index in batches[i].plan.utterances]
    assert drawn == list(range(18))
    assert EvaluationBatches(ListOps(16, 0), "dev", batch=8, count=0).count == 2000


@pytest.mark.parametrize("attention", ["full", "i-clustered-5", "cast-4", "summary"])
def test_padding_changes_nothing(attention: str) -> None:
    options = train_options([*SMALL, f"attention={attention}", "recipe.length=60"])
    source = build_source(options.recipe, 0)
    model = build_model(options, source).eval()
    items = [source.item("train", index) for index in range(4)]
    batch = collate(items, BatchPlan(()), size=77)
    logits = model(batch.values, batch.lengths)
    for row, item in zip(logits, items, strict=True):
        alone = collate([item], BatchPlan(()))
        torch.testing.assert_close(model(alone.values, alone.lengths)[0], row, rtol=0, atol=1e-5)


def test_pixels_have_their_grey_value_row_and_column() -> None:
    config = train_options(["recipe=longrange"]).model
    model = Classifier(config, 0, 64, 1, 2, "full", "auto")
    image = torch.arange(64, dtype=torch.uint8).view(1, 64)
    features = model.features(image)[0].view(8, 8, -1)
    torch.testing.assert_close(features[..., 0], torch.arange(64.0).view(8, 8) / 51)
    rows, columns = features[..., 1:].chunk(2, dim=-1)
    assert (rows == rows[:, :1]).all()
    assert (columns == columns[:1]).all()
    assert len({tuple(row.tolist()) for row in rows[:, 0]}) == 8
    assert torch.equal(rows[:, 0], columns[0])


@pytest.mark.parametrize("patch", [2, 4])
def test_a_position_holds_the_pixels_of_a_patch(patch: int) -> None:
    config = train_options(["recipe=longrange"]).model
    model = Classifier(config, 0, 64, patch, 2, "full", "auto").eval()
    images = torch.arange(128, dtype=torch.uint8).view(2, 64)
    side = 8 // patch
    features = model.features(images).view(2, side, side, -1)
    pixels = images.view(2, 8, 8) / 51
    for row in range(side):
        for column in range(side):
            inside = pixels[:, patch * row : patch * (row + 1), patch * column : patch * (column + 1)]
            found = features[:, row, column, : patch * patch]
            torch.testing.assert_close(found, inside.reshape(2, -1))
    whole, single = features[..., patch * patch :], PixelFeatures(side, 1)(torch.zeros(1, side * side))
    torch.testing.assert_close(whole[0].flatten(0, 1), single[0, :, 1:])
    shapes = []
    model.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: shapes.append(inputs))
    model(images, torch.full((2,), 64))
    states, lengths = shapes[0]
    assert states.shape[1] == side * side
    assert lengths.tolist() == [side * side] * 2


def test_the_input_of_the_encoder_depends_on_the_image() -> None:
    """Grey values of 0 … 1 gave 0.3 % of the variance of the encoder's input; the places gave the rest."""
    overrides = ["recipe.task=pathfinder", "recipe.size=32", "recipe.dashes=6", "model.positions=none"]
    options = train_options(["recipe=longrange", *overrides])
    source = build_source(options.recipe, 0)
    torch.manual_seed(0)
    model = build_model(options, source)
    images = collate([source.item("train", index) for index in range(16)], BatchPlan(()))
    states, _ = model.encoder.subsampling(model.features(images.values), images.lengths)
    assert states.var(dim=0).mean() > 0.05 * states.var()


@pytest.mark.slow
def test_a_small_model_learns_short_expressions(tmp_path: Path) -> None:
    train(
        train_options(
            [
                *SMALL,
                f"run={tmp_path}",
                "trainer.max_steps=300",
                "trainer.validate_every=50",
                "model.dropout=0",
            ]
        )
    )
    errors = [float(row["dev_error"]) for row in metrics(tmp_path) if row["dev_error"]]
    assert errors[0] > 0.75
    assert errors[-1] < 0.65


@pytest.mark.slow
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    given = [
        *SMALL,
        "recipe.batch=4",
        "recipe.dev_items=8",
        "trainer.max_steps=20",
        "trainer.validate_every=6",
    ]
    given += ["trainer.checkpoint_every=5", "model.dropout=0.2", "resume=auto"]
    train(train_options([*given, f"run={tmp_path / 'whole'}"]))
    with killed(12):
        train(train_options([*given, f"run={tmp_path / 'parts'}"]))
    train(train_options([*given, f"run={tmp_path / 'parts'}"]))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    errors = [[row["dev_error"] for row in metrics(tmp_path / run)] for run in ("whole", "parts")]
    assert errors[0] == errors[1]


@pytest.mark.slow
def test_errors_on_test_items_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(train_options([*SMALL, "trainer.max_steps=2", f"run={tmp_path / 'run'}"]))
    task, data = load_task(str(tmp_path / "run"))
    result = evaluate(task, data, "test", 70)
    assert isinstance(data, ItemData)
    items = [data.source.item("test", index) for index in range(70)]
    guesses = [task.model(*alone(item)).argmax() for item in items]
    wrong = np.mean([int(guess) != item.label for guess, item in zip(guesses, items, strict=True)])
    assert result.value == pytest.approx(wrong)
    assert (result.measure, result.items, result.labels) == ("error", 70, 70)
    low, high = result.interval
    assert low < result.value < high
    asked = ["evaluate", str(tmp_path / "run"), "items=9"]
    exchanged = "attention=clustered-3:bits=63"
    assert main([*asked, exchanged, f"output={tmp_path / 'results.json'}"]) == 0
    shown = capsys.readouterr().out
    assert "Trained with one mechanism, run with another: error rate in % on test" in shown
    assert "What each model reaches" not in shown
    (row,) = read_results(tmp_path / "results.json").evaluations
    assert (row.variant, row.utterances) == ("clustered-3", 9)
    assert main(asked) == 0
    assert "What each model reaches" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("recipe: {name: demo}")
    for arguments, message in (
        (asked[:1], "asr evaluate takes <run folder>"),
        ([asked[0], str(tmp_path / "no")], "expected the options of a run"),
        ([asked[0], str(tmp_path)], "config.yaml: expected a recipe with its own task, found demo"),
        ([*asked, "attention=cast-4"], "parameters of its own"),
    ):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err.replace("\n", " ")


def alone(item: Item) -> tuple[torch.Tensor, torch.Tensor]:
    batch = collate([item], BatchPlan(()))
    return batch.values, batch.lengths


@pytest.mark.slow
def test_weights_start_a_run_with_another_mechanism(tmp_path: Path) -> None:
    overrides = [*SMALL, "trainer.max_steps=1", "optimizer.learning_rate=1e-12"]
    train(train_options([*overrides, f"run={tmp_path / 'full'}"]))
    overrides += [f"init_from={tmp_path / 'full'}"]
    train(train_options([*overrides, f"run={tmp_path / 'other'}", "attention=i-clustered-3:topk=32"]))
    before, after = weights(tmp_path / "full"), weights(tmp_path / "other")
    assert all(torch.allclose(after[name], value, rtol=0, atol=1e-9) for name, value in before.items())
    for unfit in ("attention=cast-4", "model.heads=1"):
        with pytest.raises(UserError, match="init_from="):
            train(train_options([*overrides, f"run={tmp_path / 'third'}", unfit]))
    with pytest.raises(UserError, match="expected the checkpoint of a recogniser"):
        Recognizer.load(tmp_path / "full")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recipe.task=images"], "recipe.task=images: expected one of listops, pathfinder"),
        (["recipe.length=15"], "recipe.length=15: expected a number 16 … 100000"),
        (["recipe.length=9000"], "recipe.length=9000: expected at most 8000: trees rarely"),
        (["features.mel_bins=17"], "has no effect with recipe=longrange"),
        (["recipe.size=16"], "size=16: has no effect with recipe.task=listops"),
        (
            ["recipe.task=pathfinder", "recipe.length=100"],
            "length=100: has no effect with recipe.task=pathfinder",
        ),
        (
            ["recipe.task=pathfinder", "recipe.size=48"],
            "recipe.size=48: expected one of 16, 32, 64, 128, 256",
        ),
        (
            ["recipe.task=pathfinder", "recipe.size=16", "recipe.dashes=9"],
            "recipe.dashes=9: two such curves don't fit in 16 × 16 pixels",
        ),
        (["recipe.task=pathfinder", "recipe.dashes=2"], "recipe.dashes=2: expected at least 3"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    overrides: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", "recipe=longrange", *overrides, f"run={tmp_path / 'run'}"]) == 1
    assert message in capsys.readouterr().err


def test_there_is_nothing_to_prepare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "longrange"]) == 1
    assert "nothing to prepare" in capsys.readouterr().err
    assert main(["train", "--help", "recipe=longrange"]) == 0
    assert "recipe.dashes" in capsys.readouterr().out


def test_epochs_are_counted_once() -> None:
    """The epoch and the position, which counts batches of all epochs, were added."""
    source = build_source(train_options([*SMALL, "recipe.task=listops"]).recipe, 0)
    data = ItemData(source, batch=4, dev_items=8, seed=0)
    data.cursor = replace(data.cursor, epoch=2, position=2 * data.epoch_batches(0))
    assert data.epochs() == 2
