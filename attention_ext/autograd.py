"""Derivatives of the compiled operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

BackwardArguments = Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Any, ...]]


class DifferentiableOperator:
    """A compiled operator and its derivative, for graphs and for eager calls.

    The operator's first inputs are queries, keys and values; only these receive gradients. Only its first
    output is differentiable. The operator `<name>_backward` maps that output's gradient to the inputs'.

    Graphs and tracing use `torch.library.register_autograd`. In eager mode, PyTorch's wrapper would walk the
    schema for every argument of every call, a few per cent of the time on short sequences; eager calls use a
    `torch.autograd.Function` of the same two functions instead.

    Args:
        name: name of the operator, without `attention_ext::`.
        backward_arguments: maps inputs and outputs to the arguments of `<name>_backward` after the gradient.
    """

    def __init__(self, name: str, backward_arguments: BackwardArguments) -> None:
        self.name, self._backward_arguments = name, backward_arguments
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(self._eager_backward)}
        function: Any = type(name, (torch.autograd.Function,), members)
        self._apply: Callable[..., tuple[Tensor, ...]] = function.apply

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the operator's first output; the library must be loaded.

        Raises:
            NotImplementedError: forward-mode differentiation, for which PyTorch would return zeros; a
                derivative with `torch.func`; and in the backward pass, one with `create_graph=True`.
        """
        if torch.compiler.is_compiling():
            return self._run(*inputs)[0]
        if any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in inputs):
            raise NotImplementedError(f"attention_ext: {self.name} has no forward-mode derivative")
        if not needs_gradient(*inputs[:3]):
            return self._run(*inputs)[0]
        # PyTorch would check this, too, but its message asks for changes to `torch.autograd.Function`.
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(
                f"attention_ext: {self.name} has no derivative with torch.func: use backend=reference"
            )
        return self._apply(*inputs)[0]

    def register(self) -> None:
        """Register the derivative with PyTorch; PyTorch refuses a second registration."""
        torch.library.register_fake(f"attention_ext::{self.name}_backward", _empty_gradients)
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
        ctx.set_materialize_grads(False)  # otherwise autograd allocates zeros as large as the kept weights
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in arguments))
        ctx.numbers = tuple(None if isinstance(x, Tensor) else x for x in arguments)

    def _eager_backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with create_graph=True; PyTorch would return zeros
            raise NotImplementedError(f"attention_ext: {self.name} has no second derivative")
        return self._backward(ctx, *grads)

    def _backward(self, ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        without = (None,) * len(ctx.needs_input_grad)
        if grad is None:
            return without
        saved = ctx.saved_tensors  # checkpointing allows only one access
        arguments = (x if number is None else number for x, number in zip(saved, ctx.numbers, strict=True))
        grads = getattr(torch.ops.attention_ext, f"{self.name}_backward")(grad, *arguments)
        return (*grads, *without[len(grads) :])


def _empty_gradients(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:3])


def needs_gradient(*inputs: Tensor) -> bool:
    """Return whether a backward pass may follow, so that weights should be kept."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
