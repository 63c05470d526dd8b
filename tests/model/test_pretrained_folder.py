"""Folders of pretrained models: heads, types, missing and damaged files."""

import json
import sys
from pathlib import Path

import pytest
import torch
from pretrained_models import CONFIGS, TINY, load_model, save_model, transformers
from safetensors.torch import load_file, save_file

from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.pretrained_folder import encoder_options, read_pretrained


def test_the_folder_determines_the_options(tmp_path: Path) -> None:
    save_model(tmp_path, norm="layer", stable=True, layerdrop=0.2)
    options = encoder_options(read_pretrained(str(tmp_path)))
    expected = {
        "model.layers": 2,
        "model.heads": 2,
        "model.head_dim": 12,
        "model.feedforward": 32,
        "model.norm": "pre",
        "model.subsampling": 1,
        "model.layer_drop": 0.2,
        "features.sample_rate": 16000,
        "features.frame_length_ms": 70 / 16,
        "features.frame_shift_ms": 10.0,
        "features.normalise": "none",
    }
    assert {key: options[key] for key in expected} == expected


def test_weights_of_a_model_with_a_head_are_found(tmp_path: Path) -> None:
    """In half precision, as many published models are; they are trained in float32."""
    torch.manual_seed(3)
    model = transformers.Wav2Vec2ForCTC(CONFIGS["wav2vec2"](**TINY)).half()
    model.save_pretrained(tmp_path)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    ours = load_model(tmp_path).encoder.blocks[1].attention.query.weight
    theirs = model.wav2vec2.encoder.layers[1].attention.q_proj.weight
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs.float())


def test_another_type_of_model_is_refused(tmp_path: Path) -> None:
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"expected a model of wav2vec2, .*, found 'bert'"):
        read_pretrained(str(tmp_path))


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: expected a folder written by save_pretrained"):
        read_pretrained(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"config.json: expected the configuration"):
        read_pretrained(str(tmp_path))


@pytest.mark.parametrize("option", ["add_adapter", "conv_pos_batch_norm"])
def test_settings_that_are_not_run_are_refused(option: str, tmp_path: Path) -> None:
    family = "hubert" if option == "conv_pos_batch_norm" else "wav2vec2"
    save_model(tmp_path, family, **{option: True})
    with pytest.raises(UserError, match=f"expected {option}=false, found true"):
        read_pretrained(str(tmp_path))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    """A model that lacked weights would have started from random ones."""
    save_model(tmp_path)
    load_model(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layers.1.attention.k_proj.weight"
    save_file({**weights, name: torch.full_like(weights[name], torch.nan)}, path)
    with pytest.raises(UserError, match=f"found NaN or infinity in {name}"):
        load_model(tmp_path)
    save_file({key: value for key, value in weights.items() if key != name}, path)
    with pytest.raises(UserError, match=f"expected all weights, found none for {name}"):
        load_model(tmp_path)
    save_file({**weights, name: torch.zeros(3, 3)}, path)
    with pytest.raises(UserError, match="expected the weights of its configuration, found") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"expected 12,496 weights, as config.json says, found 1,000 bytes"):
        load_model(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"r_config.json: expected the settings of the input, found none"):
        read_pretrained(str(tmp_path))


def test_no_code_of_a_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that named further files and code made transformers ask whether to run it.

    `yes | asr train model.encoder=…` answered, and the code ran.
    """
    save_model(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    code = {"auto_map": dict.fromkeys(("AutoConfig", "AutoModel", "AutoFeatureExtractor"), "code.Own")}
    for name in ("config.json", "preprocessor_config.json"):
        values = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**values, **code, "configuration_files": ["config.4.json"]}))
    (tmp_path / "config.4.json").write_text(json.dumps({"model_type": "own", **code}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    model = load_model(tmp_path)
    state = model.state()
    assert "auto_map" not in state["config"]["pretrained"]["transformers"]
    # In a checkpoint, too.
    state["config"]["pretrained"]["transformers"] |= code
    AcousticModel.from_state(state, 5, "checkpoint")
    assert not ran.exists()


def test_without_transformers_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"transformers ≥ 5, found none: pip install"):
        read_pretrained(str(tmp_path))
