"""Bias of distances, gated by the query, in the logits of the references."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class GatedBias(NamedTuple):
    """Logits g_i · r(j − i) added to those of query i and key j, as in *WavLM* (Chen et al. 2022, eq. 4–7).

    Attributes:
        gate_BHN: g, of each query.
        bias_HR: r, of the R = 2N − 1 distances −(N − 1) … N − 1.
    """

    gate_BHN: Tensor
    bias_HR: Tensor

    def between(self, queries_I: Tensor, keys_J: Tensor) -> Tensor:
        """Return the logits of queries and keys, given by their positions, [B, H, I, J]."""
        distance_IJ = keys_J - queries_I.unsqueeze(-1) + self.gate_BHN.shape[-1] - 1
        return self.gate_BHN[..., queries_I, None] * self.bias_HR[:, distance_IJ]

    def of_keys(self, keys_BHNK: Tensor) -> Tensor:
        """Return the logits of every query and K keys of its own, given by their positions, [B, H, N, K]."""
        B, H, N, _ = keys_BHNK.shape
        index_BHNK = keys_BHNK + torch.arange(N - 1, -1, -1, device=keys_BHNK.device).unsqueeze(-1)
        bias_BHX = self.bias_HR.expand(B, H, -1).gather(2, index_BHNK.flatten(2))
        return self.gate_BHN.unsqueeze(-1) * bias_BHX.view_as(keys_BHNK)

    def cluster_means(self, members_BHNC: Tensor) -> Tensor:
        """Return the mean of the logits over the queries of each cluster, [B, H, C, N]; 0 for no query.

        The sum over queries is a convolution of their gates with r. A Fourier transform over 2N positions
        computes it in N·log N.

        Args:
            members_BHNC: see `attention_ext.clusters.reference.membership`.
        """
        N = members_BHNC.shape[2]
        gate_BHCN = (members_BHNC * self.gate_BHN.unsqueeze(-1)).mT
        gate_BHCN = gate_BHCN / members_BHNC.sum(2).clamp(min=1.0).unsqueeze(-1)
        # On the circle, N is no distance, and N + 1 … 2N − 1 are the distances −(N − 1) … −1.
        circle_HL = torch.cat((self.bias_HR[:, N - 1 :], F.pad(self.bias_HR[:, : N - 1], (1, 0))), dim=-1)
        spectrum_BHCF = torch.fft.rfft(gate_BHCN, 2 * N) * torch.fft.rfft(circle_HL.unsqueeze(1))
        return torch.fft.irfft(spectrum_BHCF, 2 * N)[..., :N]
