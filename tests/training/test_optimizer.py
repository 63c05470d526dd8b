"""The optimiser and its learning rate schedule."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch

from asr.training.muon import orthogonalise
from asr.training.optimizer import build_optimizer, rate_factor
from asr.training.options import OptimizerConfig


def test_vectors_are_not_decayed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    optimizer = build_optimizer(dict(model.named_parameters()), OptimizerConfig(weight_decay=0.1))
    decayed = [x.shape for group in optimizer.param_groups if group["weight_decay"] for x in group["params"]]
    assert decayed == [torch.Size([4, 3])]


def test_tables_of_biases_are_not_decayed() -> None:
    """Those of HyperMixing, one row a head, were decayed and orthogonalised like matrices."""
    parameters = {"blocks.0.read.hidden_bias_HD": torch.nn.Parameter(torch.ones(2, 3))}
    for name in ("adamw", "muon"):
        groups = build_optimizer(parameters, OptimizerConfig(name, weight_decay=0.1)).param_groups
        (group,) = [group for group in groups if group["params"]]
        assert group["weight_decay"] == 0
        assert not group.get("hidden")


def test_adadelta_steps_by_the_ratio_of_averages() -> None:
    """Zeiler 2012, algorithm 1."""
    weight = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    config = OptimizerConfig("adadelta", learning_rate=1.0, weight_decay=0.0)
    optimizer = build_optimizer({"weight": weight}, config)
    x, gradients, updates = 2.0, 0.0, 0.0
    for _ in range(5):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
        gradient = 2 * x
        gradients = 0.95 * gradients + 0.05 * gradient**2
        update = -((updates + 1e-6) ** 0.5) / (gradients + 1e-6) ** 0.5 * gradient
        updates = 0.95 * updates + 0.05 * update**2
        x += update
    assert weight.item() == pytest.approx(x, rel=1e-9)


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8)])
def test_orthogonalised_matrices_keep_their_singular_vectors(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    result = u.mT @ orthogonalise(matrices) @ v.mT
    singular = result.diagonal(dim1=1, dim2=2)
    assert 0.5 < singular.min() < singular.max() < 1.3
    torch.testing.assert_close(result, torch.diag_embed(singular))


def hidden_and_other_parameters() -> dict[str, torch.nn.Parameter]:
    """Parameters of an encoder layer and of a head, with gradients."""
    random = torch.Generator().manual_seed(1)
    shapes = {
        "encoder.blocks.0.wide": (8, 24),
        "encoder.blocks.0.tall": (24, 8),
        "encoder.blocks.1.query": (8, 8),
    }
    shapes |= {"encoder.blocks.0.bias": (8,), "encoder.blocks.0.kernel": (8, 1, 3), "head.weight": (5, 8)}
    parameters = {name: torch.nn.Parameter(torch.randn(*x, generator=random)) for name, x in shapes.items()}
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=random)
    return parameters


def steps(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter], number: int) -> None:
    for _ in range(number):
        for parameter in parameters.values():
            parameter.grad = (parameter * 3).sin().detach()
        optimizer.step()


def test_muon_is_that_of_torch_for_matrices_of_layers_and_adamw_for_the_rest() -> None:
    """`torch.optim.Muon` computes in bfloat16."""
    ours, theirs = hidden_and_other_parameters(), hidden_and_other_parameters()
    before = {name: x.detach().clone() for name, x in ours.items()}
    config = OptimizerConfig("muon", learning_rate=0.01, weight_decay=0.1)
    steps(build_optimizer(ours, config), ours, 3)
    hidden = [name for name, x in theirs.items() if "blocks" in name and x.dim() == 2]
    assert len(hidden) == 3
    options = {"lr": 0.01, "weight_decay": 0.1}
    muon = torch.optim.Muon([theirs[x] for x in hidden], adjust_lr_fn="match_rms_adamw", **options)
    steps(muon, theirs, 3)
    rest = {name: x for name, x in theirs.items() if name not in hidden}
    steps(build_optimizer(rest, replace(config, name="adamw")), rest, 3)
    for name, parameter in ours.items():
        if name in hidden:
            change, wanted = parameter - before[name], theirs[name] - before[name]
            assert (change - wanted).norm() < 0.03 * wanted.norm()
        else:
            assert torch.equal(parameter, theirs[name])


def test_muon_goes_on_from_its_state() -> None:
    config = OptimizerConfig("muon", learning_rate=0.01)
    parameters, others = hidden_and_other_parameters(), hidden_and_other_parameters()
    first = build_optimizer(parameters, config)
    steps(first, parameters, 2)
    second = build_optimizer(others, config)
    for name, parameter in parameters.items():
        others[name].data.copy_(parameter)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer, updated in ((first, parameters), (second, others)):
        steps(optimizer, updated, 2)
    assert all(torch.equal(x, others[name]) for name, x in parameters.items())


def test_the_learning_rate_warms_up_and_decays_to_its_final_ratio() -> None:
    schedule = OptimizerConfig(warmup_steps=10)
    rates = [rate_factor(step, 100, schedule) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.01)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
