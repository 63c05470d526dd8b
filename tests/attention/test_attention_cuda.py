"""The reference on CUDA gives the same clusters and outputs as on the CPU, and never synchronises."""

import pytest
import torch
from mechanisms import LENGTHS, LOCAL, OWN, QUERY_KEY, SOFTMAX, build, inputs

from asr.attention import build_self_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", [name for name in SOFTMAX if "clustered" in name])
def test_same_clusters(name: str) -> None:
    mechanism = build(name)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 1500, 64, generator=generator)
    lengths = torch.tensor([1500, 901, 3])
    for dtype in (torch.float32, torch.bfloat16):
        expected = mechanism.cpu().clusters(q.to(dtype), lengths, k.to(dtype))
        found = mechanism.cuda().clusters(q.to(dtype).cuda(), lengths.cuda(), k.to(dtype).cuda())
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("name", QUERY_KEY)
def test_same_output_and_gradients(name: str) -> None:
    mechanism = build(name)
    results = []
    for device in ("cpu", "cuda"):
        mechanism.to(device)
        leaves = [x.to(device).requires_grad_() for x in inputs(mechanism)]
        out = mechanism(*leaves, LENGTHS.to(device))
        out.square().sum().backward()
        results.append([out.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_banded_sdpa_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    """What local attention's native backend is on CUDA, with gradients."""
    results = []
    for backend in ("reference", "native"):
        mechanism = build(name, backend=backend).cuda()
        leaves = [x.cuda().requires_grad_() for x in inputs(mechanism, dtype=dtype)]
        out = mechanism(*leaves, LENGTHS.cuda())
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["full", "local-3", "local-70"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("finite", [False, True])
def test_flash_attention_equals_the_reference(name: str, dtype: torch.dtype, finite: bool) -> None:
    """With NaN in padding, and with the finite padding of a whole encoder; lengths 0 and 1 are among them."""
    g = torch.Generator().manual_seed(0)
    results = []
    drawn = [torch.randn(len(LENGTHS), 2, 31, 16, generator=g).to(dtype) for _ in range(3)]
    padding = (torch.arange(31) >= LENGTHS.unsqueeze(1))[:, None, :, None]
    for backend in ("reference", "native"):
        mechanism = build(name, backend=backend).cuda()
        leaves = [x.masked_fill(padding, 0.5 if finite else float("nan")) for x in drawn]
        leaves = [x.cuda().requires_grad_() for x in leaves]
        out = mechanism(*leaves, LENGTHS.cuda(), finite_padding=finite)
        out = out.masked_fill(padding.cuda(), 0)
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["full", "local-16"])
def test_flash_attention_drops_weights(name: str) -> None:
    """The mean over many masks is the output without dropout, and padding adds nothing."""
    mechanism = build(name, backend="native", dropout=0.3).cuda().train()
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, 40, 16, generator=g).expand(4000, 2, 40, 16).cuda().bfloat16() for _ in range(3)
    )
    lengths = torch.full((4000,), 33, device="cuda")
    out = mechanism(q, k, v, lengths)
    assert not torch.equal(out[0], out[1])
    assert (out[:, :, 33:] == 0).all()
    torch.testing.assert_close(
        out.float().mean(0), mechanism.eval()(q[:1], k[:1], v[:1], lengths[:1])[0].float(), rtol=0, atol=0.05
    )


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "reference") for name in QUERY_KEY + OWN), ("full", "native"), ("local-3", "native")],
)
def test_never_synchronises_with_the_device(name: str, backend: str) -> None:
    """Forward and backward, with and without autocast."""
    layer = build_self_attention(name, model_dim=32, heads=2, dropout=0.1, backend=backend).cuda()
    x, lengths = torch.randn(3, 300, 32, device="cuda"), torch.tensor([300, 117, 0], device="cuda")
    layer(x, lengths).sum().backward()  # loads and warms up libraries
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, lengths).sum().backward()
        with torch.autocast("cuda", torch.bfloat16):
            layer(x, lengths).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
