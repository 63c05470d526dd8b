"""Relative positions in the logits: transformers' module, both ways to compute them, means of clusters."""

import pytest
import torch
from torch import Tensor

import attention_ext
from asr.attention import relative
from asr.attention.layer import SelfAttentionLayer
from asr.attention.relative import conformer_attention

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from transformers.models.parakeet.modeling_parakeet import (  # noqa: E402
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (  # noqa: E402
    Wav2Vec2BertSelfAttention,
)

N, M, H = 37, 24, 2
LENGTHS = torch.tensor([37, 20, 1, 0])


def module(size: int = M) -> torch.nn.Module:
    """Return transformers' attention with random weights and without dropout."""
    torch.manual_seed(0)
    config = transformers.ParakeetEncoderConfig(
        hidden_size=size, num_attention_heads=H, attention_dropout=0.0, attn_implementation="eager"
    )
    found = ParakeetEncoderAttention(config, 0).eval()
    for weights in found.parameters():
        torch.nn.init.normal_(weights, std=0.4)
    return found


def inputs(size: int = M) -> Tensor:
    return torch.randn(4, N, size, generator=torch.Generator().manual_seed(1))


def padded() -> Tensor:
    """Return inputs whose padding is NaN."""
    keep = torch.arange(N) < LENGTHS.unsqueeze(-1)
    return inputs().masked_fill(~keep.unsqueeze(-1), torch.nan)


@pytest.mark.parametrize("chunk", [5, 256])
@torch.no_grad()
def test_full_attention_equals_that_of_transformers(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative, "CHUNK", chunk)
    theirs, x = module(), inputs()
    positions = ParakeetEncoderRelPositionalEncoding(theirs.config)(x)
    expected = theirs(x, positions)[0]
    for backend in ("auto", "reference"):
        ours = conformer_attention(theirs, "full", backend)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4)
        found = ours(padded(), LENGTHS)
        assert not found[3].any()
        torch.testing.assert_close(found[1, :20], ours(x[1:2, :20])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["full", "local-3", "local-0", "local-50", "local-3:right=1", "local-2:right=0,chunk=5"]
)
def test_distances_and_longer_heads_agree_with_their_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference backend computes what `full` and `local` see from longer queries and keys."""
    monkeypatch.setattr(relative, "CHUNK", 8)
    results = []
    for backend in ("auto", "reference"):
        theirs = module()
        x = padded().requires_grad_()
        y = conformer_attention(theirs, name, backend)(x, LENGTHS)
        (y * torch.arange(M)).sum().backward()
        results.append((y, x.grad, *(own.grad for own in theirs.parameters())))
    for ours, expected in zip(*results, strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("name", ["clustered-4", "i-clustered-4:topk=5", "near-4:topk=5,window=2"])
@torch.no_grad()
def test_heads_in_turn_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour's longer queries of all heads would not fit into memory."""
    layer = conformer_attention(module(), name, "auto")
    expected = layer(padded(), LENGTHS)
    monkeypatch.setattr(relative, "HEADS_AT_ONCE", 1)
    torch.testing.assert_close(layer(padded(), LENGTHS), expected, rtol=0, atol=1e-6)


def test_heads_too_long_for_the_cuda_kernels_run_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters in Parakeet's layers, with queries of size D + M, ended in the kernels' error on a GPU."""
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": None, "cuda": None}.get)
    for size, expected in ((M, "native"), (288, "reference")):
        layer = conformer_attention(module(size), "i-clustered-4", "auto")
        assert layer.backend_on("cuda") == expected
        assert layer.double().backend_on("cuda") == "reference"
        assert layer.backend_on("cpu") == "native"


@pytest.mark.parametrize("options", ["", ":grouping=keys"])
@torch.no_grad()
def test_a_clusters_logits_are_the_mean_of_its_queries(options: str) -> None:
    """Positions included, also with heads that are too long for a hash."""
    check_means(conformer_attention(module(288), "full", "auto"), inputs(288)[:1] / 10, options)


@pytest.mark.parametrize(("left", "right"), [(3, 2), (1, 1), (4, 0), (60, 50)])
@pytest.mark.parametrize("options", ["", ":grouping=keys"])
@torch.no_grad()
def test_means_of_clipped_distances(left: int, right: int, options: str) -> None:
    torch.manual_seed(0)
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=M,
        num_attention_heads=H,
        left_max_position_embeddings=left,
        right_max_position_embeddings=right,
    )
    theirs = Wav2Vec2BertSelfAttention(config).eval()
    for weights in theirs.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    layer = conformer_attention(theirs, "full", "auto")
    torch.testing.assert_close(layer(inputs()), theirs(inputs())[0], rtol=1e-4, atol=1e-4)
    check_means(layer, inputs()[:1], options)


def check_means(layer: SelfAttentionLayer, x: Tensor, options: str) -> None:
    """Compare the weights of `clustered` with the softmax of the mean logits of full attention."""
    full = layer.weights("full", x).double()
    found = layer.weights(f"clustered-4{options}", x)
    logits = full.log()
    for weights, own in zip(found[0], logits[0], strict=True):
        groups = (weights.unsqueeze(1) - weights).abs().amax(-1) < 1e-7
        assert 1 < len(groups.unique(dim=0)) <= 4
        means = groups.double() @ own / groups.sum(1, keepdim=True)
        torch.testing.assert_close(weights.double(), means.softmax(-1), rtol=1e-3, atol=1e-5)
