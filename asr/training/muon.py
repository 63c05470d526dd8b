"""Muon: orthogonalised momentum for the matrices of the encoder's layers, AdamW for all other parameters."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HIDDEN = re.compile(r"\.?(blocks?|layers)\.")  # parts of the names of parameters in encoder layers
MOMENTUM = 0.95  # as in Jordan et al.
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c: singular values within about ±30 % of 1 in five steps


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is a matrix of an encoder layer, not of an embedding, input or output."""
    return parameter.dim() == 2 and HIDDEN.search(name) is not None


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return approximately UVᵀ for each matrix USVᵀ of [B, n, m], by Newton–Schulz iterations.

    X ← aX + (bA + cA²)X, where A = XXᵀ (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon). All
    singular values move to 0.7 … 1.2, except those below a thousandth of the largest.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalise(matrices.mT).mT
    a, b, c = COEFFICIENTS
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for the parameter groups with `hidden=True`, AdamW for the other groups.

    W ← (1 − ηλ)W − 0.2η √max(n, m) · orthogonalise(update), where W is [n, m] and the update is Nesterov's
    momentum. The factor makes updates as large as AdamW's, so both share learning rate η and weight decay λ
    (*Muon is Scalable for LLM Training*, Liu et al. 2025, section 2.2).

    `torch.optim.Muon` needs a second optimiser for the other parameters, and takes one matrix at a time, in
    bfloat16. This class takes all matrices of a shape together, in their precision: much faster on a CPU.

    The arguments are AdamW's; hidden groups contain matrices only.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients, and discard the gradients of hidden groups."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group.get("hidden"):
                self._step(group)
        super().step()
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                alike[tuple(sorted(parameter.shape))].append(parameter)
        for parameters in alike.values():
            updates = orthogonalise(torch.stack([self._update(x) for x in parameters]))
            rate = 0.2 * group["lr"] * updates.shape[-1] ** 0.5
            for parameter, update in zip(parameters, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(update if parameter.shape == update.shape else update.mT, alpha=rate)
                parameter.grad = None  # so that AdamW leaves the parameter alone

    def _update(self, parameter: Tensor) -> Tensor:
        """Return Nesterov's momentum of a matrix, transposed if the matrix is tall."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW expects it when it loads a state
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        update = gradient.lerp(state["momentum"], MOMENTUM)
        return update if update.shape[0] <= update.shape[1] else update.mT
