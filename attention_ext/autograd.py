"""The compiled operators as functions: output shapes for tracing, derivatives for autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from attention_ext.library import require

Outputs = Callable[..., Tensor | tuple[Tensor, ...]]
BackwardArguments = Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Any, ...]]


class Operator:
    """A compiled operator; a call loads the library and registers the operator with PyTorch if necessary.

    Args:
        name: name of the operator, without `attention_ext::`.
        outputs: maps inputs to empty outputs, for tracing.
    """

    def __init__(self, name: str, outputs: Outputs) -> None:
        self.name, self._outputs, self._registered = name, outputs, False

    def __call__(self, *inputs: Any) -> Any:
        """Return the operator's output.

        Raises:
            RuntimeError: the library can't be loaded, or the operator refuses its inputs.
        """
        self._load(inputs[0].device.type)
        return self._run(*inputs)

    def register(self) -> None:
        """Register the operator with PyTorch, unless it is; the library must be loaded."""
        if not self._registered:
            self._register()
            self._registered = True

    def _register(self) -> None:
        torch.library.register_fake(f"attention_ext::{self.name}", self._outputs)

    def _load(self, device: str) -> None:
        if not torch.compiler.is_compiling():
            require(device)
            self.register()

    def _run(self, *inputs: Any) -> Any:
        return getattr(torch.ops.attention_ext, self.name)(*inputs)


class DifferentiableOperator(Operator):
    """A compiled operator and its derivative, for graphs and for eager calls.

    The operator's first inputs are queries, keys and values; only these receive gradients. Only its first
    output is differentiable. The operator `<name>_backward` maps that output's gradient to the inputs'.

    Graphs and tracing use `torch.library.register_autograd`. In eager mode, PyTorch's wrapper would walk the
    schema for every argument of every call, a few per cent of the time on short sequences; eager calls use a
    `torch.autograd.Function` of the same two functions instead.

    Args:
        name, outputs: see `Operator`.
        backward_arguments: maps inputs and outputs to the arguments of `<name>_backward` after the gradient.
    """

    def __init__(self, name: str, outputs: Outputs, backward_arguments: BackwardArguments) -> None:
        super().__init__(name, outputs)
        self._backward_arguments = backward_arguments
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(self._eager_backward)}
        function: Any = type(name, (torch.autograd.Function,), members)
        self._apply: Callable[..., tuple[Tensor, ...]] = function.apply

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the operator's first output.

        Raises:
            RuntimeError: see `Operator`.
            NotImplementedError: forward-mode differentiation, for which PyTorch would return zeros; a
                derivative with `torch.func`; and in the backward pass, one with `create_graph=True`.
        """
        self._load(inputs[0].device.type)
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

    def _register(self) -> None:
        super()._register()
        torch.library.register_fake(f"attention_ext::{self.name}_backward", _empty_gradients)
        torch.library.register_autograd(
            f"attention_ext::{self.name}", self._backward, setup_context=self._setup_context
        )

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
