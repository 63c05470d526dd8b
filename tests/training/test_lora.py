"""LoRA: what is trained, resume points, averages, and recognisers that don't need peft."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrained_models import load_model, save_model, utterances
from published_models import save_parakeet
from runs import assert_same_weights, killed
from tiny_whisper import save_whisper

from asr.cli import main
from asr.errors import UserError
from asr.model.lora import add_lora, merged
from asr.model.options import LoraConfig
from asr.recognizer import Recognizer
from asr.records.run_folder import RunFolder
from asr.training.config import train_options
from asr.training.run import train

peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")

LENGTHS = torch.tensor([16000, 7000])
LORA = LoraConfig(rank=3)
SHORT = [
    "recipe=folder",
    "tokenizer.kind=character",
    "data.frames_per_batch=300",
    "data.workers=0",
    "trainer.accelerator=cpu",
    "trainer.max_steps=6",
    "trainer.checkpoint_every=2",
    "trainer.validate_every=2",
    "optimizer.learning_rate=1e-2",
    "optimizer.warmup_steps=0",
    "optimizer.schedule=constant",
    "model.lora.rank=3",
]
FAMILIES = {
    "wav2vec2": save_model,
    "wavlm": lambda folder: save_model(folder, "wavlm"),
    "parakeet": save_parakeet,
    "whisper": save_whisper,
}


@pytest.fixture
def overrides(tmp_path: Path, corpus_maker: Callable[..., Path]) -> list[str]:
    """Options of a run."""
    save_model(tmp_path / "encoder")
    return [*SHORT, f"data.train=[{corpus_maker()}]", f"model.encoder={tmp_path / 'encoder'}"]


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_are_those_of_peft_and_give_its_output(family: str, tmp_path: Path) -> None:
    """The projections were computed from their weights on a CPU, without the updates."""
    FAMILIES[family](tmp_path)
    model, plain = load_model(tmp_path), load_model(tmp_path)
    names = list(plain.state_dict())
    expected, _ = plain(utterances(LENGTHS), LENGTHS)
    add_lora(model, LORA)
    torch.testing.assert_close(model(utterances(LENGTHS), LENGTHS)[0], expected)  # B is zero at first
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    assert len(trained) == 2 * 4 * model.config.model.layers + 2  # A and B of four projections; the head
    for name, x in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(x, std=0.3)
    updated, _ = model(utterances(LENGTHS), LENGTHS)
    assert (updated - expected).abs().max() > 0.1
    weights = merged(model.state_dict(), LORA)
    assert list(weights) == names
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain(utterances(LENGTHS), LENGTHS)[0], updated, rtol=0, atol=1e-4)
    for name, layer in model.encoder.named_modules():
        if isinstance(layer, peft.tuners.lora.Linear):
            layer.merge()
            torch.testing.assert_close(weights[f"encoder.{name}.weight"], layer.base_layer.weight.data)


def found_head(run: Path) -> list[torch.Tensor]:
    return [x for name, x in Recognizer.load(run).model.state_dict().items() if name.startswith("head.")]


@pytest.mark.slow
def test_interrupted_equals_uninterrupted(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what isn't trained is as it was; the average of checkpoints is that of their merged weights."""
    overrides += ["attention=i-clustered-4:topk=3", "trainer.keep_best=2", "trainer.average_best=2"]
    train(train_options([*overrides, f"run={tmp_path / 'whole'}"]))
    assert re.search(r", 0\.00 of 0\.0\d M parameters, ", capsys.readouterr().out)
    head = sum(x.numel() for x in found_head(tmp_path / "whole"))
    assert RunFolder(tmp_path / "whole").read_summary().parameters == 2 * 4 * 2 * 3 * 24 + head
    with killed(5):
        train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")
    found = Recognizer.load(tmp_path / "whole", checkpoint="last").model.state_dict()
    before = load_model(tmp_path / "encoder").state_dict()
    changed = {name for name in before if not torch.equal(found[name], before[name])} - {
        "normalisation.masked_frame"
    }
    projections = ("query.weight", "key.weight", "value.weight", "output.weight")
    assert changed == {x for x in before if x.startswith("head.") or x.endswith(projections)}
    best = [torch.load(x)["model"]["weights"] for x in RunFolder(tmp_path / "whole").best()]
    average = Recognizer.load(tmp_path / "whole", checkpoint="average").model.state_dict()
    for name in (x for x in average if x.endswith(projections)):
        assert not torch.equal(best[0][name], best[1][name])
        torch.testing.assert_close(average[name], (best[0][name] + best[1][name]) / 2)


@pytest.mark.slow
def test_recognisers_do_not_need_peft(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is decoded, exported, and the start of other trainings; only LoRA itself needs it."""
    run = tmp_path / "run"
    assert main(["train", *overrides, f"run={run}", "trainer.max_steps=2"]) == 0
    start = [x for x in overrides if not x.startswith("model.encoder=")] + [f"init_from={run}"]
    start += [f"model.encoder={tmp_path / 'encoder'}", "trainer.max_steps=1"]
    assert main(["train", *start, f"run={tmp_path / 'more'}"]) == 0
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["decode", str(run), "split=test", "device=cpu"]) == 0
    assert main(["export", str(run), f"out={tmp_path / 'model'}"]) == 0
    assert Recognizer.load(tmp_path / "model").model.digest() == Recognizer.load(run).model.digest()
    assert main(["export", str(run), "format=transformers", f"out={tmp_path / 'theirs'}"]) == 0
    capsys.readouterr()
    assert main(["train", *overrides, f"run={tmp_path / 'other'}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "asr: model.lora.rank=3: expected peft, found none: pip install 'clustered-asr[lora]'"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.encoder=", "model.lora.rank=3: expected trained weights, by model.encoder= or init_from="),
        ("recipe=copy", "rank=3: has no effect with recipe=copy"),
    ],
)
def test_lora_without_trained_weights_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_options([*SHORT, override])
