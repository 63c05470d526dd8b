"""Calls of operators that have a derivative."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


class DifferentiableOperator:
    """An operator of the compiled library with its derivative, told to PyTorch and kept for eager calls.

    `torch.library.register_autograd` serves graphs and tracing. In eager mode the operator would reach the
    derivative by listing its schema anew for each argument of each call, a few per cent of a short
    sequence's time, so an eager call takes a `torch.autograd.Function` of the same two functions.

    Args:
        name: of the operator, without its library's.
        setup_context: saves what `backward` needs; takes the context, inputs and outputs.
        backward: takes the context and a gradient for each output; returns one for each input.
    """

    def __init__(
        self,
        name: str,
        setup_context: Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None],
        backward: Callable[..., tuple[Tensor | None, ...]],
    ) -> None:
        self.name, self._setup_context, self._backward = name, setup_context, backward
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(backward)}
        function: Any = type(name, (torch.autograd.Function,), members)
        self._apply: Callable[..., tuple[Tensor, ...]] = function.apply

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return the operator's outputs, through which gradients flow; its library must be loaded.

        Raises:
            NotImplementedError: forward-mode differentiation; PyTorch would return zeros.
        """
        if torch.compiler.is_compiling():
            return self._run(*inputs)
        if any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in inputs):
            raise NotImplementedError(f"attention_ext: {self.name} has no forward-mode derivative")
        return self._apply(*inputs) if will_go_back(*inputs) else self._run(*inputs)

    def register(self) -> None:
        """Tell PyTorch the derivative; once, when the library is loaded."""
        torch.library.register_autograd(
            f"attention_ext::{self.name}", self._backward, setup_context=self._setup_context
        )

    def _run(self, *inputs: Any) -> tuple[Tensor, ...]:
        return getattr(torch.ops.attention_ext, self.name)(*inputs)

    def _forward(self, ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        outputs = self._run(*inputs)
        self._setup_context(ctx, inputs, outputs)
        return outputs


def will_go_back(*inputs: Any) -> bool:
    """Tell whether a backward pass may follow, for which weights are worth keeping."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
