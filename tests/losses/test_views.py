"""Intermediate losses, self-conditioning and consistency of views against their equations."""

import pytest
import torch
from torch import Tensor, nn

from asr.errors import UserError
from asr.losses.loss import CTCLoss
from asr.losses.options import LossConfig
from asr.losses.views import disagreement, training_loss
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.augment import with_more_time_masks
from asr.model.options import AugmentConfig, FeatureConfig, ModelConfig
from asr.training.config import train_options
from asr.training.recognition import halved

TOKENS, TOKEN_LENGTHS = torch.tensor([[1, 2, 2], [3, 0, 0]]), torch.tensor([3, 1])
LENGTHS = torch.tensor([9, 5])


def outputs(count: int, batch: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(batch, 9, 4, generator=generator, dtype=torch.float64).log_softmax(-1)
        for _ in range(count)
    ]


def ctc(log_probs: Tensor) -> Tensor:
    return CTCLoss()(log_probs, LENGTHS, TOKENS, TOKEN_LENGTHS)


def test_intermediate_losses_share_their_weight() -> None:
    """Lee and Watanabe 2021, equation 7, with the mean over several blocks."""
    found = outputs(3)
    config = LossConfig(intermediate=[3, 6])
    expected = 0.7 * ctc(found[2]) + 0.3 * (ctc(found[0]) + ctc(found[1])) / 2
    assert torch.allclose(training_loss(CTCLoss(), config, found, LENGTHS, TOKENS, TOKEN_LENGTHS), expected)
    alone = training_loss(CTCLoss(), LossConfig(), found[2:], LENGTHS, TOKENS, TOKEN_LENGTHS)
    assert torch.equal(alone, ctc(found[2]))


def test_two_views_follow_the_paper() -> None:
    """Yao et al. 2024, equations 2 and 3, one utterance and frame at a time."""
    one, other = outputs(2)
    both = torch.cat((one, other)).requires_grad_()
    config = LossConfig(consistency=0.2)
    found = training_loss(CTCLoss(), config, [both], LENGTHS.repeat(2), TOKENS, TOKEN_LENGTHS)
    for i, length in enumerate(LENGTHS.tolist()):
        difference = 0.0
        for t in range(length):
            p, q = one[i, t].exp(), other[i, t].exp()
            difference += 0.5 * float((q * (q / p).log()).sum() + (p * (p / q).log()).sum())
        expected = 0.5 * (ctc(one)[i] + ctc(other)[i]) + 0.2 * difference
        assert float(found[i].detach()) == pytest.approx(float(expected))


def test_the_targets_of_consistency_carry_no_gradient() -> None:
    """The gradient of KL(sg(q) ‖ softmax(z)) by z is softmax(z) − q."""
    z, w = outputs(2)
    z.requires_grad_()
    disagreement(z, w, LENGTHS).sum().backward()
    expected = 0.5 * (z.detach().softmax(-1) - w.softmax(-1))
    expected[1, 5:] = 0
    assert z.grad is not None
    assert torch.allclose(z.grad, expected)


def test_padding_does_not_disagree() -> None:
    one, other = outputs(2)
    before = disagreement(one, other, LENGTHS)
    one[1, 5:] = float("nan")
    assert torch.equal(disagreement(one, other, LENGTHS), before)


def model(conditioned: bool = False, **augment: int) -> AcousticModel:
    torch.manual_seed(0)
    architecture = ModelConfig(
        layers=4, heads=2, head_dim=8, feedforward=16, dropout=0.0, self_conditioned=conditioned
    )
    config = AcousticModelConfig(features=FeatureConfig(mel_bins=20), model=architecture, intermediate=[1, 3])
    return AcousticModel(config, 5, AugmentConfig(**augment))  # type: ignore[arg-type]


def test_intermediate_outputs_share_the_head_and_exist_only_in_training() -> None:
    trained = model()
    features, lengths = torch.randn(2, 12, 20), torch.tensor([12, 7])
    states: list[Tensor] = []
    for block in trained.encoder.blocks:
        block.register_forward_hook(lambda module, inputs, output: states.append(output))
    found, frames = trained.train().emit(features, lengths)
    assert frames.tolist() == [12, 7]
    for log_probs, state in zip(found, (states[0], states[2], states[3]), strict=True):
        assert torch.equal(log_probs, trained.head(trained.encoder.norm(state)))
    assert len(trained.eval().emit(features, lengths)[0]) == 1


def test_a_self_conditioned_model_adds_posteriors_to_the_next_input() -> None:
    """Nozaki and Komatsu 2021, equation 10; in evaluation as in training."""
    conditioned = model(conditioned=True).eval()
    assert conditioned.condition is not None
    inputs: list[Tensor] = []
    states: list[Tensor] = []
    for block in conditioned.encoder.blocks:
        block.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        block.register_forward_hook(lambda module, args, output: states.append(output))
    found, _ = conditioned.emit(torch.randn(2, 12, 20), torch.tensor([12, 7]))
    assert torch.equal(inputs[2], states[1])
    for number, log_probs in zip((1, 3), found, strict=False):
        added = conditioned.condition(log_probs.exp())
        assert torch.allclose(inputs[number], states[number - 1] + added, atol=1e-6)
    restored = AcousticModel.from_state(conditioned.state(), 5, "test")
    assert isinstance(restored.condition, nn.Linear)
    assert restored.config.intermediate == [1, 3]


def test_views_are_the_same_utterances_masked_differently() -> None:
    augmented = model(time_mask_every=10, time_mask_frames=4).train()
    audio, lengths = 0.1 * torch.randn(2, 8000), torch.tensor([8000, 5000])
    plain, frames = model().eval().input(audio, lengths)
    views, view_frames = augmented.input(audio, lengths, views=2)
    assert view_frames.tolist() == frames.tolist() * 2
    first, second = views.split(2)
    assert not torch.equal(first, second)
    for view in (first, second):
        shown = view != 0
        assert torch.equal(view[shown], plain[shown])
    assert with_more_time_masks(AugmentConfig(time_mask_every=100)).time_mask_every == 40


def test_two_views_halve_the_batch() -> None:
    data = halved(train_options(["data.frames_per_batch=5001", "data.utterances_per_batch=5"]).data)
    assert (data.frames_per_batch, data.utterances_per_batch) == (2500, 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.layers=4", "loss.intermediate=[4]"], r"intermediate=\[4\]: expected blocks before the last"),
        (["model.self_conditioned=true"], r"self_conditioned=true: expected loss.intermediate"),
        (["loss.consistency=0.2"], r"loss.consistency=0.2: the two views differ by SpecAugment"),
    ],
)
def test_options_that_do_not_fit_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_options(overrides)
