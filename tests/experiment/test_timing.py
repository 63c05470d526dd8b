"""Forward times of several models on the same utterances."""

from pathlib import Path

import pytest
from pretrained_models import load_model, save_model

from asr.experiment.labels import LabelPasses
from asr.experiment.speech import SpeechPasses
from asr.experiment.timing import Runner, forward_times, in_turns_on
from asr.measure import Seconds
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.options import FeatureConfig
from asr.model.portable import write_portable
from asr.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizer
from asr.training.config import train_options
from asr.training.run import train


def test_pretrained_models_of_several_sizes_have_inputs_of_their_own(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Models with equal feature settings shared the input of the first, which others couldn't take."""
    tokenizer = CharacterTokenizer.train(["abc"])
    for size in (24, 36):
        save_model(tmp_path / f"encoder-{size}", hidden_size=size)
        model = load_model(tmp_path / f"encoder-{size}", vocabulary=len(tokenizer))
        write_portable(Recognizer(model, tokenizer).state(), tmp_path / f"model-{size}")
    models = [(tmp_path / "model-24", "full"), (tmp_path / "model-36", "full")]
    passes = SpeechPasses(models, tone_corpus / "test.cuts.jsonl.gz", 1000, "cpu")
    times, _ = forward_times(passes, repeats=1, device="cpu", threads=1, advance=lambda share: None)
    assert [entry.error for entry in times] == ["", ""]


def test_every_model_hears_audio_at_its_own_sample_rate(tone_corpus: Path, tmp_path: Path) -> None:
    """All models got the samples of the first model's rate: one for 8 kHz had twice the frames to encode."""
    tokenizer = CharacterTokenizer.train(["abc"])
    for rate in (16000, 8000):
        config = AcousticModelConfig("full", features=FeatureConfig(sample_rate=rate, mel_bins=20))
        write_portable(
            Recognizer(AcousticModel(config, len(tokenizer)), tokenizer).state(), tmp_path / str(rate)
        )
    models = [(tmp_path / "16000", "full"), (tmp_path / "8000", "full")]
    passes = SpeechPasses(models, tone_corpus / "test.cuts.jsonl.gz", 100_000, "cpu")
    inputs = passes.inputs(0)
    frames = [int(inputs[runner.input_key][1].sum()) for runner in passes.runners]
    assert frames[1] == pytest.approx(frames[0], rel=0.01)


@pytest.mark.slow
def test_models_of_several_lengths_have_items_of_their_own(tmp_path: Path) -> None:
    models = []
    for length, attention in ((4, "full"), (4, "clustered-2"), (7, "full")):
        run = tmp_path / f"{length}-{attention}"
        overrides = ["recipe=copy", f"recipe.length={length}", f"attention={attention}", "model.layers=1"]
        overrides += ["model.heads=1", "trainer.max_steps=1", "trainer.accelerator=cpu", f"run={run}"]
        train(train_options(overrides))
        models.append((run, attention))
    passes = LabelPasses(models, "dev", "cpu")
    inputs = passes.inputs(0)
    positions = [inputs[runner.input_key][0].inputs.shape[1] for runner in passes.runners]
    assert positions == [10, 10, 16]
    assert len(inputs) == 2
    times, _ = forward_times(passes, repeats=1, device="cpu", threads=1, advance=lambda share: None)
    assert all(entry.error == "" and (entry.forward_cpu_s or 0) > 0 for entry in times)


def test_systems_that_share_a_model_are_prepared_before_every_turn() -> None:
    """The first turn of each doesn't count, and its outputs are not kept."""
    calls: list[str] = []
    model = {"attention": ""}

    def runner(name: str) -> Runner:
        def run(x: int) -> tuple[str, int]:
            calls.append(name)
            return model["attention"], x

        return Runner(run, prepare=lambda: model.update(attention=name))

    runners = {name: runner(name) for name in ("full", "near-25")}
    kept: list[tuple[str, tuple[str, int]]] = []
    for batch in (1, 2):
        found = in_turns_on(
            {"": (batch,)},
            runners,
            device="cpu",
            repeats=2,
            keep=lambda name, output: kept.append((name, output)),
        )
        assert {name: len(times) for name, times in found.items()} == {"full": 2, "near-25": 2}
    assert calls == ["full", "near-25"] * 5
    order = [(name, (name, batch)) for batch in (1, 1, 2, 2) for name in runners]
    assert kept == order


def test_a_system_that_cannot_run_is_skipped_and_the_others_go_on() -> None:
    def fail(x: int) -> int:
        raise RuntimeError("CUDA error: out of memory\nmore lines")

    runners = {"full": Runner(fail), "near-25": Runner(lambda x: x), "elsewhere": Runner(fail, "other")}
    kept: list[tuple[str, int]] = []
    found = in_turns_on({"": (7,)}, runners, device="cpu", keep=lambda name, x: kept.append((name, x)))
    assert kept == [("near-25", 7)]
    assert found["full"] == [Seconds()]
    assert found["near-25"][0].wall_s > 0
    assert "elsewhere" not in found
    assert runners["full"].error == "CUDA error: out of memory"
    assert runners["elsewhere"].error == ""
