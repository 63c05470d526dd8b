"""The classifier: the encoder of the acoustic model, mean pooling and two linear layers."""

import math

import torch
from torch import Tensor, nn

from asr.attention.products import Linear
from asr.lengths import zero_padding
from asr.model.attention_model import AttentionModel
from asr.model.encoder import Encoder
from asr.model.options import ModelConfig

PIXEL_SCALE = 5.0  # makes the variance of pathfinder's pixels about 1; otherwise positions drown them


class SymbolFeatures(nn.Module):
    """One-hot vectors of symbols or bytes."""

    area = 1  # values per position of the encoder

    def __init__(self, values: int) -> None:
        super().__init__()
        self.size = values

    def forward(self, values: Tensor) -> Tensor:
        """Map [B, N] integers to [B, N, F], F the number of values."""
        return nn.functional.one_hot(values.long(), self.size).float()


class PixelFeatures(nn.Module):
    """Grey values (0 … 5), row and column of each patch of an image that is read row by row.

    Row and column are encoded by sine and cosine with 1, 2, 4, … periods in the image; the shortest period is
    four patches.

    Args:
        side: side of the image in pixels.
        patch: side of a patch in pixels, a divisor of the image's; 1: the patches are the pixels.
    """

    places: Tensor

    def __init__(self, side: int, patch: int) -> None:
        super().__init__()
        self.patch, self.area = patch, patch * patch
        side //= patch
        periods = 2.0 ** torch.arange(max(1, int(math.log2(side)) - 1))
        angle = 2 * math.pi / side * torch.arange(side).unsqueeze(1) * periods
        # Row and column as features make positions in the sequence superfluous (model.positions=none).
        code = torch.cat((angle.sin(), angle.cos()), dim=1)
        rows, columns = code.repeat_interleave(side, dim=0), code.repeat(side, 1)
        self.register_buffer("places", torch.cat((rows, columns), dim=1), persistent=False)
        self.size = self.area + self.places.shape[1]

    def forward(self, values: Tensor) -> Tensor:
        """Map [B, N] grey values, 0 … 255, to [B, N / patch², F]."""
        image = (values / 255 * PIXEL_SCALE).unflatten(1, (1, math.isqrt(values.shape[1]), -1))
        patches = nn.functional.unfold(image, self.patch, stride=self.patch).transpose(1, 2)
        return torch.cat((patches, self.places.expand(len(values), -1, -1)), dim=-1)


class Classifier(AttentionModel):
    """Classifies sequences by the mean of the encoder's states over the valid positions.

    Args:
        config: architecture of the encoder.
        values: number of values of a position; 0: grey values of a square image.
        longest: maximum number of values in a sequence; for images, the number in every sequence.
        patch: side of the patches of an image in pixels.
        classes: number of labels.
        attention: attention mechanism.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(
        self,
        config: ModelConfig,
        values: int,
        longest: int,
        patch: int,
        classes: int,
        attention: str,
        backend: str,
    ) -> None:
        super().__init__()
        self.config, self.backend = config, backend
        features = SymbolFeatures(values) if values else PixelFeatures(math.isqrt(longest), patch)
        self.features = features
        self.encoder = Encoder(config, features.size, attention, backend)
        self.classifier = nn.Sequential(
            Linear(config.size, config.size),
            nn.ReLU(),
            Linear(config.size, classes),
        )

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Map sequences [B, N] with [B] lengths to logits [B, classes]."""
        states, lengths = self.encoder(self.features(values), lengths // self.features.area)
        total = zero_padding(states, lengths).sum(
            dim=1, dtype=torch.promote_types(states.dtype, torch.float32)
        )
        mean = total / lengths.unsqueeze(-1).clamp(min=1)
        return self.classifier(mean)
