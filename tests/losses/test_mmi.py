"""CTC-CRF and LF-MMI against enumeration of all output sequences, and what follows from their definition."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from quick import quick
from torch import Tensor

from asr.losses.ctc import ctc_loss
from asr.losses.denominator import WARM_UP, Denominator
from asr.losses.label_ngram import START, STOP, LabelNgram, estimate_labels, graph_matrices
from asr.losses.mmi import MMILoss
from asr.losses.numerator import numerator
from asr.losses.options import TOPOLOGIES
from asr.losses.topology import output_count

TARGETS = [[1, 2, 2, 1], [2, 1, 1], [1, 2, 3], [3, 3, 1, 2], [2], [1, 1, 2, 1, 2, 2]]
V = 5  # label 4 is never seen


def ngram(order: int, histories: int = 100) -> LabelNgram:
    return estimate_labels(TARGETS, V, order, histories)


def mmi(order: int = 3, topology: str = "ctc", leak: float = 0.0, ctc_weight: float = 0.0) -> MMILoss:
    return MMILoss(ngram(order), order=order, topology=topology, leak=leak, ctc_weight=ctc_weight)


def scores(frames: int, topology: str, *, batch: int = 1, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, frames, output_count(topology, V), generator=generator).double()


def spelled(path: tuple[int, ...], topology: str) -> tuple[int, ...] | None:
    """Return the labels that an output sequence spells; None if the topology has no such sequence."""
    labels: list[int] = []
    before = 0
    for output in path:
        if topology == "hmm" and output >= V:
            if before not in (output, output - V + 1):
                return None
        elif output and (topology == "hmm" or output != before):
            labels.append(output)
        before = output
    return tuple(labels)


def enumerated(scores_TO: Tensor, topology: str) -> dict[tuple[int, ...], Tensor]:
    """Return the summed weight of all output sequences by label sequence, with gradients."""
    T, outputs = scores_TO.shape
    paths: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for path in itertools.product(range(outputs), repeat=T):
        labels = spelled(path, topology)
        if labels is not None:
            paths[labels].append(path)
    frames = torch.arange(T)
    return {
        labels: scores_TO[frames, torch.tensor(same)].sum(dim=1).exp().sum() for labels, same in paths.items()
    }


def loss_of(
    loss: MMILoss, outputs: Tensor, targets: list[list[int]], lengths: list[int] | None = None
) -> Tensor:
    tokens = torch.zeros(len(targets), max(map(len, targets)), dtype=torch.int64)
    for row, target in zip(tokens, targets, strict=True):
        row[: len(target)] = torch.tensor(target)
    frames = torch.tensor(lengths or [outputs.shape[1]] * len(targets))
    return loss(outputs, frames, tokens, torch.tensor([len(target) for target in targets]))


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_loss_is_the_posterior_over_all_paths(topology: str, order: int) -> None:
    outputs = scores(4, topology)
    sums = enumerated(outputs[0], topology)
    model = ngram(order)
    weights = {labels: math.exp(model.log_probability(labels)) * x for labels, x in sums.items()}
    loss = mmi(order, topology)
    for target in ([1, 2], [2, 2], [4], [1], [3, 3, 1]):
        if tuple(target) not in weights:  # too few frames
            continue
        expected = -math.log(weights[tuple(target)] / sum(weights.values()))
        assert float(loss_of(loss, outputs, [target])) == pytest.approx(expected, abs=1e-9)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("histories", [0, 3, 100])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_matrices_have_the_arcs_of_the_ngram(order: int, histories: int) -> None:
    model = ngram(order, histories)
    extend, collapse = graph_matrices(model)
    expected = torch.zeros(len(model.states), len(model.states)).double()
    for history in model.states:
        for label in range(1, V):
            arc = model.index[model.after(history, label)], model.index[history]
            expected[arc] += model.probability(history, label)
    torch.testing.assert_close((extend @ collapse).to_dense(), expected)


def test_probabilities_are_those_of_kenlm(tmp_path) -> None:
    pytest.importorskip("flashlight.lib.text.decoder.kenlm")
    from asr.lm.arpa import write_arpa
    from asr.lm.kneser_ney import estimate
    from asr.lm.ngram import NgramModel

    names = [str(label) for label in range(1, V)]
    write_arpa(estimate(([str(x) for x in target] for target in TARGETS), 3, names), tmp_path / "a.arpa")
    kenlm = NgramModel(tmp_path / "a.arpa", names)
    for target in [*TARGETS, [4, 4], [3, 2, 1], []]:
        state, total = kenlm.start(), 0.0
        for label in target:
            state, log10 = kenlm.score(state, label - 1)
            total += log10
        total += kenlm.finish(state)
        assert ngram(3).log_probability(target) == pytest.approx(total * math.log(10), abs=1e-4)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_with_weight_one_for_all_label_sequences_the_loss_is_ctc(topology: str) -> None:
    """Normalised outputs sum to one over all output sequences, which for `ctc` all spell something."""
    model = LabelNgram(V, {(): dict.fromkeys([*range(1, V), STOP], 1.0)}, {})
    loss = MMILoss(model, order=2, topology=topology, leak=0.0, ctc_weight=0.0)
    outputs = scores(7, topology, batch=2).log_softmax(dim=-1)
    lengths, targets = torch.tensor([7, 5]), torch.tensor([[1, 2, 2], [3, 1, 0]])
    found = loss(outputs, lengths, targets, torch.tensor([3, 2]))
    if topology == "ctc":
        log_z, _ = loss.denominator(outputs[:1], lengths[:1], False)
        torch.testing.assert_close(log_z, torch.zeros(1).double(), atol=1e-9, rtol=0)
        torch.testing.assert_close(found, ctc_loss(outputs, lengths, targets, torch.tensor([3, 2])))
    else:  # a label's later output can't follow another label
        assert (found < -numerator(outputs, lengths, targets, torch.tensor([3, 2]), topology, False)[0]).all()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("ctc_weight", [0.3, 2.0])
def test_the_ctc_term_is_added_with_its_weight(topology: str, ctc_weight: float) -> None:
    """Value and gradient: the term is −log Σ_{π → y} Π_t softmax(outputs_t)[π_t], for `ctc` the CTC loss."""
    targets, lengths = [[1, 2], [2], [3, 3]], [4, 2, 3]
    outputs = scores(4, topology, batch=3).requires_grad_()
    model, expected = ngram(3), []
    for outputs_TO, target, length in zip(outputs, targets, lengths, strict=True):
        sums = enumerated(outputs_TO[:length], topology)
        weights = {labels: math.exp(model.log_probability(labels)) * x for labels, x in sums.items()}
        mmi_loss = -torch.log(weights[tuple(target)] / torch.stack(list(weights.values())).sum())
        log_probs_TO = outputs_TO[:length].log_softmax(dim=1)
        if topology == "ctc":
            ctc_term = torch.nn.functional.ctc_loss(
                log_probs_TO, torch.tensor(target), [length], [len(target)], reduction="sum"
            )
        else:
            ctc_term = -enumerated(log_probs_TO, topology)[tuple(target)].log()
        expected.append(mmi_loss + ctc_weight * ctc_term)
    found = loss_of(mmi(3, topology, ctc_weight=ctc_weight), outputs, targets, lengths)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-9, rtol=0)
    weights_B = torch.tensor([1.0, -2.0, 0.5]).double()
    gradients = [torch.autograd.grad(x @ weights_B, outputs)[0] for x in (found, torch.stack(expected))]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("order", "leak"), quick([(2, 0.0), (3, 0.1), (4, 0.0)], lambda case: case[0] == 3))
def test_the_gradient_is_that_of_the_loss(topology: str, order: int, leak: float) -> None:
    loss = mmi(order, topology, leak, ctc_weight=0.2)
    outputs = scores(5, topology, batch=3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: loss_of(loss, x, [[1, 2, 2], [4], [1, 3]], [5, 4, 2]), outputs, fast_mode=False
    )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_occupancies_of_a_frame_sum_to_one(topology: str) -> None:
    outputs, lengths = scores(9, topology, batch=2), torch.tensor([9, 6])
    _, occupancy = Denominator(ngram(3), topology, 0.1, dense=False)(outputs, lengths, True)
    torch.testing.assert_close(occupancy.sum(dim=2), (torch.arange(9) < lengths[:, None]).double())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("order", [2, 3])
def test_the_leaky_denominator_follows_its_formula(topology: str, order: int) -> None:
    """After every frame, each state passes leak × the prior to all states; checked state by state."""
    model, leak = ngram(order), 0.3
    states = [(history, place) for history in model.states for place in ("within", "between")]

    def following(sums: dict, emitted: list[float]) -> dict:
        result = dict.fromkeys(states, 0.0)
        for (history, place), total in sums.items():
            last = history[-1]
            result[history, "between"] += total * emitted[0]
            if place == "within":
                result[history, "within"] += total * emitted[last if topology == "ctc" else last + V - 1]
            for label in range(1, V):
                if topology == "ctc" and place == "within" and label == last:
                    continue
                arc = model.after(history, label), "within"
                result[arc] += total * emitted[label] * model.probability(history, label)
        return result

    start = dict.fromkeys(states, 0.0) | {((START,), "between"): 1.0}
    sums, prior = start, dict.fromkeys(states, 0.0)
    for _ in range(WARM_UP):
        prior = {state: prior[state] + x / WARM_UP for state, x in sums.items()}
        sums = following(sums, [1.0] * output_count(topology, V))
        whole = sum(sums.values())
        sums = {state: x / whole for state, x in sums.items()}
    outputs = scores(5, topology)
    sums = start
    for emitted in outputs[0].exp().tolist():
        sums = following(sums, emitted)
        whole = sum(sums.values())
        sums = {state: x + leak * whole * prior[state] for state, x in sums.items()}
    expected = math.log(sum(x * model.probability(history, STOP) for (history, _), x in sums.items()))
    found, _ = Denominator(model, topology, leak, dense=order == 2)(outputs, torch.tensor([5]), False)
    assert float(found) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_an_utterance_alone_and_in_a_padded_batch(topology: str) -> None:
    outputs = scores(8, topology, batch=2).float()
    outputs[1, 5:] = torch.nan
    targets = [[1, 2, 2, 3], [4, 1]]
    both = outputs.clone().requires_grad_()
    batched = loss_of(mmi(3, topology, 0.1, 0.1), both, targets, [8, 5])
    batched.sum().backward()
    for row, length in ((0, 8), (1, 5)):
        alone = outputs[row : row + 1, :length].clone().requires_grad_()
        loss = loss_of(mmi(3, topology, 0.1, 0.1), alone, targets[row : row + 1])
        loss.sum().backward()
        torch.testing.assert_close(batched[row : row + 1], loss)
        torch.testing.assert_close(both.grad[row : row + 1, :length], alone.grad)
    assert not both.grad[1, 5:].any()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("ctc_weight", [0.0, 0.1])
def test_a_target_that_does_not_fit_has_an_infinite_loss(topology: str, ctc_weight: float) -> None:
    outputs = scores(3, topology, batch=2).requires_grad_()
    losses = loss_of(mmi(2, topology, 0.0, ctc_weight), outputs, [[1, 2, 3, 1], [1, 2]])
    assert losses.isfinite().tolist() == [False, True]
    assert losses[0] == torch.inf
    losses[1].backward()
    assert outputs.grad.isfinite().all()
    # Equal neighbours need a blank in one topology only.
    repeated = loss_of(mmi(2, topology), scores(2, topology), [[1, 1]])
    assert bool(repeated.isfinite()) == (topology == "hmm")


def test_a_label_that_was_never_seen_has_a_probability() -> None:
    assert -10 < ngram(3).log_probability([4, 4]) < ngram(3).log_probability([1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_thousands_of_frames_and_large_scores_neither_overflow_nor_vanish(topology: str, order: int) -> None:
    outputs = scores(6000, topology, scale=30.0).float().requires_grad_()
    target = [label for label in (1, 2, 3, 4) for _ in range(100)]
    loss = loss_of(mmi(order, topology, leak=1e-5), outputs, [target])
    loss.sum().backward()
    assert 0 < loss.item() < torch.inf
    assert outputs.grad.isfinite().all()
    assert outputs.grad.sum(dim=2).abs().max() < 1e-4  # both occupancies sum to one


def test_adding_a_number_to_a_frame_changes_nothing() -> None:
    outputs = scores(6, "hmm")
    moved = outputs + torch.arange(6).double()[:, None] * 10
    loss = mmi(3, "hmm", leak=0.1, ctc_weight=0.1)
    torch.testing.assert_close(loss_of(loss, moved, [[1, 2]]), loss_of(loss, outputs, [[1, 2]]))


def test_the_digest_depends_on_the_training_labels() -> None:
    assert ngram(3).digest == ngram(3).digest
    assert ngram(3).digest != ngram(3, histories=2).digest
    assert ngram(3).digest != estimate_labels(TARGETS[1:], V, 3, 100).digest
