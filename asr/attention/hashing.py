"""Random directions for hashing vectors: stored with the model, or drawn in each training step."""

from typing import Any

import torch
from torch import Tensor, nn

from asr.config import option
from asr.config.schema import Only
from asr.errors import UserError
from asr.seeds import derived_seed

LARGEST_HEAD = 256  # the compiled kernels' limit
SEED = 2020  # fixed, because a model trained with another mechanism draws directions when it is switched


def hash_planes(only: Only | tuple[()] = ()) -> Any:
    """Return the field that selects the kind of directions; see `RandomDirections`."""
    return option(
        "fixed",
        help="hash planes: shared by all layers, one set per layer, or drawn anew in each training step",
        affects="result",
        only=only,
        choices=("fixed", "layer", "fresh"),
    )


class RandomDirections(nn.Module):
    """Normal random directions for heads of up to `LARGEST_HEAD` dimensions, the same for all heads.

    Stored directions are a buffer, saved with the model, so they are the same on every call and machine.

    Args:
        shape: shape of the directions, `LARGEST_HEAD` along the second axis.
        planes: `fixed`: the same in all layers; `layer`: different in each layer, see `number_layers`;
            `fresh`: drawn in each forward pass of training from PyTorch's generator, which is seeded for
            every step; in evaluation like `fixed`.
        bias: whether to append a column of normal biases along the last axis.
    """

    stored: Tensor

    def __init__(self, *shape: int, planes: str, bias: bool = False) -> None:
        super().__init__()
        self.shape, self.planes, self.bias = shape, planes, bias
        self.register_buffer("stored", self._draw(SEED))

    def number(self, layer: int) -> None:
        """Select the directions of layer number `layer`, from 0."""
        if self.planes == "layer":
            self.stored.copy_(self._draw(derived_seed(SEED, layer)))

    def forward(self, dim: int) -> Tensor:
        """Return directions of size D = `dim` along the second axis, and D + 1 with a bias.

        Raises:
            UserError: D is too large.
        """
        if dim > LARGEST_HEAD:
            raise UserError(
                f"head_dim={dim}: mechanisms with hashing support heads of at most {LARGEST_HEAD}"
            )
        fresh = self.planes == "fresh" and self.training
        drawn = torch.randn_like(self.stored) if fresh else self.stored
        directions = drawn.narrow(1, 0, dim)
        return torch.cat((directions, drawn[..., -1:]), dim=-1) if self.bias else directions

    def _draw(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)  # PyTorch's global generator isn't affected
        place = generator.device  # whatever the default device is
        directions = torch.randn(*self.shape, generator=generator, device=place)
        if not self.bias:
            return directions
        biases = torch.randn(*self.shape[:-1], 1, generator=generator, device=place)
        return torch.cat((directions, biases), dim=-1)


def number_layers(model: nn.Module) -> None:
    """Give each layer of a model different directions, where `planes=layer` requests it."""
    for layer, directions in enumerate(x for x in model.modules() if isinstance(x, RandomDirections)):
        directions.number(layer)
