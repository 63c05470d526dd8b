"""Terms of the logits that depend on distances, for the reference implementations."""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.tensors import zero_padding


class LogitBias(Protocol):
    """Logits added to those of queries and keys, given by their positions."""

    def padded(self, lengths_B: Tensor, dtype: torch.dtype) -> "LogitBias":
        """Return the bias in another dtype, zero for padded queries."""
        ...

    def between(self, queries_I: Tensor, keys_J: Tensor) -> Tensor:
        """Return the logits of queries and keys, given by their positions, [B, H, I, J]."""
        ...

    def of_keys(self, keys_BHNK: Tensor) -> Tensor:
        """Return the logits of every query and its K keys, given by their positions, [B, H, N, K]."""
        ...

    def cluster_means(self, members_BHNC: Tensor) -> Tensor:
        """Return the mean of the logits over the queries of each cluster, [B, H, C, N]; 0 for empty clusters.

        Args:
            members_BHNC: see `attention_ext.clusters.reference.membership`.
        """
        ...


class GatedBias(NamedTuple):
    """Logits g_i · r(j − i) added to those of query i and key j, as in *WavLM* (Chen et al. 2022, eq. 4–7).

    Attributes:
        gate_BHN: g, for each query.
        bias_HR: r, for the R = 2N − 1 distances −(N − 1) … N − 1.
    """

    gate_BHN: Tensor
    bias_HR: Tensor

    def padded(self, lengths_B: Tensor, dtype: torch.dtype) -> "GatedBias":
        """See `LogitBias`."""
        gate_BHN = zero_padding(self.gate_BHN.unsqueeze(-1), lengths_B).squeeze(-1)
        return GatedBias(gate_BHN.to(dtype), self.bias_HR.to(dtype))

    def between(self, queries_I: Tensor, keys_J: Tensor) -> Tensor:
        """See `LogitBias`."""
        distance_IJ = keys_J - queries_I.unsqueeze(-1) + self.gate_BHN.shape[-1] - 1
        return self.gate_BHN[..., queries_I, None] * self.bias_HR[:, distance_IJ]

    def of_keys(self, keys_BHNK: Tensor) -> Tensor:
        """See `LogitBias`."""
        B, H, N, _ = keys_BHNK.shape
        index_BHNK = keys_BHNK + torch.arange(N - 1, -1, -1, device=keys_BHNK.device).unsqueeze(-1)
        bias_BHX = self.bias_HR.expand(B, H, -1).gather(2, index_BHNK.flatten(2))
        return self.gate_BHN.unsqueeze(-1) * bias_BHX.view_as(keys_BHNK)

    def cluster_means(self, members_BHNC: Tensor) -> Tensor:
        """See `LogitBias`.

        The sum over queries is a convolution of their gates with r. Fourier transforms over 2N positions
        compute it in time N·log N.
        """
        N = members_BHNC.shape[2]
        gate_BHCN = (members_BHNC * self.gate_BHN.unsqueeze(-1)).mT
        gate_BHCN = gate_BHCN / members_BHNC.sum(2).clamp(min=1.0).unsqueeze(-1)
        # On the circle, N isn't a distance, and N + 1 … 2N − 1 are the distances −(N − 1) … −1.
        circle_HL = torch.cat((self.bias_HR[:, N - 1 :], F.pad(self.bias_HR[:, : N - 1], (1, 0))), dim=-1)
        spectrum_BHCF = torch.fft.rfft(gate_BHCN, 2 * N) * torch.fft.rfft(circle_HL.unsqueeze(1))
        return torch.fft.irfft(spectrum_BHCF, 2 * N)[..., :N]


class ClippedBias(NamedTuple):
    """Logits t_i[clip(j − i, −L, R)] added to those of query i and key j (Shaw et al. 2018, section 3.2).

    Attributes:
        logits_BHNR: t, for the L + 1 + R distances from −L to R.
        left: L.
    """

    logits_BHNR: Tensor
    left: int

    def padded(self, lengths_B: Tensor, dtype: torch.dtype) -> "ClippedBias":
        """See `LogitBias`."""
        return ClippedBias(zero_padding(self.logits_BHNR, lengths_B).to(dtype), self.left)

    def between(self, queries_I: Tensor, keys_J: Tensor) -> Tensor:
        """See `LogitBias`."""
        index_IJ = self._index(keys_J - queries_I.unsqueeze(-1))
        logits_BHIR = self.logits_BHNR[:, :, queries_I]
        return logits_BHIR.gather(-1, index_IJ.expand(*logits_BHIR.shape[:2], -1, -1))

    def of_keys(self, keys_BHNK: Tensor) -> Tensor:
        """See `LogitBias`."""
        position_N1 = torch.arange(keys_BHNK.shape[2], device=keys_BHNK.device).unsqueeze(-1)
        return self.logits_BHNR.gather(-1, self._index(keys_BHNK - position_N1))

    def cluster_means(self, members_BHNC: Tensor) -> Tensor:
        """See `LogitBias`.

        Sums over queries far from a key are cumulative sums. Time is linear in N.
        """
        (B, H, N, C), right = members_BHNC.shape, self.logits_BHNR.shape[-1] - 1 - self.left
        t_BHNR, mean_BHNC = self.logits_BHNR, members_BHNC / members_BHNC.sum(2, keepdim=True).clamp(min=1.0)
        weight_BHN, group_BHN = mean_BHNC.max(-1)
        # Queries at key + L and after it, and at key − R and before it.
        after_BHXC = (mean_BHNC * t_BHNR[..., :1]).flip(2).cumsum(2).flip(2)
        before_BHXC = (mean_BHNC * t_BHNR[..., -1:]).cumsum(2)
        far_BHNC = F.pad(after_BHXC[:, :, self.left :], (0, 0, 0, min(self.left, N)))
        far_BHNC = far_BHNC + F.pad(before_BHXC, (0, 0, min(right, N), 0))[:, :, :N]
        # Query i adds to the keys i − L + 1 … i + R − 1; keys outside 0 … N − 1 are added to an extra column.
        offset_X = torch.arange(1 - self.left, right, device=t_BHNR.device)
        key_NX = torch.arange(N, device=t_BHNR.device).unsqueeze(-1) + offset_X
        key_NX = torch.where((key_NX >= 0) & (key_NX < N), key_NX, N)
        place_BHNX = group_BHN.unsqueeze(-1) * (N + 1) + key_NX
        near_BHNX = weight_BHN.unsqueeze(-1) * t_BHNR[..., 1:-1]
        near_BHY = near_BHNX.new_zeros(B, H, C * (N + 1)).scatter_add(
            -1, place_BHNX.flatten(2), near_BHNX.flatten(2)
        )
        return near_BHY.unflatten(-1, (C, N + 1))[..., :N] + far_BHNC.mT

    def _index(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.left, self.logits_BHNR.shape[-1] - 1 - self.left) + self.left
