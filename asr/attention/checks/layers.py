"""Checks of layers: projections with a mechanism, or a mechanism with its own parameters."""

import copy

import torch
from torch.utils.checkpoint import checkpoint

from asr.attention.checks.expect import expect, expect_close, expect_gradients, expect_refusal
from asr.attention.checks.inputs import LENGTHS, build, build_layer, layer_input
from asr.attention.multihead import SelfAttention
from asr.attention.table import parse_name


def layer_padding_and_batch(name: str) -> None:
    """In a layer, padding of NaN changes neither output nor gradients; alone, an utterance has the same."""
    x = layer_input()
    results = []
    for poisoned in (x, x.nan_to_num()):
        layer = build_layer(name)
        y = layer(poisoned.requires_grad_(), LENGTHS)
        expect(y.shape == x.shape, f"the output has shape {list(y.shape)}, not {list(x.shape)}")
        y.square().sum().backward()
        results.append([("the output", y.detach()), *((n, p.grad) for n, p in layer.named_parameters())])
    for (part, nan), (_, clean) in zip(*results, strict=True):
        expect(nan is not None and clean is not None, f"{part} has no gradient")
        expect(nan.isfinite().all(), f"{part}: NaN or infinity with padding of NaN")
        expect(torch.equal(nan, clean), f"{part}: other values with padding of NaN")
    layer = build_layer(name).double()
    y = layer(x.double(), LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        alone = layer(x[b : b + 1, :n].double(), LENGTHS[b : b + 1])
        expect_close(y[b : b + 1, :n], alone, f"the output of length {n} in a batch", atol=1e-12)


def determinism(name: str) -> None:
    """Two calls give the same bits, and so do two layers with the same weights."""
    layer, other = build_layer(name), build_layer(name)
    y = layer(layer_input(), LENGTHS)
    expect(torch.equal(y, layer(layer_input(), LENGTHS)), "a second call has another output")
    expect(torch.equal(y, other(layer_input(), LENGTHS)), "a layer with the same weights has another output")


def state(name: str) -> None:
    """A layer's state contains all that its output depends on, and no parameters of the mechanism."""
    layer, other = build_layer(name), build_layer(name)
    with torch.no_grad():
        for value in layer.state_dict().values():
            value.add_(0.01 * torch.randn(value.shape, generator=torch.Generator().manual_seed(4)))
    y = layer(layer_input(), LENGTHS)
    expect(not torch.equal(y, other(layer_input(), LENGTHS)), "other weights give the same output")
    other.load_state_dict(layer.state_dict())
    expect(torch.equal(y, other(layer_input(), LENGTHS)), "the same state gives another output")
    if isinstance(layer, SelfAttention):
        plain = build_layer("shared-full" if layer.mechanism.needs_shared_keys else "full")
        differing = dict(layer.named_parameters()).keys() ^ dict(plain.named_parameters()).keys()
        expect(not differing, f"parameters of its own: {', '.join(sorted(differing))}")


def autocast(name: str) -> None:
    """Under autocast to bfloat16, the output is in bfloat16 and close, and gradients are finite."""
    layer, x = build_layer(name), layer_input()
    exact = layer(x, LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, LENGTHS)
    expect(y.dtype == torch.bfloat16, f"the output is {y.dtype}")
    y.float().square().sum().backward()
    for part, parameter in layer.named_parameters():
        expect(
            parameter.grad is not None and bool(parameter.grad.isfinite().all()), f"the gradient of {part}"
        )
    # The median, because not all values are close: a rounded query may join another cluster.
    worst = float((y.detach().float() - exact.detach()).abs().median())
    expect(worst < 0.02, f"half of the output differs by {worst:.2g} or more")


def empty_sizes(name: str) -> None:
    """Layers take sequences of length 0 and batches without a valid position."""
    layer = build_layer(name)
    shape = layer(torch.zeros(2, 0, 12), torch.tensor([0, 0])).shape
    expect(shape == (2, 0, 12), f"the output has shape {list(shape)}, not [2, 0, 12]")
    layer(torch.zeros(2, 3, 12), torch.tensor([0, 0])).sum().backward()


def copies_and_checkpointing(name: str) -> None:
    """A copy of a layer has the same gradients, with dropout and activation checkpointing."""
    layer, x = build_layer(name, dropout=0.1).train(), layer_input()
    other = copy.deepcopy(layer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer(x, LENGTHS).square().sum().backward()
        torch.manual_seed(1)
        checkpoint(other, x, LENGTHS, use_reentrant=False).square().sum().backward()
    for (part, ours), theirs in zip(layer.named_parameters(), other.parameters(), strict=True):
        expect(ours.grad is not None and theirs.grad is not None, f"{part} has no gradient")
        expect(torch.equal(ours.grad, theirs.grad), f"the gradient of {part}: another one in the copy")  # type: ignore[arg-type]


def exchange(name: str) -> None:
    """A layer that is switched to the mechanism equals a new layer with the same weights."""
    shared = build(name).needs_shared_keys
    trained = build_layer("shared-full" if shared else "full", dropout=0.25)
    other = build_layer(name)
    other.load_state_dict(trained.state_dict(), strict=False)
    trained.set_mechanism(name)
    assert isinstance(trained, SelfAttention)
    expect(trained.name == parse_name(name).name, f"the layer's name is {trained.name!r}")
    expect(not trained.mechanism.training, "the mechanism is in training mode")
    expect(trained.mechanism.dropout == 0.25, f"dropout is {trained.mechanism.dropout}, not 0.25")
    found, expected = (layer(layer_input(), LENGTHS) for layer in (trained, other))
    expect_close(found, expected, "the output", atol=1e-5, rtol=1.3e-6)
    expect(trained.mechanism.backend.requested == "reference", "the backend has changed")
    trained.set_mechanism("full", backend="auto")


def layer_wrong_lengths(name: str) -> None:
    """Layers refuse negative lengths, lengths beyond the sequence, and another number of lengths."""
    layer, x = build_layer(name), torch.ones(2, 5, 12)
    for wrong in (-1, 6):
        lengths = torch.tensor([5, wrong])
        expect_refusal(layer, (x, lengths), f"lengths 0 … 5, found [5, {wrong}]")
    for count in (1, 3):
        lengths = torch.full((count,), 5)
        expect_refusal(layer, (x, lengths), "lengths of shape [2]")


def frozen_empty_batches(name: str) -> None:
    """Frozen layers pass gradients to the input of empty batches."""
    for B, N in ((0, 3), (2, 0)):
        layer, x = build_layer(name).requires_grad_(False), torch.zeros(B, N, 12, requires_grad=True)
        layer(x, torch.zeros(B, dtype=torch.int64)).sum().backward()
        expect(x.grad is not None and x.grad.shape == x.shape, f"B, N = {B}, {N}: no gradient of the input")


def layer_huge_input(name: str) -> None:
    """Output and gradients of a layer are finite with an input of 1e4."""
    layer = build_layer(name)
    y = layer(layer_input() * 1e4, LENGTHS)
    y.square().mean().backward()
    expect(y.isfinite().all(), "the output: NaN or infinity")
    for part, parameter in layer.named_parameters():
        expect(
            parameter.grad is not None and bool(parameter.grad.isfinite().all()), f"the gradient of {part}"
        )


def layer_half_precision(name: str) -> None:
    """Layers run in bfloat16 and float16."""
    for dtype in (torch.bfloat16, torch.float16):
        y = build_layer(name).to(dtype)(layer_input(dtype=dtype), LENGTHS)
        expect(y.dtype == dtype, f"the output of {dtype} is {y.dtype}")
        expect(y.isfinite().all(), f"the output of {dtype}: NaN or infinity")


def layer_gradients(name: str) -> None:
    """Gradients of a layer's input and parameters equal finite differences."""
    layer = build_layer(name, 4).double()
    lengths = torch.tensor([7, 4])
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expect_gradients(lambda x, *_: layer(x, lengths), [x.requires_grad_(), *layer.parameters()])
