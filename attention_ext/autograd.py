"""Calls of operators that have a derivative."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

BackwardArguments = Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Any, ...]]


class DifferentiableOperator:
    """An operator of the compiled library with its derivative, told to PyTorch and kept for eager calls.

    Queries, keys and values come first among its inputs, and have a gradient; of its outputs the first has.
    The operator `<name>_backward` takes that output's gradient and returns theirs.

    `torch.library.register_autograd` serves graphs and tracing. In eager mode the operator would reach the
    derivative by listing its schema anew for each argument of each call, a few per cent of a short
    sequence's time, so an eager call takes a `torch.autograd.Function` of the same two functions.

    Args:
        name: of the operator, without its library's.
        backward_arguments: of inputs and outputs, what `<name>_backward` takes after the gradient.
    """

    def __init__(self, name: str, backward_arguments: BackwardArguments) -> None:
        self.name, self._backward_arguments = name, backward_arguments
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(self._backward)}
        function: Any = type(name, (torch.autograd.Function,), members)
        self._apply: Callable[..., tuple[Tensor, ...]] = function.apply

    def __call__(self, *inputs: Any, goes_back: bool) -> tuple[Tensor, ...]:
        """Return the operator's outputs, through which gradients flow; its library must be loaded.

        Args:
            inputs: the operator's.
            goes_back: `will_go_back` of them.

        Raises:
            NotImplementedError: forward-mode differentiation; PyTorch would return zeros.
        """
        if torch.compiler.is_compiling():
            return self._run(*inputs)
        if any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in inputs):
            raise NotImplementedError(f"attention_ext: {self.name} has no forward-mode derivative")
        return self._apply(*inputs) if goes_back else self._run(*inputs)

    def register(self) -> None:
        """Tell PyTorch the derivative; once, when the library is loaded."""
        torch.library.register_autograd(
            f"attention_ext::{self.name}", self._backward, setup_context=self._setup_context
        )

    def _run(self, *inputs: Any) -> tuple[Tensor, ...]:
        return getattr(torch.ops.attention_ext, self.name)(*inputs)

    def _forward(self, ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = self._run(*inputs)
        self._setup_context(ctx, inputs, output)
        return output

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        arguments = self._backward_arguments(inputs, output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros as large as what is kept
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in arguments))
        ctx.numbers = tuple(None if isinstance(x, Tensor) else x for x in arguments)

    def _backward(self, ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        without = (None,) * len(ctx.needs_input_grad)
        if grad is None:
            return without
        saved = ctx.saved_tensors  # may be asked for once only, under checkpointing
        arguments = (x if number is None else number for x, number in zip(saved, ctx.numbers, strict=True))
        grads = getattr(torch.ops.attention_ext, f"{self.name}_backward")(grad, *arguments)
        return (*grads, *without[len(grads) :])


def will_go_back(*inputs: Tensor) -> bool:
    """Tell whether a backward pass may follow, for which weights are worth keeping."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
