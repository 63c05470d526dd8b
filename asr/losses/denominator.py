"""The denominator: the log-sum over all output sequences, weighted by an n-gram of labels.

Each state of the n-gram occurs twice: `within` the last label of its history, and `between`, after it. In a
frame, the states of a whole batch are multiplied by matrices of arcs, dense for bigrams and sparse for longer
n-grams (see `label_ngram`). Sums are scaled in every frame and kept in float64, so that neither thousands of
frames nor unlikely histories over- or underflow: a state below 1e-300 of the sum doesn't matter here, and log
space would take an exponential for every arc. Memory is two numbers per frame and state; time is linear in
frames × n-grams.
"""

import warnings

import torch
from torch import Tensor, nn

from asr.lengths import keep_mask
from asr.losses.ctc import BLANK
from asr.losses.label_ngram import START, STOP, LabelNgram, graph_matrices
from asr.losses.topology import joined_outputs, split_outputs

WARM_UP = 100  # frames over which the prior of the states is averaged, as in Kaldi


class Denominator(nn.Module):
    """The graph of an n-gram and a topology, and its forward–backward algorithm.

    With `leak` > 0, every state may pass to any other after each frame, with probability leak × the other's
    prior (the leaky HMM of Povey et al. 2016): history is forgotten gradually. The prior is the mean
    distribution over the first 100 frames if all outputs are equally likely.

    Args:
        ngram: n-gram of labels with S states.
        topology: `ctc` or `hmm`.
        leak: leaky-HMM coefficient.
        dense: whether to multiply by dense matrices.
    """

    stop_S1: Tensor
    prior_2S1: Tensor

    def __init__(self, ngram: LabelNgram, topology: str, leak: float, dense: bool) -> None:
        super().__init__()
        self.topology = topology
        self.leak = leak
        self.dense = dense
        S = len(ngram.states)
        with warnings.catch_warnings():  # PyTorch warns that sparse matrices are new, and not checked
            warnings.filterwarnings("ignore", "Sparse (CSR tensor|invariant)")
            for name, matrix in self._matrices(ngram).items():
                for suffix, x in (("", matrix), ("_back", matrix.t())):
                    x = x.to_dense() if dense else x.coalesce().to_sparse_csr()
                    self.register_buffer(name + suffix, x, persistent=False)
        stop = [ngram.probability(history, STOP) for history in ngram.states]
        self.register_buffer("stop_S1", torch.tensor(stop, dtype=torch.double)[:, None], persistent=False)
        self.start = ngram.index[(START,)]
        self.register_buffer("prior_2S1", torch.zeros(2, S, 1).double(), persistent=False)
        if leak:
            self.prior_2S1 = self._prior(ngram.vocabulary)

    def _matrices(self, ngram: LabelNgram) -> dict[str, Tensor]:
        """Return the matrices of arcs, of repeated labels, and of the last labels of states."""
        S = len(ngram.states)
        extend, collapse = graph_matrices(ngram)
        matrices = {"arcs": extend @ collapse} if self.dense else {"extend": extend, "collapse": collapse}
        state_S = torch.arange(S)
        if self.topology == "ctc":  # arcs that would repeat a label without a blank
            repeats = torch.tensor([ngram.index[ngram.after(h, h[-1])] for h in ngram.states])
            weights = torch.tensor([ngram.probability(h, h[-1]) for h in ngram.states], dtype=torch.double)
            matrices["repeats"] = torch.sparse_coo_tensor(torch.stack((repeats, state_S)), weights, (S, S))
        places = torch.stack((torch.tensor([history[-1] for history in ngram.states]), state_S))
        matrices["labels"] = torch.sparse_coo_tensor(places, torch.ones(S).double(), (ngram.vocabulary, S))
        return matrices

    def forward(
        self, outputs_BTO: Tensor, lengths_B: Tensor, occupancies: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-sum of each utterance and the occupancies of the outputs.

        Args:
            outputs_BTO: [B, T, O] log-scores, finite also in the padding.
            lengths_B: [B] valid frames.
            occupancies: whether to compute the occupancies.

        Returns:
            [B] float64 and [B, T, O] float64 or None.
        """
        peak_BT1 = outputs_BTO.detach().double().amax(dim=2, keepdim=True)
        scores = (outputs_BTO.double() - peak_BT1).exp().permute(1, 2, 0)
        first, later = split_outputs(scores.transpose(1, 2), self.topology)
        first_TVB = first.transpose(1, 2).contiguous()
        later_TVB = first_TVB if later is first else later.transpose(1, 2).contiguous()
        T, _, B = first_TVB.shape
        states = first_TVB.new_empty(T + 1, 2, len(self.stop_S1), B)
        scale_TB = first_TVB.new_empty(T, B)
        states[0] = 0.0
        states[0, 1, self.start] = 1.0
        for t in range(T):
            # The states `within` and `between`, scaled, before the leak.
            before_2SB = self._leaked(states[t]) if t else states[t]
            self._step(before_2SB, first_TVB[t], later_TVB[t], states[t + 1])
            scale_TB[t] = states[t + 1].sum(dim=(0, 1))
            states[t + 1] /= scale_TB[t]
        own_B = torch.arange(B, device=lengths_B.device)
        last_2SB = self._leaked(states[lengths_B, :, :, own_B].permute(1, 2, 0))
        final_B = (last_2SB.sum(dim=0) * self.stop_S1).sum(dim=0)
        counted_TB = keep_mask(lengths_B, T).t()
        scales_TB = scale_TB.log() + peak_BT1[:, :, 0].t()
        log_sum_B = final_B.log() + scales_TB.masked_fill(~counted_TB, 0.0).sum(dim=0)
        if not occupancies:
            return log_sum_B, None
        starts_TVB, stays_TVB = self._occupancies(states, scale_TB, first_TVB, later_TVB, lengths_B)
        occupancy_TBO = joined_outputs(starts_TVB.transpose(1, 2), stays_TVB.transpose(1, 2), self.topology)
        return log_sum_B, occupancy_TBO.transpose(0, 1)

    def _step(self, before_2SB: Tensor, first_VB: Tensor, later_VB: Tensor, out_2SB: Tensor) -> None:
        """Write the states after a frame, unscaled."""
        either_SB = before_2SB.sum(dim=0)
        entered_SB = self._times("arcs", either_SB)
        if self.topology == "ctc":
            # Clamped: the difference of nearly equal numbers could be negative.
            entered_SB = (entered_SB - self._matrix("repeats") @ before_2SB[0]).clamp_(min=0.0)
        first_SB, later_SB = self._of_states(first_VB, later_VB)
        torch.mul(first_SB, entered_SB, out=out_2SB[0])
        out_2SB[0].addcmul_(later_SB, before_2SB[0])
        torch.mul(either_SB, first_VB[BLANK], out=out_2SB[1])

    def _occupancies(
        self, states: Tensor, scale_TB: Tensor, first_TVB: Tensor, later_TVB: Tensor, lengths_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return how often each label starts, and how often it continues, in each frame: two [T, V, B].

        Blank counts as starting.
        """
        starts_TVB, stays_TVB = torch.zeros_like(first_TVB), torch.zeros_like(later_TVB)
        after_2SB = torch.zeros_like(states[0])
        prior_back = self.prior_2S1.flatten()
        for t in reversed(range(len(scale_TB))):
            after_2SB += self.stop_S1 * (lengths_B == t + 1)
            if self.leak:
                after_2SB += self.leak * (prior_back @ after_2SB.flatten(0, 1))
            first_SB, later_SB = self._of_states(first_TVB[t], later_TVB[t])
            entering_SB, staying_SB = first_SB * after_2SB[0], later_SB * after_2SB[0]
            blank_SB = after_2SB[1] * first_TVB[t, BLANK]
            before_2SB = self._leaked(states[t]) if t else states[t]
            share_2SB = states[t + 1] * after_2SB
            total_B = share_2SB.sum(dim=(0, 1)).clamp_(min=1e-300)
            stayed_SB = before_2SB[0] * staying_SB / scale_TB[t]
            entered_SB = (share_2SB[0] - stayed_SB).clamp_(min=0.0)
            torch.div(self._matrix("labels") @ entered_SB, total_B, out=starts_TVB[t])
            torch.div(self._matrix("labels") @ stayed_SB, total_B, out=stays_TVB[t])
            starts_TVB[t, BLANK] = share_2SB[1].sum(dim=0) / total_B
            after_2SB[0] = after_2SB[1] = self._times("arcs_back", entering_SB) + blank_SB
            after_2SB[0] += staying_SB
            if self.topology == "ctc":
                after_2SB[0] -= self._matrix("repeats_back") @ entering_SB
                after_2SB[0].clamp_(min=0.0)
            after_2SB /= after_2SB.amax(dim=(0, 1)).clamp_(min=1e-300)
        return starts_TVB, stays_TVB

    def _leaked(self, states_2SB: Tensor) -> Tensor:
        return states_2SB + self.leak * self.prior_2S1 if self.leak else states_2SB

    def _of_states(self, first_VB: Tensor, later_VB: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores with which each state's last label starts and continues, [S, B] each."""
        first_SB = self._matrix("labels_back") @ first_VB
        return first_SB, first_SB if self.topology == "ctc" else self._matrix("labels_back") @ later_VB

    def _times(self, name: str, x_SB: Tensor) -> Tensor:
        """Multiply by all arcs, forwards (`arcs`) or backwards (`arcs_back`)."""
        if self.dense:
            return self._matrix(name) @ x_SB
        if name == "arcs":
            return self._matrix("extend") @ (self._matrix("collapse") @ x_SB)
        return self._matrix("collapse_back") @ (self._matrix("extend_back") @ x_SB)

    def _matrix(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def _prior(self, vocabulary: int) -> Tensor:
        uniform_V1 = torch.ones(vocabulary, 1).double()
        states_2S1 = torch.zeros_like(self.prior_2S1)
        states_2S1[1, self.start] = 1.0
        total_2S1 = torch.zeros_like(states_2S1)
        for _ in range(WARM_UP):
            total_2S1 += states_2S1
            following_2S1 = torch.empty_like(states_2S1)
            self._step(states_2S1, uniform_V1, uniform_V1, following_2S1)
            states_2S1 = following_2S1 / following_2S1.sum()
        return total_2S1 / WARM_UP
