"""CAST: attention within clusters around learned surrogate tokens, and summaries of the other clusters."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.products import Linear
from asr.attention.softmax import filled_lengths, without_padding
from asr.attention.spec import COUNT
from asr.config import option
from asr.lengths import keep_mask, zero_padding
from attention_ext.improved_clustered_attention.reference import gather_rows

LAPLACE_MEAN = 0.5**0.5
LAPLACE_DEVIATION = (4 * math.pi) ** -0.5


@dataclass
class CASTOptions:
    """Clusters C, and how tokens are assigned to them."""

    clusters: int = option(
        8, help="clusters and surrogate tokens, C", affects="result", letter="C", minimum=1, maximum=COUNT
    )
    assign: str = option(
        "topk",
        help="topk: each cluster chooses its κ best tokens; single: each token joins one cluster",
        affects="result",
        choices=("topk", "single"),
    )
    capacity: int = option(0, help="tokens per cluster, κ; 0: N / C", affects="result", maximum=COUNT)
    count: str = option(
        "all", help="clusters in use: all, or the first √N", affects="result", choices=("all", "root")
    )
    heads: str = option(
        "shared",
        help="shared: all heads share their clusters; own: each has its own",
        affects="result",
        choices=("shared", "own"),
    )
    function: str = option(
        "softmax", help="attention function", affects="result", choices=("softmax", "laplace")
    )


class CAST(OwnParameterLayer):
    """Attention within clusters around learned surrogate tokens, and to summaries of the other clusters.

    Van Engelenhoven et al. 2024, *CAST* (arXiv 2402.04239). Per head, with C surrogates S, s = 1/√D, a gate
    φ_i = x_i·w + b per token, and s₁(t) = 1 + softplus(t):

    1. A_q = s·QSᵀ and A_k = s·KSᵀ, both N × C;
    2. A_g = σ(φ) ⊙ softmax_C(A_q) + (1 − σ(φ)) ⊙ softmax_C(A_k), averaged over heads, assigns the tokens G_j,
       at most κ, to cluster j (`assign_top`, `assign_single`);
    3. R_intra,j = softmax(s·Q_{G_j} K_{G_j}ᵀ) V_{G_j} is attention within the cluster;
    4. R_inter,j = softmax_{i∈G_j}(A_k,ij · s₁(−φ_i)) · V_{G_j} is the cluster's summary;
    5. with W_i = softmax_C(A_q,i · s₁(φ_i)) over the clusters that have members, R_i sums W_ij · R_intra,j at
       i over the clusters that contain token i, and W_ij · R_inter,j over the others;
    6. the output is R·O.

    This follows the captions of the paper's Figures 1, 2 and 4 (Figure 4 shows one clustering per layer, so
    the heads share it); it has not been compared with the paper's six equations. The captions leave open the
    following points, in which this implementation may deviate:

    * heads: A_g is averaged after the softmax, which keeps it a distribution over clusters;
    * gate: the captions combine A_q and A_k without saying how; step 2 mixes them by a sigmoid per token. G_j
      is discrete, so φ receives its gradient through the temperatures s₁ of steps 4 and 5;
    * clusters without members are left out of step 5, because they have no summary;
    * `function=laplace`: softmax over m values t becomes ½(1 + erf((t − μ) / (σ√2))) / m with μ = √½ and
      σ = √(1/4π), the constants of *Mega* (Ma et al. 2022). Mega divides the logits by the length instead;
      dividing the weights keeps the size of the output independent of m, and their sum at most 1;
    * `count=root` and `heads=own` are additions of this project.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim, heads, head_dim: M, H, D.
        dropout: dropout probability on the weights within clusters.
        options: C, κ and the assignment. With `assign=topk` a token may be in no cluster or in several, with
            `single` it is in exactly one. `capacity=0` means κ = ⌈n/C⌉ for n tokens, which is also the
            minimum κ with `single`. With `count=root`, n tokens have only the first ⌈√n⌉ clusters, at most C,
            and κ follows: the cost N·(C + κ) is lowest, N·√N, as long as n ≤ C². With `heads=shared`, the
            mean of the heads' A_g assigns tokens.
    """

    options = CASTOptions
    source = "[van Engelenhoven et al. 2024, CAST](https://arxiv.org/abs/2402.04239)"
    time = "N·(C + capacity), capacity N/C by default; count=root: N·√N up to N = C²"
    memory = "N·C; count=root: N·√N up to N = C²"

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: CASTOptions,
    ) -> None:
        super().__init__(name, backend)
        self.heads, self.clusters = heads, options.clusters
        self.assign, self.capacity = options.assign, options.capacity
        self.follows_length = options.count == "root"
        self.shared = options.heads == "shared"
        self.function = options.function
        self.query = Linear(model_dim, heads * head_dim)
        self.key = Linear(model_dim, heads * head_dim)
        self.value = Linear(model_dim, heads * head_dim)
        self.gate = Linear(model_dim, 1)
        self.surrogates_HCD = nn.Parameter(torch.randn(heads, options.clusters, head_dim))
        self.output = Linear(heads * head_dim, model_dim)
        self.dropout = dropout

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M]."""
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
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

    def joint_affinity(
        self, affinity_q_BHNC: Tensor, affinity_k_BHNC: Tensor, gate_B1N1: Tensor, used_BC: Tensor
    ) -> Tensor:
        """Return A_g of step 2, [B, H, N, C], or [B, 1, N, C] if heads share it; −2 for unused clusters."""
        used_B11C = used_BC[:, None, None] if self.follows_length else None
        share_B1N1 = gate_B1N1.sigmoid()
        q_BHNC, k_BHNC = self._weigh(affinity_q_BHNC, used_B11C), self._weigh(affinity_k_BHNC, used_B11C)
        joint_BHNC = share_B1N1 * q_BHNC + (1 - share_B1N1) * k_BHNC
        if self.shared:
            joint_BHNC = joint_BHNC.mean(1, keepdim=True)
        return joint_BHNC if used_B11C is None else joint_BHNC.masked_fill(~used_B11C, -2.0)

    def in_use(self, lengths_B: Tensor) -> Tensor:
        """Return a mask of the clusters in use by n tokens, [B, C]: all, or j < ⌈√n⌉, j from 0."""
        index_C = torch.arange(self.clusters, device=lengths_B.device)
        least_C = index_C.square() if self.follows_length else torch.full_like(index_C, -1)
        return least_C < lengths_B.unsqueeze(1)

    def members(self, affinity_BHNC: Tensor, lengths_B: Tensor, used_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of each cluster, [B, H, C, K], and a mask of the filled slots."""
        N = affinity_BHNC.shape[2]
        slots = self._capacity(N)
        used_B = used_BC.sum(1).clamp(min=1)
        even_B = (lengths_B + used_B - 1) // used_B
        capacity_B = even_B if self.capacity == 0 else lengths_B.clamp(max=self.capacity)
        if self.assign == "single":
            return assign_single(affinity_BHNC, lengths_B, torch.maximum(capacity_B, even_B), slots)
        members_BHCK, filled_BHCK = assign_top(affinity_BHNC, lengths_B, capacity_B, slots)
        return members_BHCK, filled_BHCK & used_BC[:, None, :, None]

    def _capacity(self, size: int) -> int:
        """Return κ for `size` tokens."""
        used = min(self.clusters, math.isqrt(size - 1) + 1) if self.follows_length and size else self.clusters
        even = -(-size // used)
        capacity = min(self.capacity, size) or even
        return max(capacity, even) if self.assign == "single" else capacity

    def _weigh(self, logits: Tensor, keep: Tensor | None = None) -> Tensor:
        """Apply the attention function to the last dimension; entries not kept are 0, or close to 0."""
        if self.function == "softmax":
            lowest = torch.finfo(logits.dtype).min
            return (logits if keep is None else logits.masked_fill(~keep, lowest)).softmax(-1)
        weights = 0.5 * (1 + torch.erf((logits - LAPLACE_MEAN) / (LAPLACE_DEVIATION * 2**0.5)))
        if keep is None:
            return weights / logits.shape[-1]
        return weights.masked_fill(~keep, 0.0) / keep.sum(-1, keepdim=True).clamp(min=1)

    def _attend(self, q_BHCKD: Tensor, k_BHCKD: Tensor, v_BHCKE: Tensor, filled_BHCK: Tensor) -> Tensor:
        """Return R_intra of step 3, [B, H, C, K, E]."""
        # An empty cluster attends to all its slots, because a softmax over no key is NaN.
        keep_BHC1K = (filled_BHCK | ~filled_BHCK.any(-1, keepdim=True)).unsqueeze(-2)
        dropout = self.dropout if self.training else 0.0
        if self.function == "softmax":
            q, k, v, mask = (x.flatten(1, 2) for x in (q_BHCKD, k_BHCKD, v_BHCKE, keep_BHC1K))
            return F.scaled_dot_product_attention(q, k, v, mask, dropout).view_as(v_BHCKE)
        logits_BHCKK = q_BHCKD @ k_BHCKD.mT * q_BHCKD.shape[-1] ** -0.5
        return F.dropout(self._weigh(logits_BHCKK, keep_BHC1K), dropout) @ v_BHCKE

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, gate_B1N1: Tensor, lengths_B: Tensor) -> Tensor:
        """Return R, [B, H, N, E] (steps 1 to 5)."""
        affinity_q_BHNC, affinity_k_BHNC = self.affinities(q), self.affinities(k)
        used_BC = self.in_use(lengths_B)
        with torch.no_grad():
            joint_BHNC = self.joint_affinity(affinity_q_BHNC, affinity_k_BHNC, gate_B1N1, used_BC)
        members = self.members(joint_BHNC, lengths_B, used_BC)
        members_BHCK, filled_BHCK = (x.expand(-1, self.heads, -1, -1) for x in members)

        q_BHCKD, k_BHCKD, v_BHCKE = (gather_rows(x, members_BHCK) for x in (q, k, v))
        intra_BHCKE = self._attend(q_BHCKD, k_BHCKD, v_BHCKE, filled_BHCK)

        sharp_BHNC = affinity_k_BHNC * (1 + F.softplus(-gate_B1N1))
        shares_BHCK = self._weigh(sharp_BHNC.mT.gather(3, members_BHCK), filled_BHCK)
        inter_BHCE = (shares_BHCK.unsqueeze(-2) @ v_BHCKE).squeeze(-2)

        logits_BHNC = affinity_q_BHNC * (1 + F.softplus(gate_B1N1))
        weights_BHNC = self._weigh(logits_BHNC, filled_BHCK.any(-1).unsqueeze(2))

        joined_BHCN = torch.zeros_like(weights_BHNC.mT).scatter_add(3, members_BHCK, filled_BHCK.to(q.dtype))
        others_BHNE = weights_BHNC.masked_fill(joined_BHCN.mT > 0, 0.0) @ inter_BHCE
        own_BHCK = weights_BHNC.mT.gather(3, members_BHCK).masked_fill(~filled_BHCK, 0.0)
        index = members_BHCK.flatten(2).unsqueeze(-1).expand(-1, -1, -1, v.shape[-1])
        mixed_BHNE = others_BHNE.scatter_add(2, index, (own_BHCK.unsqueeze(-1) * intra_BHCKE).flatten(2, 3))
        return mixed_BHNE.masked_fill(~keep_mask(lengths_B, q.shape[2])[:, None, :, None], 0.0)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def assign_top(
    affinity_BHNC: Tensor, lengths_B: Tensor, capacity_B: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """Assign each cluster its κ best tokens (Top-K), ties to the first; a token may be in none or several.

    Args:
        affinity_BHNC: affinity of tokens to clusters, ≥ 0.
        lengths_B: valid tokens n.
        capacity_B: κ ≤ n for each sequence.
        slots: the largest κ.

    Returns:
        Tokens [B, H, C, K] int64, and a mask of the filled slots, [B, H, C, K] bool.
    """
    keep_BN = keep_mask(lengths_B, affinity_BHNC.shape[2])
    ranked_BHNC = affinity_BHNC.masked_fill(~keep_BN[:, None, :, None], -1.0)
    members_BHCK = ranked_BHNC.mT.sort(dim=-1, descending=True, stable=True).indices[..., :slots]
    filled_BHCK = keep_mask(capacity_B, slots)[:, None, None, :].expand_as(members_BHCK)
    return members_BHCK, filled_BHCK


def assign_single(
    affinity_BHNC: Tensor, lengths_B: Tensor, capacity_B: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """Assign each token to one cluster (Single Assignment Top-K), greedily, at most κ tokens per cluster.

    In each round, each unassigned token bids for the best cluster with room, and each cluster accepts its
    best bidders until it is full. A round that leaves a token unassigned has filled a cluster, so C rounds
    suffice.

    Args:
        affinity_BHNC: affinity of tokens to clusters, ≥ 0.
        lengths_B: valid tokens n.
        capacity_B: κ for each sequence, κ·C ≥ n.
        slots: the largest κ.

    Returns:
        Tokens [B, H, C, K] int64, and a mask of the filled slots, [B, H, C, K] bool.
    """
    B, H, N, C = affinity_BHNC.shape
    free_BHN = keep_mask(lengths_B, N).unsqueeze(1).expand(B, H, N)
    position_BHN = torch.arange(N, device=affinity_BHNC.device).expand(B, H, N)
    taken_BHC = torch.zeros(B, H, C, dtype=torch.int64, device=affinity_BHNC.device)
    # Rejected bids are written to one extra slot.
    members = torch.zeros(B, H, C * slots + 1, dtype=torch.int64, device=affinity_BHNC.device)
    filled = torch.zeros_like(members, dtype=torch.bool)
    for _ in range(C):
        full_BH1C = (taken_BHC >= capacity_B.view(B, 1, 1)).unsqueeze(2)
        score_BHN, bid_BHN = affinity_BHNC.masked_fill(full_BH1C, -1.0).max(-1)
        bid_BHN = torch.where(free_BHN, bid_BHN, C)
        # Sorting by score, then stably by bid, puts each cluster's bidders side by side, the best first.
        by_score_BHN = score_BHN.sort(dim=-1, descending=True, stable=True).indices
        bid_BHN, by_bid_BHN = bid_BHN.gather(-1, by_score_BHN).sort(dim=-1, stable=True)
        token_BHN = by_score_BHN.gather(-1, by_bid_BHN)

        cluster_BHN = bid_BHN.clamp(max=C - 1)
        bids_BHC = torch.zeros_like(taken_BHC).scatter_add(-1, cluster_BHN, (bid_BHN < C).long())
        first_BHC = bids_BHC.cumsum(-1) - bids_BHC
        slot_BHN = taken_BHC.gather(-1, cluster_BHN) + position_BHN - first_BHC.gather(-1, cluster_BHN)
        accepted_BHN = (bid_BHN < C) & (slot_BHN < capacity_B.view(B, 1, 1))

        target_BHN = torch.where(accepted_BHN, cluster_BHN * slots + slot_BHN, C * slots)
        members = members.scatter(-1, target_BHN, token_BHN)
        filled = filled.scatter(-1, target_BHN, True)
        free_BHN = free_BHN & ~torch.zeros_like(free_BHN).scatter(-1, token_BHN, accepted_BHN)
        taken_BHC = taken_BHC.scatter_add(-1, cluster_BHN, accepted_BHN.long())
    return members[..., :-1].view(B, H, C, slots), filled[..., :-1].view(B, H, C, slots)
