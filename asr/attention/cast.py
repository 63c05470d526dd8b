"""CAST: attention inside clusters around learned surrogate tokens, summaries between them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.cast_assignment import assign_single, assign_top
from asr.attention.layer import OwnParameterLayer
from asr.lengths import keep_mask, zero_padding
from attention_ext.improved_clustered_attention.reference import gather_rows


class CAST(OwnParameterLayer):
    """Clustering self-attention with surrogate tokens, van Engelenhoven et al. 2024, Figure 1.

    Per head, with C surrogates S, s = 1/√D, a gate φ_i = x_i·w + b per token, and s₁(t) = 1 + softplus(t):

    1. A_q = s·QSᵀ and A_k = s·KSᵀ, both N × C;
    2. A_g = σ(φ) ⊙ softmax_C(A_q) + (1 − σ(φ)) ⊙ softmax_C(A_k) decides who joins: cluster j takes the κ
       tokens G_j (`cast_assignment`);
    3. R_intra,j = softmax(s·Q_{G_j} K_{G_j}ᵀ) V_{G_j}: attention inside the cluster;
    4. R_inter,j = softmax_{i∈G_j}(A_k,ij · s₁(−φ_i)) · V_{G_j}: one summary per cluster;
    5. with W_i = softmax_C(A_q,i · s₁(φ_i)) over the clusters that have members, R_i sums W_ij · R_intra,j at
       i over the clusters that hold token i, and W_ij · R_inter,j over the others;
    6. the output is R·O.

    The figure leaves open how φ receives a gradient, as G_j is discrete: here through the temperatures s₁ of
    steps 4 and 5, which weigh a token's key side against its query side as step 2 does.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim, heads, head_dim: M, H, D.
        dropout: probability on the weights inside clusters, in training.
        clusters: C.
        assign: `topk`, a cluster takes its κ best tokens and a token may be in none or several;
            `single`, every token is in exactly one.
        capacity: κ; 0 stands for ⌈n/C⌉ of a sequence with n tokens. `single` raises it to that.
    """

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        clusters: int,
        assign: str,
        capacity: int,
    ) -> None:
        super().__init__(name, backend)
        self.heads, self.clusters, self.assign, self.capacity = heads, clusters, assign, capacity
        self.query = nn.Linear(model_dim, heads * head_dim)
        self.key = nn.Linear(model_dim, heads * head_dim)
        self.value = nn.Linear(model_dim, heads * head_dim)
        self.gate = nn.Linear(model_dim, 1)
        self.surrogates_HCD = nn.Parameter(torch.randn(heads, clusters, head_dim))
        self.output = nn.Linear(heads * head_dim, model_dim)
        self.dropout = dropout

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M]."""
        B, N, _ = x.shape
        if lengths is None:
            lengths = x.new_full((B,), N, dtype=torch.int64)
        lengths = lengths.to(x.device)
        x = zero_padding(x, lengths)
        q, k, v = (self._split_heads(project(x)) for project in (self.query, self.key, self.value))
        gate_B1N1 = self.gate(x).unsqueeze(1)
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self._mix(q.to(dtype), k.to(dtype), v.to(dtype), gate_B1N1.to(dtype), lengths)
        y = self.output(mixed.to(v.dtype).transpose(1, 2).flatten(2))
        return zero_padding(y, lengths)

    def affinities(self, x_BHND: Tensor) -> Tensor:
        """Return A of step 1, [B, H, N, C], for queries or keys."""
        return x_BHND @ self.surrogates_HCD.to(x_BHND.dtype).mT * x_BHND.shape[-1] ** -0.5

    def members(self, affinity_BHNC: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of each cluster, [B, H, C, K], and which of these slots are filled."""
        N = affinity_BHNC.shape[2]
        slots = self._capacity(N)
        even_B = (lengths_B + self.clusters - 1) // self.clusters
        capacity_B = even_B if self.capacity == 0 else lengths_B.clamp(max=self.capacity)
        if self.assign == "single":
            return assign_single(affinity_BHNC, lengths_B, torch.maximum(capacity_B, even_B), slots)
        return assign_top(affinity_BHNC, lengths_B, capacity_B, slots)

    def _capacity(self, size: int) -> int:
        """Return κ for `size` tokens."""
        even = -(-size // self.clusters)
        capacity = min(self.capacity, size) or even
        return max(capacity, even) if self.assign == "single" else capacity

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, gate_B1N1: Tensor, lengths_B: Tensor) -> Tensor:
        """Return R, [B, H, N, E] (steps 1 to 5)."""
        affinity_q_BHNC, affinity_k_BHNC = self.affinities(q), self.affinities(k)
        share_B1N1 = gate_B1N1.sigmoid()
        joint_BHNC = share_B1N1 * affinity_q_BHNC.softmax(-1) + (1 - share_B1N1) * affinity_k_BHNC.softmax(-1)
        members_BHCK, filled_BHCK = self.members(joint_BHNC.detach(), lengths_B)

        q_BHCKD, k_BHCKD, v_BHCKE = (gather_rows(x, members_BHCK) for x in (q, k, v))
        intra_BHCKE = F.scaled_dot_product_attention(
            q_BHCKD.flatten(1, 2),
            k_BHCKD.flatten(1, 2),
            v_BHCKE.flatten(1, 2),
            # An empty cluster looks at all its slots: a softmax over nothing would be NaN.
            attn_mask=(filled_BHCK | ~filled_BHCK.any(-1, keepdim=True)).flatten(1, 2).unsqueeze(2),
            dropout_p=self.dropout if self.training else 0.0,
        ).view_as(v_BHCKE)

        lowest = torch.finfo(q.dtype).min
        sharp_BHNC = affinity_k_BHNC * (1 + F.softplus(-gate_B1N1))
        logits_BHCK = sharp_BHNC.mT.gather(3, members_BHCK).masked_fill(~filled_BHCK, lowest)
        inter_BHCE = (logits_BHCK.softmax(-1).unsqueeze(-2) @ v_BHCKE).squeeze(-2)

        logits_BHNC = affinity_q_BHNC * (1 + F.softplus(gate_B1N1))
        empty_BH1C = ~filled_BHCK.any(-1).unsqueeze(2)
        weights_BHNC = logits_BHNC.masked_fill(empty_BH1C, lowest).softmax(-1)

        joined_BHCN = torch.zeros_like(weights_BHNC.mT).scatter_add(3, members_BHCK, filled_BHCK.to(q.dtype))
        others_BHNE = weights_BHNC.masked_fill(joined_BHCN.mT > 0, 0.0) @ inter_BHCE
        own_BHCK = weights_BHNC.mT.gather(3, members_BHCK).masked_fill(~filled_BHCK, 0.0)
        index = members_BHCK.flatten(2).unsqueeze(-1).expand(-1, -1, -1, v.shape[-1])
        mixed_BHNE = others_BHNE.scatter_add(2, index, (own_BHCK.unsqueeze(-1) * intra_BHCKE).flatten(2, 3))
        return mixed_BHNE.masked_fill(~keep_mask(lengths_B, q.shape[2])[:, None, :, None], 0.0)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
