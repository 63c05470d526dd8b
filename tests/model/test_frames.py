"""Schedules of frame rates: an oracle frame by frame, padding, times of labels, distances, options."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.attention import MECHANISMS, SelfAttention, build_self_attention, default_names
from asr.attention.layer import FrameRate
from asr.attention.table import look_ahead
from asr.config.schedule import Factor, Merging, joined_factors, layer_factors
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.encoder import Encoder
from asr.model.frames import merge, pool, restored, similar_runs, through_blocks
from asr.model.options import AugmentConfig, ModelConfig

SMALL: dict[str, Any] = {"layers": 3, "heads": 2, "head_dim": 8, "feedforward": 32, "dropout": 0.0}
LENGTHS = torch.tensor([37, 20, 1, 36])
MERGING = Merging(0.4, 2, 2)
MERGED = ["merge-0.4", "merge-0.5:at=1", "merge-0.6:cap=4,at=3"]


def encoder(frames: str, attention: str = "full", **options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(ModelConfig(**{**SMALL, **options, "frames": frames}), 10, attention).eval()


def attended(layer: SelfAttention, means: Tensor, counts: list[int]) -> Tensor:
    """Return what every mean [N, M] gets from all frames: a key for each frame that a mean stands for."""
    q, k, v = (
        x.unflatten(1, (layer.heads, -1)).transpose(0, 1)
        for x in (
            layer.query(means),
            layer.key(means).repeat_interleave(torch.tensor(counts), 0),
            layer.value(means).repeat_interleave(torch.tensor(counts), 0),
        )
    )
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return layer.output((weights @ v).transpose(0, 1).flatten(1))


def oracle(model: Encoder, features: Tensor) -> Tensor:
    """Return the states of one utterance [T, F], frame by frame and layer by layer."""
    x = model.subsampling(features[None], torch.tensor([len(features)]))[0]
    x, last = model.positions(x, torch.tensor([x.shape[1]]))[0], None
    for block, factor in zip(model.blocks, model.factors, strict=True):
        attention, feedforward = block.sublayers
        if isinstance(factor, int):
            runs = [list(range(len(x)))[start : start + factor] for start in range(0, len(x), factor)]
        elif factor is not last:  # runs are joined once
            runs = joined(x, factor)
        last = factor
        before = torch.stack([x[run].mean(0) for run in runs])
        after = before + attended(attention.sublayer, attention.norm(before), [len(run) for run in runs])
        after = after + feedforward.sublayer(feedforward.norm(after)[None], None)[0]
        x = torch.stack([x[t] + after[n] - before[n] for n, run in enumerate(runs) for t in run])
    return model.norm(x)


def joined(x: Tensor, merging: Merging) -> list[list[int]]:
    """Return the frames of each run of x [T, M]: the nearest runs are joined, one pair after the other."""
    runs = [[t] for t in range(len(x))]
    for _ in range(int(merging.share * len(x))):
        costs = []
        for n, (one, other) in enumerate(pairwise(runs)):
            if len(one) + len(other) <= merging.cap:
                apart = (x[one].double().mean(0) - x[other].double().mean(0)).square().sum()
                costs.append((float(apart) * len(one) * len(other) / (len(one) + len(other)), n))
        if not costs:
            break
        n = min(costs)[1]
        runs[n : n + 2] = [runs[n] + runs[n + 1]]
    return runs


@pytest.mark.parametrize("frames", ["2", "1,2*2", "1,2,4", "3,1,2", "1,5,5", "64", *MERGED])
@pytest.mark.parametrize("subsampling", [1, 4])
@torch.no_grad()
def test_states_equal_the_oracle_s_alone_and_with_any_padding(frames: str, subsampling: int) -> None:
    """The oracle takes each block for itself: within a run of blocks with one schedule, the means stay."""
    model = encoder(frames, subsampling=subsampling)
    features = torch.randn(4, 40, 10)
    features[torch.arange(40) >= LENGTHS.unsqueeze(1)] = float("nan")
    states, lengths = model(features, LENGTHS)
    assert lengths.tolist() == [-(-length // subsampling) for length in LENGTHS.tolist()]
    for own, length, found, count in zip(features, LENGTHS, states, lengths, strict=True):
        torch.testing.assert_close(found[:count], oracle(model, own[:length]), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("attention", "block", "frames"),
    [(name, "transformer", frames) for name in default_names() for frames in ("1,2,3", MERGED[0])]
    + [(name, block, "1,2,3") for name in ("full", "near-100") for block in ("conformer", "ebranchformer")],
)
@torch.no_grad()
def test_every_mechanism_ignores_padding_and_the_batch(attention: str, block: str, frames: str) -> None:
    small = {"i-clustered-100": "i-clustered-5:topk=4", "near-100": "near-5:topk=4"}
    model = encoder(frames, small.get(attention, attention), block=block, convolution_kernel=5)
    features = torch.randn(4, 40, 10)
    features[torch.arange(40) >= LENGTHS.unsqueeze(1)] = float("nan")
    states, _ = model(features, LENGTHS)
    for i, length in enumerate(LENGTHS.tolist()):
        alone, _ = model(features[i : i + 1, :length], LENGTHS[i : i + 1])
        torch.testing.assert_close(states[i, :length], alone[0], rtol=0, atol=2e-5)
    assert set(MECHANISMS) == {name.rstrip("-0123456789") for name in default_names()}


@pytest.mark.parametrize("frames", ["1,1,1", "merge-0", "merge-0:cap=4,at=1"])
@torch.no_grad()
def test_factors_of_one_change_nothing(frames: str) -> None:
    features = torch.randn(4, 40, 10)
    assert torch.equal(encoder(frames)(features, LENGTHS)[0], encoder("1")(features, LENGTHS)[0])


@given(
    st.lists(st.integers(-9, 9), max_size=40), st.sampled_from([0.1, 0.4, 0.5]), st.sampled_from([2, 3, 8])
)
@settings(deadline=None, max_examples=150)
def test_the_nearest_runs_are_joined_the_earlier_of_equal_ones(
    values: list[int], share: float, cap: int
) -> None:
    """Whole numbers have many ties, which rounding doesn't break in pairs; longer runs get other values."""
    x, merging = torch.tensor(values, dtype=torch.float32).view(-1, 1), Merging(share, cap, 1)
    if cap > 2:
        x = x + torch.randn(len(x), 3, generator=torch.Generator().manual_seed(len(x)))
    batch = torch.full((2, len(x) + 7, x.shape[1]), 1e30)
    batch[:, : len(x)] = x
    batch[1, len(x) :] = float("nan")
    runs = similar_runs(batch, torch.tensor([len(x)] * 2), merging)
    expected = [n for n, run in enumerate(joined(x, merging)) for _ in run]
    assert runs[:, : len(x)].tolist() == [expected] * 2


@torch.no_grad()
def test_positions_of_joined_frames_are_means() -> None:
    """Rotary positions; sinusoidal ones are added before and averaged with the frames."""
    layer = build_self_attention("full", 16, 2, rotary_base=100.0).eval()
    x, run_BT = torch.randn(1, 5, 16), torch.tensor([[0, 1, 1, 1, 2]])
    means, lengths, rate = merge(x, torch.tensor([5]), run_BT)
    assert (lengths.tolist(), rate.places_BN.tolist()) == ([3], [[0, 2, 4]])
    torch.testing.assert_close(rate.log_sizes_BN.exp(), torch.tensor([[1.0, 3, 1]]))
    found = layer(means, lengths, FrameRate(1, None, rate.places_BN))
    torch.testing.assert_close(found, layer(means, lengths, FrameRate(2, None)), rtol=0, atol=1e-5)
    assert (found - layer(means, lengths)).abs().max() > 1e-4


@given(st.integers(0, 20), st.integers(0, 6), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_means_stand_for_their_frames(valid: int, padding: int, factor: int) -> None:
    """Weighted by size, means have the sum of the valid frames; means that stay leave them as they are."""
    x = torch.arange(2.0 * (valid + padding)).view(1, -1, 2)
    x[:, valid:] = float("nan")
    means, lengths, rate = pool(x, torch.tensor([valid]), factor)
    count = -(-valid // factor)
    assert lengths.tolist() == [count]
    sizes = torch.ones(count) if rate is None else torch.full((count,), float(factor))
    if rate is not None and rate.log_sizes_BN is not None:
        sizes = factor * rate.log_sizes_BN[0, :count].exp()
    torch.testing.assert_close((sizes[:, None] * means[0, :count]).sum(0), x[0, :valid].sum(0))
    assert factor == 1 or not means[:, count:].any()
    torch.testing.assert_close(restored(x, means, means, factor), x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("frames", ["1,2,2", "runs"])
def test_gradients_are_those_of_finite_differences(frames: str) -> None:
    """Also with given runs: which frames are joined has no gradient."""
    model = encoder(frames.replace("runs", "1"), heads=1, head_dim=2, feedforward=4).double()
    lengths, run_BT = torch.tensor([3, 1]), torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]])
    features = torch.randn(2, 4, 10, dtype=torch.float64, requires_grad=True)

    def states(features: Tensor) -> Tensor:
        if frames != "runs":
            found, counts = model(features, lengths)
        else:
            x, counts = model.subsampling(features, lengths)
            found = through_blocks(model.blocks, model.factors, x, counts, run_BT=run_BT)
        return torch.cat([own[:count] for own, count in zip(found, counts, strict=True)])

    assert torch.autograd.gradcheck(states, (features,))


@pytest.mark.parametrize("frames", ["1,2*2", MERGED[0]])
def test_every_parameter_gets_gradients_that_padding_does_not_change(frames: str) -> None:
    model = encoder(frames, "i-clustered-5:topk=4").train()

    def gradients(features: Tensor, lengths: Tensor) -> Tensor:
        model.zero_grad()
        states, frames = model(features, lengths)
        states[0, : frames[0]].square().sum().backward()
        return torch.cat([x.grad.flatten() for x in model.parameters()])

    features = torch.randn(2, 40, 10)
    alone = gradients(features[:1, :37], LENGTHS[:1])
    features[torch.arange(40) >= LENGTHS[:2].unsqueeze(1)] = float("nan")
    assert (alone - gradients(features, LENGTHS[:2])).norm() <= 1e-4 * alone.norm()


@pytest.mark.parametrize("frames", ["1,2*2", MERGED[0]])
@torch.no_grad()
def test_taps_see_the_encoder_s_rate_and_may_change_it(frames: str) -> None:
    """Intermediate losses and self-conditioning work on labels, whose rate is the encoder's."""
    model, features = encoder(frames), torch.randn(4, 40, 10)
    seen: list[Tensor] = []

    def tap(number: int, states: Tensor) -> Tensor:
        seen.append(states)
        return states + (0 if number == 1 else 1e-3 * states)

    plain, _ = model(features, LENGTHS)
    tapped, _ = model(features, LENGTHS, lambda number, states: states)
    keep = torch.arange(40) < LENGTHS.unsqueeze(1)
    torch.testing.assert_close(tapped[keep], plain[keep], rtol=0, atol=1e-5)
    changed, _ = model(features, LENGTHS, tap)
    assert [x.shape[1] for x in seen] == [40, 40]
    assert not torch.equal(changed, plain)


@torch.no_grad()
def test_distances_count_in_frames_of_the_encoder() -> None:
    """Rotary positions of means are as far apart as the runs that they stand for."""
    layer = build_self_attention("full", 16, 2, rotary_base=100.0).eval()
    assert isinstance(layer, SelfAttention)
    x, spread = torch.randn(1, 9, 16), torch.zeros(1, 27, 16)
    spread[:, ::3] = x
    for short, long in zip(layer.project(x, 3), layer.project(spread), strict=True):
        torch.testing.assert_close(short, long[:, :, ::3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["local-2", "local-3:right=0", "local-2:right=1,chunk=4", "local-0"])
@pytest.mark.parametrize("frames", ["2", "1,3", "4,1", "3,2"])
def test_look_ahead_includes_the_runs(name: str, frames: str) -> None:
    """It is the farthest frame that reaches an output, tried for every frame."""
    torch.manual_seed(0)
    model = encoder(frames, name, layers=2, positions="none")
    x = torch.randn(1, 96, 10, requires_grad=True)
    states, _ = model(x, torch.tensor([96]))
    ahead = []
    for t in range(48):  # the window ends before the utterance
        (gradient,) = torch.autograd.grad(states[0, t, 0], x, retain_graph=True)
        ahead.append(int(gradient[0].abs().sum(-1).nonzero().max()) - t)
    assert look_ahead(name, 2, frames) == max(ahead)
    assert look_ahead("full", 2, frames) is None
    assert look_ahead(name, 2, "merge-0.4") is None


@pytest.mark.parametrize(
    ("frames", "layers", "expected"),
    [
        ("2", 3, [2, 2, 2]),
        ("1,2*2", 3, [1, 2, 2]),
        ("1,2*", 3, [1, 2, 2]),
        ("1*,2*2", 5, [1, 1, 1, 2, 2]),
        ("1,2*", 1, [1]),
        ("1*1,64*2", 3, [1, 64, 64]),
        ("4,2,1", 3, [4, 2, 1]),
        ("merge-0.4", 3, [1, MERGING, MERGING]),
    ],
)
def test_a_schedule_is_parsed_and_written(frames: str, layers: int, expected: list[Factor]) -> None:
    assert layer_factors(frames, layers) == expected
    assert layer_factors(joined_factors(expected), layers) == expected


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ("1,2", "frames=1,2: expected factors for 3 layers, found 2"),
        ("2*4,1*", r"frames=2\*4,1\*: expected factors for 3 layers, found 4"),
        ("1*,2*", "expected one number of layers to be left out, found several"),
        ("2*4", "expected factors for 3 layers, found 4"),
        ("0", r"expected a factor of 1 … 64 for each layer \(1,2\*3; 1,2\*\) or for all \(2\), found '0'"),
        ("1,-2*2", "found '-2\\*2'"),
        ("1,0.5*2", "found '0.5\\*2'"),
        ("65", "found '65'"),
        ("1,,2", "found ''"),
        ("", "found ''"),
        ("half", "found 'half'"),
        ("pad-10", "frames=pad-10: expected inputs that Whisper pads to 30 s .*, found others"),
        ("merge-0.4:at=4", "frames=merge-0.4:at=4: expected one of 3 layers, found at=4"),
        ("merge-0.6", "frames=merge-0.6: expected a share of at most 0.5 with cap=2, found 0.6"),
        ("merge-0.4:cap=1", "frames=merge-0.4:cap=1: cap=1: expected a number 2 … 64"),
        ("merge-0.4:cap=x", "frames=merge-0.4:cap=x: cap=x: expected a whole number"),
        ("merge-half", "frames=merge-half: share=half: expected a number"),
        ("1,merge-0.4*2", r"found 'merge-0.4\*2'"),
    ],
)
def test_other_schedules_are_refused_in_one_line(frames: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        layer_factors(frames, 3)


def test_frames_are_stored_with_the_model_and_can_be_exchanged(tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, frames="1,2*2")
    torch.manual_seed(0)
    model = AcousticModel(AcousticModelConfig(model=config), 5).eval()
    audio, lengths = torch.randn(2, 8000), torch.tensor([8000, 5000])
    with torch.no_grad():
        halved, frames = model(audio, lengths)
        again = AcousticModel.from_state(model.state(), 5, "model")
        assert torch.equal(again(audio, lengths)[0], halved)
        again.set_frames("1,1,1")
        assert again.config.model.frames == "1"
        assert again.digest() != model.digest()
        full, same = again(audio, lengths)
    assert torch.equal(frames, same)  # as many frames for as many labels
    assert not torch.equal(full, halved)
    with pytest.raises(UserError, match="frames=2,2: expected factors for 3 layers, found 2"):
        again.set_frames("2,2")


def test_another_spelling_of_the_schedule_is_the_same_model() -> None:
    """`asr decode` wrote the hypotheses of frames=1,2* and of frames=1,2*2 to two folders."""
    model = AcousticModel(AcousticModelConfig(model=ModelConfig(**SMALL, frames="1,2*")), 5)
    digest = model.digest()
    model.set_frames("1,2,2")
    assert (model.config.model.frames, model.digest()) == ("1,2*", digest)


@torch.no_grad()
def test_each_batch_of_a_training_draws_one_of_the_schedules() -> None:
    torch.manual_seed(0)
    schedules = ["1", "1,2*2"]
    model = AcousticModel(AcousticModelConfig(model=ModelConfig(**SMALL)), 5, AugmentConfig(frames=schedules))
    features, lengths = torch.randn(2, 30, model.config.features.mel_bins), torch.tensor([30, 17])
    expected = []
    for frames in reversed(schedules):
        model.set_frames(frames)
        expected.append(model.eval().emit(features, lengths)[0][-1])
    drawn = [model.train().emit(features, lengths)[0][-1] for _ in range(20)]
    which = [[torch.equal(x, of_schedule) for of_schedule in expected] for x in drawn]
    assert all(sum(x) == 1 for x in which)
    assert 4 < sum(x[0] for x in which) < 16
    assert torch.equal(model.eval().emit(features, lengths)[0][-1], expected[-1])


def test_a_schedule_to_draw_must_fit_the_layers() -> None:
    with pytest.raises(UserError, match=r"^augment\.frames=1,2: expected factors for 3 layers, found 2"):
        AcousticModel(AcousticModelConfig(model=ModelConfig(**SMALL)), 5, AugmentConfig(frames=["1,2"]))
