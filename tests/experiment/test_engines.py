"""Other programs that run Whisper's encoder: the same states, rows of a comparison, what isn't installed."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from once import once
from tiny_whisper import SECONDS, save_whisper
from tone_corpora import make_corpus

from asr.cli import main
from asr.experiment import engines
from asr.experiment.engines import build_encoder, engine_version, unavailable
from asr.experiment.options import ENGINES
from asr.model.whisper import Whisper

FLOAT32 = [name for name in ENGINES if not name.endswith(("-bf16", "-int8"))]


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    def make(place: Path) -> None:
        save_whisper(place / "model")
        make_corpus(place / "data", {"test": 2})

    return once(shared / "whisper_of_engines", make)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_states_are_those_of_this_program(name: str, folder: Path) -> None:
    """In float32, but for rounding; in fewer bits, near them. Batches may have any size."""
    if reason := unavailable([name]):
        pytest.skip(reason[name])
    whisper = Whisper(folder / "model", "cpu", "")
    encode = build_encoder(name, folder / "model")
    torch.manual_seed(0)
    for batch in (1, 3):
        audio = [(0.1 * torch.randn(16000 * SECONDS)).numpy() for _ in range(batch)]
        given = whisper.features(audio)
        with torch.inference_mode():
            found, expected = encode(given["features"]), whisper.encode(**given)
        assert found.dtype == torch.float32
        error = (found - expected).norm() / expected.norm()
        assert error < (1e-4 if name in FLOAT32 else 0.3)


def test_engines_are_rows_beside_ours(folder: Path, tmp_path: Path) -> None:
    given = {"model": folder / "model", "data": folder / "data", "folder": tmp_path}
    given |= {"device": "cpu", "peers": "transformers,transformers-bf16"}
    assert main(["bench", *(f"{key}={value}" for key, value in given.items())]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {x["variant"]: x for x in results["evaluations"]}
    assert list(rows) == ["full", "peer:transformers", "peer:transformers-bf16"]
    assert rows["peer:transformers"]["rates"]["kl"]["rate"] < 1e-6
    assert rows["peer:transformers-bf16"]["rates"]["encoder"]["rate"] > 1e-4
    assert all(x["forward_cpu_s"] > 0 and x["peak_mib"] for x in rows.values())
    version = engine_version("transformers")
    assert results["environment"]["peers"]["transformers"] == version
    assert f"peer:transformers {version} 0" in (tmp_path / "test" / "outputs.jsonl").read_text()


def test_what_is_not_installed_is_skipped_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(engines, "version", version)
    given = {"model": folder / "model", "data": folder / "data", "folder": tmp_path}
    given |= {"attentions": "full", "device": "cpu", "peers": "openvino"}
    assert main(["compare", *(f"{key}={value}" for key, value in given.items())]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("skipped")]
    assert line == "skipped peers=openvino: openvino isn't installed: pip install 'clustered-asr[peers]'"
    results = json.loads((tmp_path / "results.json").read_text())
    assert [x["variant"] for x in results["evaluations"]] == ["full"]


def test_bfloat16_without_instructions_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO would compute in float32, and the row would say otherwise."""
    monkeypatch.setattr(engines, "version", lambda package: "1.0")
    monkeypatch.setattr(engines, "_openvino_types", lambda: ["FP32", "INT8"])
    assert unavailable(["openvino", "openvino-bf16"]) == {"openvino-bf16": "the processor has no bfloat16"}


def test_engines_without_recordings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers=all"]) == 1
    assert (
        "peers=all: expected data=<prepared folder> model=<Whisper folder> beside it"
        in capsys.readouterr().err
    )
