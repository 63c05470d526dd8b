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


@pytest.mark.parametrize("name", QUERY_KEY + OWN)
def test_never_synchronises_with_the_device(name: str) -> None:
    """Forward and backward, with and without autocast."""
    layer = build_self_attention(name, model_dim=32, heads=2, dropout=0.1, backend="reference").cuda()
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
