"""The model on audio as it comes, against the model on the whole recording."""

import re

import pytest
import torch
from quick import quick

from asr.config import from_dict
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.streaming import StreamingModel, why_not_streamed

LOCAL = "local-7:right=2"
# Attention and options of the model.
MODELS = {
    "window": (LOCAL, {}),
    "causal": ("local-7:right=0", {}),
    "chunks": ("local-5:right=0,chunk=4", {}),
    "chunks and more": ("local-5:right=3,chunk=4", {"subsampling": 4}),
    "no window": ("local-0:right=0", {}),
    "layers": (f"{LOCAL}*1,local-3:right=1,chunk=3*1,none*1", {"positions": "none"}),
    "no positions": (LOCAL, {"positions": "none", "subsampling": 1}),
    "convolved positions": (LOCAL, {"positions": "convolution", "position_kernel": 5}),
    "subsampled": (LOCAL, {"subsampling": 8}),
    "post-norm": (LOCAL, {"norm": "post"}),
    "conformer": (LOCAL, {"block": "conformer", "convolution_kernel": 5}),
    "conformer without attention": (
        "none",
        {"block": "conformer", "convolution_kernel": 5, "positions": "none"},
    ),
    "ebranchformer": (LOCAL, {"block": "ebranchformer", "convolution_kernel": 5}),
    "ebranchformer in chunks": (
        "local-4:right=1,chunk=3",
        {"block": "ebranchformer", "convolution_kernel": 3},
    ),
    "runs": (LOCAL, {"frames": "1,2*2"}),
    "runs in chunks": ("local-4:right=1,chunk=3", {"frames": "3,3,2"}),
    "conformer in runs": (LOCAL, {"frames": "2", "block": "conformer", "convolution_kernel": 3}),
}


def build(attention: str, given: dict[str, object], intermediate: tuple[int, ...] = ()) -> AcousticModel:
    torch.manual_seed(0)
    sizes = {"layers": 3, "heads": 2, "head_dim": 8, "feedforward": 32, "positions": "rotary"}
    options = {
        "attention": attention,
        "features": {"normalise": "corpus", "mel_bins": 16},
        "model": sizes | {"subsampling": 2} | given,
        "intermediate": list(intermediate),
    }
    model = AcousticModel(from_dict(AcousticModelConfig, options, "test"), 6).eval()
    with torch.no_grad():
        model.normalisation.mean.copy_(torch.randn(16) - 5)
        model.head.projection.bias.zero_()
        for x in model.parameters():  # far from the start of training, so that all layers matter
            x.mul_(1.5)
    return model


def whole(model: AcousticModel, samples: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        log_probs, frames = model(samples[None], torch.tensor([len(samples)]))
    return log_probs[0, : frames[0]]


@pytest.mark.parametrize("name", quick(MODELS, lambda name: name in ("window", "runs in chunks")))
def test_a_stream_is_the_whole_recording(name: str) -> None:
    """For any blocks and lengths, the shortest included."""
    attention, given = MODELS[name]
    model = build(attention, given)
    assert why_not_streamed(model) == []
    random = torch.Generator().manual_seed(1)
    for size, blocks in (
        (24000, 1600),
        (23111, 577),
        (12345, 7),
        (3000, 3000),
        (401, 100),
        (399, 50),
        (1, 1),
    ):
        samples = 0.1 * torch.randn(size, generator=random)
        stream = StreamingModel(model)
        found = [stream.push(block) for block in samples.split(blocks)]
        found.append(stream.push(samples[:0], last=True))
        expected = whole(model, samples)
        assert torch.cat(found).shape == expected.shape
        assert torch.allclose(torch.cat(found), expected, atol=2e-4)


@pytest.mark.parametrize("intermediate", [(1,), (1, 2)])
@pytest.mark.parametrize("frames", ["1", "2"])
def test_self_conditioned_models(intermediate: tuple[int, ...], frames: str) -> None:
    model = build(LOCAL, {"self_conditioned": True, "frames": frames}, intermediate)
    samples = 0.1 * torch.randn(20000)
    stream = StreamingModel(model)
    found = [stream.push(block) for block in samples.split(999)]
    found.append(stream.push(samples[:0], last=True))
    assert torch.allclose(torch.cat(found), whole(model, samples), atol=2e-4)


@pytest.mark.parametrize("name", quick(MODELS, lambda name: name in ("chunks and more", "runs")))
def test_frames_come_as_early_as_said_and_no_earlier(name: str) -> None:
    """What a frame's output depends on is heard; of the audio after that, nothing is."""
    model = build(*MODELS[name])
    stream = StreamingModel(model)
    ahead = stream.look_ahead_samples
    hop = model.front_end.shift_samples * model.config.model.subsampling
    samples = 0.1 * torch.randn(60 * hop)
    latest = torch.zeros(0, dtype=torch.int64)  # samples heard at each frame's output
    for heard in range(0, len(samples), 40):
        found = stream.push(samples[heard : heard + 40])
        latest = torch.cat((latest, torch.full((len(found),), heard + 40)))
    waited = latest - hop * torch.arange(1, len(latest) + 1)
    assert ahead <= int(waited.max()) < ahead + 40


def test_memory_does_not_grow() -> None:
    model = build(
        "local-5:right=3,chunk=4", {"frames": "1,2*2", "block": "conformer", "convolution_kernel": 5}
    )
    stream = StreamingModel(model)

    def kept() -> int:
        seen: set[int] = set()
        total = 0
        waiting: list[object] = [stream]
        while waiting:
            own = waiting.pop()
            if isinstance(own, torch.Tensor):
                total += own.untyped_storage().nbytes()
            elif isinstance(own, list):
                waiting += own
            elif id(own) not in seen and type(own).__module__ == StreamingModel.__module__:
                seen.add(id(own))
                waiting += vars(own).values()
        return total

    sizes = []
    for _ in range(40):
        stream.push(0.1 * torch.randn(3200))
        sizes.append(kept())
    assert 0 < max(sizes[20:]) <= max(sizes[:20])


@pytest.mark.parametrize(
    ("attention", "given", "features", "reason"),
    [
        ("full", {}, {}, "attention full looks ahead over the whole utterance: train with attention=local-"),
        ("local-8:global=1", {}, {}, "attention local-8:global=1 looks ahead over the whole utterance"),
        (
            LOCAL,
            {"frames": "merge-0.4"},
            {},
            "frames=merge-0.4:cap=2,at=2 compares frames of the whole utterance ahead: train with frames=2",
        ),
        ("full:causal=true", {}, {}, "attention full:causal=true looks back over all that came before"),
        (LOCAL, {"positions": "sinusoidal"}, {}, "positions=rotary, convolution or none"),
        (
            LOCAL,
            {},
            {"normalise": "utterance"},
            "features.normalise=utterance .* train with .*=corpus or none",
        ),
        (
            LOCAL,
            {},
            {"normalise": "window"},
            "features.normalise=window takes its statistics from later audio",
        ),
    ],
)
def test_why_a_model_is_not_streamed(
    attention: str, given: dict[str, object], features: dict[str, object], reason: str
) -> None:
    options = {
        "attention": attention,
        "features": {"normalise": "none"} | features,
        "model": {"layers": 2, "heads": 2, "head_dim": 8, "positions": "rotary"} | given,
    }
    model = AcousticModel(from_dict(AcousticModelConfig, options, "test"), 5)
    (found,) = why_not_streamed(model)
    assert re.search(reason, found)
