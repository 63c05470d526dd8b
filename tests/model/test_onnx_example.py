"""docs/examples/onnx_transcribe.py: from wav to text without PyTorch, as `asr transcribe` does it."""

import ast
import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from test_export_model import tiny

from asr.cli import main
from asr.model.features import FilterBanks
from asr.model.options import FeatureConfig
from asr.model.portable import write_portable

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/onnx_transcribe.py"


def test_the_example_needs_no_package_but_onnxruntime_and_numpy() -> None:
    parts = list(ast.walk(ast.parse(EXAMPLE.read_text())))
    names = {name.name for x in parts if isinstance(x, ast.Import) for name in x.names}
    assert names - sys.stdlib_module_names == {"numpy", "onnxruntime"}
    assert not any(isinstance(x, ast.ImportFrom) for x in parts)


@pytest.mark.parametrize(
    "options", [{}, {"sample_rate": 8000, "mel_bins": 40}, {"high_freq_hz": 0.0, "frame_length_ms": 20.0}]
)
def test_its_filter_banks_are_those_of_the_model(options: dict[str, Any]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    config = FeatureConfig(**options)
    samples = 0.1 * torch.randn(1, 20_001, generator=torch.Generator().manual_seed(0))
    expected, _ = FilterBanks(config)(samples, torch.tensor([20_001]))
    compute = runpy.run_path(str(EXAMPLE))["filter_banks"]
    found = compute(samples[0].double().numpy(), config.sample_rate, dataclasses.asdict(config))
    assert found.shape == expected[0].shape
    assert np.abs(found - expected[0].numpy()).max() < 1e-3


@pytest.mark.slow
def test_it_transcribes_a_batch_of_recordings_to_the_text_of_asr_transcribe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    recognizer = tiny()
    with torch.no_grad():  # so that noise has a text
        recognizer.model.head.projection.bias.zero_()
    write_portable(recognizer.state(), tmp_path / "model")
    generator = torch.Generator().manual_seed(0)
    places = [str(tmp_path / f"{number}.wav") for number in range(4)]
    for place, length in zip(places, (6_000, 12_345, 20_000, 9_999), strict=True):
        soundfile.write(place, 0.1 * torch.randn(length, generator=generator), 16000, subtype="PCM_16")
    assert main(["export", str(tmp_path / "model"), f"out={tmp_path / 'model.onnx'}"]) == 0
    capsys.readouterr()
    expected = []
    for place in places:
        assert main(["transcribe", str(tmp_path / "model"), place, "device=cpu", "mode=onepass"]) == 0
        expected.append(capsys.readouterr().out.strip())
    assert len(set(expected)) == 4
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "model.onnx"), *places]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == expected
