"""Interface of self-attention layers, and base class of layers whose mechanism has its own parameters."""

from typing import NamedTuple

from torch import Tensor, nn

from asr.attention.spec import Description
from asr.errors import UserError


class FrameRate(NamedTuple):
    """Rate of positions that each stand for several encoder frames; see `asr.model.frames`.

    Attributes:
        factor: number of encoder frames from one position to the next; the unit of distances is a frame.
        log_sizes_BN: logarithm of the number of valid frames that a position stands for, relative to other
            positions. Added to the logits of the position as a key, it makes the key count like all of its
            frames. None: all positions are equal.
        places_BN: position in encoder frames, where distances differ; None: `factor` apart.
    """

    factor: int
    log_sizes_BN: Tensor | None
    places_BN: Tensor | None = None


class SelfAttentionLayer(nn.Module):
    """A self-attention layer, [B, N, M] to [B, N, M].

    Attributes:
        name: canonical name of the mechanism.
        takes_rate: whether `forward` has an argument `rate`. Other layers have neither logits of keys nor
            distances: a position counts once, however many frames it stands for.
        evenly_spaced: whether the distance between neighbours has to be the same for all.
    """

    name: str
    takes_rate = False
    evenly_spaced = False

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: [B, N, M].
            lengths: [B] valid positions (right padding); None means all.

        Returns:
            [B, N, M], zero at padded positions. The input there, even NaN, affects neither the output nor the
            gradients.
        """
        raise NotImplementedError

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Exchange the mechanism and keep the weights.

        Args:
            name: a mechanism of the softmax family.
            backend: `auto`, `reference` or `native`; None keeps the requested backend.

        Raises:
            UserError: the layer or the mechanism has its own parameters, or the mechanism doesn't fit.
        """
        raise NotImplementedError

    def backend_on(self, device_type: str) -> str:
        """Return the backend that runs on a type of device, e.g. `cuda`: `reference` or `native`."""
        raise NotImplementedError

    def weights(self, name: str, x: Tensor, rate: FrameRate | None = None, **bias: Tensor) -> Tensor:
        """Return the dense attention weights of a mechanism in this layer, without dropout.

        All positions count as equal in size.

        Args:
            name: a mechanism of the softmax family; the layer's mechanism doesn't change.
            x, rate, bias: inputs of `forward`, without padding.

        Returns:
            [B, H, N, N]; rows are queries.

        Raises:
            UserError: the layer or the mechanism has parameters of its own.
        """
        raise UserError(f"attention {self.name!r} has parameters of its own and no attention weights")


class OwnParameterLayer(SelfAttentionLayer, Description):
    """A layer whose mechanism has its own parameters and can't be exchanged.

    Args:
        name: canonical name.
        backend: `auto` or `reference`.
    """

    family = "own parameters"

    def __init__(self, name: str, backend: str) -> None:
        super().__init__()
        self.name = name
        self._check_backend(backend)

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Accept only the name of the layer itself."""
        self._check_backend(backend or "auto")
        if name != self.name:
            raise UserError(
                f"attention {self.name!r} has parameters of its own and can't be exchanged for {name!r}: "
                "train a model with it, or exchange within the softmax family"
            )

    def backend_on(self, device_type: str) -> str:
        """Return `reference`: layers with their own parameters have no compiled kernels."""
        return "reference"

    def _check_backend(self, backend: str) -> None:
        if backend not in ("auto", "reference"):
            raise UserError(f"backend {backend!r} can't run {self.name}: expected auto | reference")
