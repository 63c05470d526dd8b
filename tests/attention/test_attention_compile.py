"""Every mechanism compiles to one graph, forward and backward, and the graph equals eager mode.

In float64, where a compiler that reorders sums stays within 1e-9. In float32 a correct one exceeded 1e-5.
"""

import pytest
import torch
from mechanisms import CROSS, LENGTHS, OWN, QUERY_KEY, SHARED, C, K, build_layer, layer_input, two_iterations
from quick import quick

# Names without operations of their own: those of other names with other numbers, or in other combinations.
REPEATED = {
    *(f"clustered-{C}", f"clustered-{C}:grouping=keys", f"clustered-{C}:center=true"),
    *(f"i-clustered-{C}:topk={K}", "lsh-1:chunk=4,buckets=4"),
    *("local-3", "local-70:global=40", "local-3:right=0", "local-1:right=9", "local-9:chunk=70"),
    *("local-0:global=1", "local-2:right=0,chunk=4", f"near-{C}:topk={K},window=2"),
    *(f"near-{C}:topk=1,window=0,grouping=hash", f"near-{C}:topk=2,window=70"),
    *("cast-3:capacity=2", "cast-3:assign=single", "cast-3:assign=single,capacity=5"),
    *("cast-3:heads=own", "cast-3:function=laplace", "mamba:causal=true,state=4,chunk=4"),
    *("cast-9:count=root", "agglomerative-4:tie=true", "hyper:hidden=6,tie=true", "fastformer:tie=true"),
    *("mamba:state=2,chunk=4", "mamba:state=4,chunk=2", "mamba:state=4,width=1,chunk=4"),
    "mamba:state=4,expand=2,chunk=4",
}
NAMES = [name for name in QUERY_KEY + OWN if name not in REPEATED]


def compare(name: str, compiler: str, dtype: torch.dtype = torch.float64) -> None:
    layer = build_layer(name).train().to(dtype)
    x = layer_input(dtype=dtype).nan_to_num()
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    results = []
    for module in (layer, compiled):
        layer.zero_grad()
        torch.manual_seed(0)  # planes=fresh draws in training
        y = module(x, LENGTHS)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", quick(NAMES, "linear".__eq__))
def test_compiles_to_one_graph(name: str) -> None:
    """Two iterations of K-means, because the graph repeats their operations."""
    compare(two_iterations(name), "aot_eager")


@pytest.mark.slow
def test_one_graph_handles_many_lengths() -> None:
    layer = build_layer("i-clustered-5:topk=4,iterations=2").train()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for size in (40, 57, 64, 131):
            x = torch.randn(2, size, 12, generator=torch.Generator().manual_seed(size))
            lengths = torch.tensor([size, size // 2])
            torch.testing.assert_close(compiled(x, lengths), layer(x, lengths), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "linear:causal=true",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in (CROSS[-1], SHARED[-1], OWN[9])),
    ],
)
def test_inductor(name: str) -> None:
    compare(name, "inductor")


@pytest.mark.exhaustive
def test_inductor_with_sdpa() -> None:
    """In float32: Inductor of torch 2.11 passes a float32 sum to the float64 backward of CPU attention."""
    compare("cast-3:assign=single", "inductor", torch.float32)
