"""Log-sums over paths; their gradient is the occupancy of the outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Maps outputs [B, T, O] and whether occupancies are wanted to log-sums [B] and occupancies [B, T, O] or None.
PathSum = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs_BTO: Tensor, path_sum: PathSum) -> Tensor:
        log_sum_B, occupancy_BTO = path_sum(outputs_BTO, ctx.needs_input_grad[0])
        if occupancy_BTO is not None:
            ctx.save_for_backward(occupancy_BTO.to(outputs_BTO.dtype))
        return log_sum_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (occupancy_BTO,) = ctx.saved_tensors
        return occupancy_BTO * gradients[0].to(occupancy_BTO.dtype)[:, None, None], None


def log_sum(outputs_BTO: Tensor, path_sum: PathSum) -> Tensor:
    """Return the log-sum over all paths of each utterance, [B] float64, differentiable once.

    The derivative of a log-sum of products with respect to the log of a factor is the factor's occupancy, the
    expected number of its uses. It is computed together with the sum, so that autograd needn't keep the steps
    of the recursion.
    """
    result: Tensor = _LogSum.apply(outputs_BTO, path_sum)  # type: ignore[no-untyped-call]
    return result
