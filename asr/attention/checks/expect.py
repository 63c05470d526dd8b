"""Expectations of the checks: AssertionError with a line that describes the fault."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError


def expect(holds: bool | Tensor, what: str) -> None:
    """Raise AssertionError unless something holds."""
    if not holds:
        raise AssertionError(what)


def expect_close(found: Tensor, expected: Tensor, what: str, atol: float, rtol: float = 0.0) -> None:
    """Raise AssertionError unless two tensors agree in shape and, within a tolerance, in values."""
    expect(found.shape == expected.shape, f"{what}: shape {list(found.shape)}, not {list(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    expect(found.isfinite().all(), f"{what}: NaN or infinity")
    if found.numel():
        difference = (found - expected).abs()
        small = difference - rtol * expected.abs() <= atol
        expect(small.all(), f"{what}: differs by up to {float(difference.max()):.2g}")


def expect_gradients(function: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Raise AssertionError unless the gradients of a function of float64 equal finite differences."""
    try:
        torch.autograd.gradcheck(function, leaves)
    except GradcheckError as error:
        raise AssertionError(str(error).strip().partition("\n")[0]) from error


def expect_refusal(call: Callable[..., object], given: Sequence[Tensor], expected: str) -> None:
    """Raise AssertionError unless a call raises ValueError with these words."""
    try:
        call(*given)
    except ValueError as error:
        expect(f"expected {expected}" in str(error), f"expected {expected!r}, found {error}")
        return
    raise AssertionError(f"expected an error, {expected!r}; found none")
