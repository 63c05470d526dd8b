"""A run that is interrupted and resumed equals an uninterrupted one, bit for bit."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from once import once
from processes import in_a_fork
from runs import assert_same_weights, killed, metrics
from tone_corpora import TINY

from asr import config
from asr.cli import main
from asr.errors import UserError
from asr.model import checkpoint
from asr.model.checkpoint import load
from asr.training.checkpoints import AtomicCheckpointIO, StopConverged, StopEarly
from asr.training.config import train_options, train_options_from
from asr.training.resume import clear, find_resume_point
from asr.training.run import train

STEPS = 13
OVERRIDES = [
    *TINY,
    "model.dropout=0.2",
    "augment.frequency_masks=2",
    "augment.time_mask_every=50",
    "augment.speed_factors=[0.9,1.0,1.1]",
    "augment.volume_db=3",
    "augment.impulse_responses=generated",
    "augment.noise=white",
    "augment.codecs=[mu-law,mp3]",
    "augment.tempo_factors=[0.9,1.0,1.1]",
    f"trainer.max_steps={STEPS}",
    "trainer.validate_every=6",
    "trainer.checkpoint_every=5",
]


def die_after_the_last_step(overrides: list[str]) -> None:
    original = AtomicCheckpointIO.save_checkpoint

    def save(self: AtomicCheckpointIO, checkpoint: dict[str, Any], *rest: Any, **more: Any) -> None:
        original(self, checkpoint, *rest, **more)
        if checkpoint["global_step"] == 48:
            os.kill(os.getpid(), signal.SIGKILL)

    AtomicCheckpointIO.save_checkpoint = save  # type: ignore[method-assign]
    torch.set_num_threads(1)
    train(train_options(overrides))


def run(corpus: Path, folder: Path, *overrides: str) -> list[dict[str, str]]:
    """Train; return the metrics that don't depend on time."""
    train(train_options([*OVERRIDES, f"data.train=[{corpus}]", f"run={folder}", *overrides]))
    return metrics_without_time(folder)


def metrics_without_time(folder: Path) -> list[dict[str, str]]:
    rows = metrics(folder)
    for row in rows:
        del row["frames_per_s"], row["train_s"], row["train_cpu_s"]
    return rows


@pytest.fixture(scope="session")
def whole(tone_corpus: Path, shared: Path) -> Path:
    """An uninterrupted run, to read."""
    return once(shared / "whole", partial(run, tone_corpus))


PLATEAU = [
    "optimizer=radam",
    "optimizer.schedule=plateau",
    "optimizer.warmup_steps=0",
    "optimizer.plateau_patience=0",
    "trainer.validate_every=4",
]
ALL_THAT_DRAWS = [
    "attention=clustered-4:planes=fresh,bias=true",
    "model.layers=2",
    "model.layer_drop=0.3",
    "model.self_conditioned=true",
    "loss.intermediate=[1]",
    "loss.consistency=0.2",
]


# Validation after steps 6 and 12; resume points after 5 and 10; an epoch has 4 batches.
@pytest.mark.parametrize(
    ("kills", "overrides"),
    [
        ([5], []),
        *(
            pytest.param(kills, overrides, marks=pytest.mark.slow)
            for kills, overrides in (
                ([3], []),
                ([6, 10, 12], []),
                ([5], ["trainer.precision=bf16", "trainer.max_steps=8"]),
                ([6], ["data.concatenate_s=4", "data.concatenate_epochs=2", "trainer.max_steps=11"]),
                ([11], ["trainer.accumulate=2", "trainer.max_steps=7", "trainer.validate_every=3"]),
                ([11], PLATEAU),
                ([11], ["data.workers=1"]),
                ([11], ALL_THAT_DRAWS),
            )
        ),
    ],
)
def test_interrupted_equals_uninterrupted(
    kills: list[int], overrides: list[str], whole: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    if overrides:
        whole = tmp_path / "whole"
        run(tone_corpus, whole, *overrides)
    for batch in kills:
        with killed(batch):
            run(tone_corpus, tmp_path / "parts", *overrides, "resume=auto")
    assert run(tone_corpus, tmp_path / "parts", *overrides, "resume=auto") == metrics_without_time(whole)
    assert_same_weights(tmp_path / "parts", whole)
    names = [sorted(p.name for p in (x / "checkpoints").iterdir()) for x in (whole, tmp_path / "parts")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_recorded_noises_and_rooms_are_the_same_after_an_interruption(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Recordings are drawn by seed, epoch and utterance, not in the order in which a process meets them."""
    rng = np.random.default_rng(0)
    for number, seconds in enumerate((0.3, 1.0, 4.0)):
        noise = 0.05 * rng.standard_normal((round(16000 * seconds), 2)[: 1 + number % 2])
        decay = rng.standard_normal(4000) * np.exp(-np.arange(4000) / (200.0 * (1 + number)))
        for folder, samples in (("noises/street", noise), ("rooms", 0.3 * decay)):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            soundfile.write(tmp_path / folder / f"{number}.wav", samples, 16000)
    recorded = [
        f"augment.noise={tmp_path / 'noises'}",
        f"augment.impulse_responses={tmp_path / 'rooms'}",
        "augment.noise_snr_db=[5,20]",
    ]
    run(tone_corpus, tmp_path / "whole", *recorded)
    with killed(5):
        run(tone_corpus, tmp_path / "parts", *recorded, "resume=auto")
    run(tone_corpus, tmp_path / "parts", *recorded, "resume=auto")
    assert metrics_without_time(tmp_path / "parts") == metrics_without_time(tmp_path / "whole")
    (tmp_path / "rooms" / "2.wav").unlink()
    with pytest.raises(UserError, match="rooms"):
        run(tone_corpus, tmp_path / "parts", *recorded, "resume=auto", "trainer.max_steps=14")


def test_resuming_a_finished_run_changes_nothing(whole: Path, tone_corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    assert run(tone_corpus, folder, "resume=auto") == metrics_without_time(whole)
    assert_same_weights(whole, folder)


@pytest.mark.slow
def test_the_seed_determines_the_run(whole: Path, tone_corpus: Path, tmp_path: Path) -> None:
    first = metrics_without_time(whole)
    assert run(tone_corpus, tmp_path / "b", "seed=0") == first
    assert_same_weights(whole, tmp_path / "b")
    assert run(tone_corpus, tmp_path / "c", "seed=2") != first


@pytest.mark.slow
def test_a_run_killed_after_its_last_step_can_be_completed(tone_corpus: Path, tmp_path: Path) -> None:
    """A run killed between its last checkpoint and training.json lost a row of metrics and never finished."""
    whole, length = tmp_path / "whole", "trainer.max_steps=48"
    run(tone_corpus, whole, length)
    overrides = [*OVERRIDES, f"data.train=[{tone_corpus}]", f"run={tmp_path / 'parts'}", length]
    # Not forked from this process: autograd refuses that once its threads run.
    assert in_a_fork(die_after_the_last_step, overrides) == -signal.SIGKILL
    assert (tmp_path / "parts" / "checkpoints" / "last.ckpt").exists()
    assert not (tmp_path / "parts" / "training.json").exists()
    assert run(tone_corpus, tmp_path / "parts", length, "resume=auto") == metrics_without_time(whole)
    assert_same_weights(tmp_path / "parts", whole)
    rates = [
        json.loads((x / "training.json").read_text())["dev_error_rate"] for x in (whole, tmp_path / "parts")
    ]
    assert rates[0] == rates[1] < 1


@pytest.mark.slow
def test_resuming_with_other_options_is_rejected_and_rewrites_nothing(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Resuming a finished run overwrote its config.yaml with options that it had not used."""
    folder = tmp_path / "run"
    run(tone_corpus, folder, "trainer.max_steps=6")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    with pytest.raises(UserError, match=r"optimizer\.learning_rate=0\.5 \(was .*seed=3 \(was 0\)"):
        run(
            tone_corpus, folder, "trainer.max_steps=6", "resume=auto", "optimizer.learning_rate=0.5", "seed=3"
        )
    run(tone_corpus, folder, "trainer.max_steps=6", "resume=auto", "trainer.checkpoint_every=7")
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before
    run(tone_corpus, folder, "trainer.max_steps=8", "resume=auto")
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_steps"] == 8
    (folder / "config.yaml").write_text("[")
    with pytest.raises(UserError, match=r"config\.yaml: expected YAML"):
        run(tone_corpus, folder, "resume=auto")
    (folder / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"config\.yaml: expected the options of the run"):
        run(tone_corpus, folder, "resume=auto")


def test_a_resumed_run_says_which_of_its_options_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It went on with the constants that replaced them, without a word."""
    options = train_options([f"run={tmp_path}", "resume=auto"])
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()

    def resume(**gone: Any) -> str:
        stored = config.to_dict(options) | {"loss": config.to_dict(options.loss) | gone}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
        caplog.clear()
        with pytest.raises(UserError) as error:  # there is no environment.json
            find_resume_point(options, tmp_path)
        return error.value.line + caplog.text

    assert "lacks loss.sharpness=2; the training goes on without" in resume(sharpness=2)
    assert "loss" not in resume(intermediate_weight=0.3)
    assert "config.yaml: intermediate_weight=0.5: this version knows 0.3 only" in resume(
        intermediate_weight=0.5
    )


@pytest.fixture(scope="module")
def short(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 11 steps with resume points at steps 10 and 11."""
    folder = tmp_path_factory.mktemp("short") / "run"
    run(tone_corpus, folder, "trainer.max_steps=11")
    return folder


def records(folder: Path) -> dict[str, bytes]:
    names = ("config.yaml", "environment.json", "metrics.csv", "training.json")
    return {name: (folder / name).read_bytes() for name in names}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_rank_may_read_the_previous_resume_point_while_the_first_begins(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a damaged last.ckpt, the first of torchrun's ranks renamed previous.ckpt before others read it."""
    folder = shutil.copytree(short, tmp_path / "run")
    flip(folder / "checkpoints" / "last.ckpt")
    options = train_options_from(config.load_yaml(folder / "config.yaml"), "config.yaml")
    options.resume = "auto"
    first = find_resume_point(options, folder)

    def load_slowly(path: Path) -> dict[str, Any]:
        try:
            return load(path)
        finally:
            clear(folder, first)

    monkeypatch.setattr("asr.training.resume.checkpoint.load", load_slowly)
    second = find_resume_point(options, folder)
    assert first is not None
    assert second is not None
    assert first.step == second.step == 10
    assert load(folder / "checkpoints" / "last.ckpt")["global_step"] == 10
    assert not list(folder.rglob("*.partial"))


@pytest.mark.slow
def test_a_damaged_resume_point_is_replaced_by_the_previous(
    short: Path, tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only one resume point was kept, and a changed byte in it was used."""
    folder = shutil.copytree(short, tmp_path / "run")
    rows = metrics_without_time(folder)
    flip(folder / "checkpoints" / "last.ckpt")
    assert run(tone_corpus, folder, "trainer.max_steps=11", "resume=auto") == rows
    assert "last.ckpt: expected a checkpoint as it was written" in caplog.text
    assert "resuming from previous.ckpt, step 10" in caplog.text
    assert_same_weights(folder, short)
    # The damaged file is gone, not kept as the previous one.
    assert load(folder / "checkpoints" / "previous.ckpt")["global_step"] == 10
    for name in ("last", "previous"):
        (folder / "checkpoints" / f"{name}.ckpt").write_text("text")
    before = records(folder)
    with pytest.raises(UserError, match=r"no resume point can be read: .*last\.ckpt: .*previous\.ckpt: exp"):
        run(tone_corpus, folder, "trainer.max_steps=11", "resume=auto")
    assert records(folder) == before


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_noticed(short: Path, tone_corpus: Path, tmp_path: Path) -> None:
    """A checkpoint of another run was used, and its result reported as that of the run in the folder."""
    other, folder = tmp_path / "other", shutil.copytree(short, tmp_path / "run")
    run(tone_corpus, other, "trainer.max_steps=11", "seed=7", "trainer.keep_best=3", "trainer.average_best=2")
    assert checkpoint.foreign(folder) is checkpoint.foreign(other) is None
    checkpoints = folder / "checkpoints"
    shutil.copy(other / "checkpoints" / "last.ckpt", checkpoints)
    assert checkpoint.foreign(folder) == checkpoints / "last.ckpt"
    before = records(folder)
    with pytest.raises(UserError, match=r"last\.ckpt: expected a checkpoint of the run in .*another run's"):
        run(tone_corpus, folder, "trainer.max_steps=15", "resume=auto")
    (best,) = (short / "checkpoints").glob("best-*.ckpt")
    shutil.copy(best, checkpoints / "last.ckpt")
    assert checkpoint.foreign(folder) is None
    with pytest.raises(UserError, match="expected a resume point, found a checkpoint without"):
        run(tone_corpus, folder, "trainer.max_steps=15", "resume=auto")
    assert records(folder) == before
    best_other = next((other / "checkpoints").glob("best-*.ckpt"))
    with pytest.raises(UserError, match="expected a checkpoint of the same run"):
        checkpoint.average_checkpoints([best, best_other])


@pytest.mark.slow
def test_the_average_belongs_to_the_best_checkpoints_of_the_latest_training(
    short: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """An extended run was decoded with the average of its shorter training, if it made none itself."""
    folder = shutil.copytree(short, tmp_path / "run")
    checkpoints = folder / "checkpoints"
    several = ["resume=auto", "trainer.keep_best=3"]
    run(tone_corpus, folder, *several, "trainer.max_steps=13", "trainer.validate_every=1")
    assert not (checkpoints / "average.ckpt").exists()
    again = [*several, "trainer.max_steps=13", "trainer.validate_every=1", "trainer.average_best=2"]
    run(tone_corpus, folder, *again)  # of a finished run
    best = sorted(checkpoints.glob("best-*.ckpt"))[:2]
    expected = checkpoint.average_checkpoints(best)["model"]["weights"]
    found = load(checkpoints / "average.ckpt")["model"]["weights"]
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    run(tone_corpus, folder, *several, "trainer.max_steps=14")
    assert not (checkpoints / "average.ckpt").exists()


def test_weights_of_another_shape_are_one_line(short: Path, tone_corpus: Path, tmp_path: Path) -> None:
    """Lightning listed every weight in lines of their own."""
    folder = shutil.copytree(short, tmp_path / "run")
    options = yaml.safe_load((folder / "config.yaml").read_text())
    options["model"]["layers"] = 2
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    before = records(folder)
    with pytest.raises(UserError, match=r"last\.ckpt: expected encoder\.\S+ of shape \[\d.*\], found none$"):
        run(tone_corpus, folder, "model.layers=2", "trainer.max_steps=15", "resume=auto")
    assert records(folder) == before


@pytest.mark.slow
def test_initial_weights_that_have_changed_are_noticed(
    short: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """A resumed run was recorded with initial weights that it had not started from."""
    start, folder = shutil.copytree(short, tmp_path / "start"), tmp_path / "run"
    overrides = [f"init_from={start}", "resume=auto"]
    run(tone_corpus, folder, *overrides, "trainer.max_steps=3")
    (best,) = (start / "checkpoints").glob("best-*.ckpt")
    shutil.copy(start / "checkpoints" / "last.ckpt", best)
    with pytest.raises(UserError, match=r"inputs have changed .*: start \w{12} \(was \w{12}"):
        run(tone_corpus, folder, *overrides, "trainer.max_steps=5")
    shutil.rmtree(start)  # no longer needed
    assert len(run(tone_corpus, folder, *overrides, "trainer.max_steps=5")) == 5


@pytest.mark.slow
def test_search_files_that_have_changed_are_noticed(tone_corpus: Path, tmp_path: Path) -> None:
    """A resumed run took its best checkpoint by another search than before."""
    lm, folder = tmp_path / "lm.arpa", tmp_path / "run"
    assert main(["lm", "train", f"text={tone_corpus}", "order=2", f"out={lm}"]) == 0
    selected = ["select.metric=wer", f"select.lm={lm}", "resume=auto"]
    run(tone_corpus, folder, *selected, "trainer.max_steps=3")
    lm.write_text(lm.read_text() + "\n")
    with pytest.raises(UserError, match=r"inputs have changed .*: data\.select\.lm \w{12} \(was"):
        run(tone_corpus, folder, *selected, "trainer.max_steps=5")


@pytest.mark.slow
def test_the_first_step_of_a_longer_plan_has_its_rate(whole: Path, tone_corpus: Path, tmp_path: Path) -> None:
    """The step after the resume point had the rate of the shorter plan."""
    run(tone_corpus, tmp_path, "trainer.max_steps=7")
    rows = run(tone_corpus, tmp_path, "resume=auto")
    rates = [[row["learning_rate"] for row in found[7:]] for found in (rows, metrics_without_time(whole))]
    assert len(rates[0]) == STEPS - 7
    assert rates[0] == rates[1]


@pytest.mark.slow
def test_an_extended_run_that_is_killed_is_not_finished(tone_corpus: Path, tmp_path: Path) -> None:
    """training.json of the shorter run remained, and a comparison reused the unfinished run."""
    run(tone_corpus, tmp_path, "trainer.max_steps=4")
    with killed(8):
        run(tone_corpus, tmp_path, "trainer.max_steps=12", "resume=auto")
    assert not (tmp_path / "training.json").exists()


@pytest.mark.slow
def test_a_run_killed_before_its_first_resume_point_starts_again(
    tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The killed run's best checkpoint was taken for the new run's, which may have other options."""
    with killed(4):
        run(tone_corpus, tmp_path, "trainer.validate_every=2")
    (tmp_path / "checkpoints" / "last.ckpt.12345678.partial").touch()
    assert [path.stem[:4] for path in (tmp_path / "checkpoints").glob("*.ckpt")] == ["best"]
    with pytest.raises(UserError, match="already contains a run"):
        run(tone_corpus, tmp_path)
    run(tone_corpus, tmp_path, "resume=auto", "seed=3", "trainer.max_steps=6")
    assert "no checkpoint to resume from: training begins again" in caplog.text
    assert checkpoint.foreign(tmp_path) is None
    assert not list(tmp_path.rglob("*.partial"))


def test_a_configuration_of_the_user_is_not_replaced(tone_corpus: Path, tmp_path: Path) -> None:
    """With run=., it was."""
    (tmp_path / "config.yaml").write_text("site: mine\n")
    with pytest.raises(UserError, match=r"config\.yaml: expected no file, or the options of a run"):
        run(tone_corpus, tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "site: mine\n"


@pytest.mark.slow
def test_a_run_that_stopped_early_stays_finished(tone_corpus: Path, tmp_path: Path) -> None:
    """A finished run without training.json, e.g. after a kill, went on training."""
    overrides = ["trainer.stop_at=2.0", "resume=auto"]
    rows = run(tone_corpus, tmp_path, *overrides)
    assert len(rows) == 6
    summary = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "training.json").unlink()
    assert run(tone_corpus, tmp_path, *overrides) == rows
    again = json.loads((tmp_path / "training.json").read_text())
    assert again.keys() == summary.keys()
    assert all(
        again[key] == summary[key] for key in ("steps", "frames", "train_s", "dev_error_rate", "epochs")
    )
    assert len(run(tone_corpus, tmp_path, "trainer.stop_at=null", "resume=auto")) == STEPS


@pytest.mark.slow
def test_training_has_converged_when_the_plateau_schedule_passes_the_minimum_rate(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """With a rate of 1e-7 the dev loss hardly falls; the second validation, at step 12, halves the rate."""
    overrides = ["optimizer.schedule=plateau", "optimizer.learning_rate=1e-7", "optimizer.plateau_patience=0"]
    overrides += ["optimizer.warmup_steps=0", "resume=auto", f"trainer.max_steps={STEPS + 2}"]
    rows = run(tone_corpus, tmp_path, *overrides, "optimizer.minimum_rate=9e-8")
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([1e-7] * 12 + [5e-8])
    assert run(tone_corpus, tmp_path, *overrides, "optimizer.minimum_rate=9e-8") == rows
    assert len(run(tone_corpus, tmp_path, *overrides)) == STEPS + 2


def test_training_converges_at_the_end_of_a_step() -> None:
    """With accumulation it ended within one, so that a gradient was lost and a step was validated twice."""
    optimizer = SimpleNamespace(param_groups=[{"lr": 1e-9}])
    trainer = SimpleNamespace(optimizers=[optimizer], accumulate_grad_batches=2, should_stop=False)
    stopped = []
    for batch in (2, 3):
        StopConverged(1e-8).on_train_batch_end(trainer, None, None, None, batch)  # type: ignore[arg-type]
        stopped.append(trainer.should_stop)
    assert stopped == [False, True]


def test_a_resumed_run_has_the_patience_of_its_options() -> None:
    """trainer.early_stopping may change when a run resumes, but the old patience was restored."""
    before, after = StopEarly("dev_per", patience=1), StopEarly("dev_per", patience=5)
    before.wait_count = 1
    after.load_state_dict(before.state_dict())
    assert (after.patience, after.wait_count) == (5, 1)


def test_a_longer_plan_says_that_the_rate_rises_again(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished cosine schedule jumped from a hundredth of the peak rate to half of it without a word."""
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "optimizer.schedule=cosine"]
    overrides += ["optimizer.warmup_steps=0", "optimizer.learning_rate=1e-3", "resume=auto"]
    said = []
    for length in ("max_steps=2", "max_steps=4"):
        train(train_options([*overrides, f"trainer.{length}"]))
        said.append([x for x in capsys.readouterr().out.splitlines() if "rises again" in x])
    with killed(5):
        train(train_options([*overrides, "trainer.max_steps=6", "trainer.checkpoint_every=1"]))
    capsys.readouterr()
    train(train_options([*overrides, "trainer.max_steps=6"]))  # as planned
    said.append([x for x in capsys.readouterr().out.splitlines() if "rises again" in x])
    assert said == [
        [],
        [
            "  the learning rate rises again, from 1e-05 to 0.000505: optimizer.schedule=cosine now falls "
            "over 4 steps"
        ],
        [],
    ]
