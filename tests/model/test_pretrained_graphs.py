"""Graphs of models with pretrained encoders: from samples to log-probabilities, with their own front ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrained_models import load_model, save_model, utterances
from published_models import save_ctc, save_parakeet
from tiny_whisper import SECONDS, save_whisper

from asr.model.graph import write_onnx, write_program

LENGTHS = torch.tensor([16000, 7000, 3001])
CLUSTERS = "i-clustered-4:topk=3,iterations=2"
Run = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]


def save(folder: Path, family: str) -> None:
    """Write a model of a family."""
    match family:
        case "parakeet":
            save_parakeet(folder)
        case "whisper":
            save_whisper(folder)
        case "wav2vec2-bert":
            bins = {"feature_projection_input_dim": 40, "left_max_position_embeddings": 3}
            save_ctc(folder, family, conv_depthwise_kernel_size=5, initializer_range=0.2, **bins)
        case _:
            save_model(folder, family)


def opened(path: Path) -> Run:
    """Return the computation of a graph."""
    if path.suffix == ".pt2":
        run: Run = torch.export.load(path).module()
        return run
    runtime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [x.name for x in session.get_inputs()] == ["audio", "lengths"]
    return lambda samples, lengths: [
        torch.from_numpy(x) for x in session.run(None, {"audio": samples.numpy(), "lengths": lengths.numpy()})
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "family", "attention"),
    [
        ("onnx", "wav2vec2", "full"),
        ("torch_export", "wavlm", CLUSTERS),
        ("onnx", "parakeet", "full"),
        ("torch_export", "whisper", "local-5"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("torch_export", "hubert", "full"),
                ("onnx", "wavlm", CLUSTERS),
                ("torch_export", "parakeet", CLUSTERS),
                ("onnx", "whisper", "full"),
                ("onnx", "wav2vec2-bert", "full"),
                ("torch_export", "wav2vec2-bert", CLUSTERS),
            )
        ),
    ],
)
@torch.no_grad()
def test_graphs_map_samples_to_log_probabilities(
    form: str, family: str, attention: str, tmp_path: Path
) -> None:
    """In a batch and alone: batch and time are dynamic, and padding has no effect.

    Two iterations of K-means, because the graph repeats their operations.
    """
    save(tmp_path / "model", family)
    model = load_model(tmp_path / "model")
    model.set_attention(attention, backend="reference")
    path = tmp_path / ("x.onnx" if form == "onnx" else "x.pt2")
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
        write_onnx(model, list("-abcd"), path)
    else:
        write_program(model, path)
    run = opened(path)
    expected, frames = model(utterances(LENGTHS), LENGTHS)
    found, counts = run(utterances(LENGTHS, 1e4), LENGTHS)
    assert counts.tolist() == frames.tolist()
    assert found.shape == expected.shape
    for i, (length, count) in enumerate(zip(LENGTHS.tolist(), frames.tolist(), strict=True)):
        torch.testing.assert_close(found[i, :count], expected[i, :count], rtol=0, atol=1e-4)
        alone, _ = run(utterances(LENGTHS)[i : i + 1, :length], LENGTHS[i : i + 1])
        torch.testing.assert_close(alone[0], expected[i, :count], rtol=0, atol=1e-4)
    if family == "whisper":  # the longest input, and one that is longer than the positions
        for seconds in (SECONDS, SECONDS + 1):
            samples = 0.1 * torch.randn(1, 16000 * seconds, generator=torch.Generator().manual_seed(0))
            log_probs, _ = run(samples, torch.tensor([16000 * seconds]))
            valid = log_probs[0, : 50 * SECONDS].isfinite().all(), log_probs[0, 50 * SECONDS :].isnan().all()
            assert valid == (seconds == SECONDS, True)
