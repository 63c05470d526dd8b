"""Mechanisms of the user's own that fail: one line with file and line."""

from pathlib import Path

import pytest
import torch

from asr.attention import build_self_attention
from asr.attention.checks import run_checks
from asr.attention.own import bad_gradient_again, nan_again
from asr.attention.table import given_name
from asr.errors import UserError

CODE = """import dataclasses; from asr.attention import SoftmaxMechanism, option
O = dataclasses.make_dataclass("O", [("m", int, option(3, help="m", affects="result", letter="M"))])
class A(SoftmaxMechanism):
    options = O
    source = "x"
    time = memory = "N"
    def __init__(self, name, backend, dropout, options):
        super().__init__(name, backend, dropout); INIT
    def attend(self, q, k, v, query_lengths, key_lengths):
        BODY
    def dense(self, q, k, query_lengths, key_lengths):
        return (q @ k.mT).softmax(-1)
"""


@pytest.mark.parametrize(
    ("name", "init", "body", "expected"),
    [
        (
            "exits_at_start",
            "raise SystemExit(0)",
            "return v",
            r"SystemExit: 0 \(exits_at_start\.py, line 8\)",
        ),
        ("exits", "pass", "raise SystemExit(0)", r"SystemExit: 0 \(exits\.py, line 10\)"),
        ("raises", "pass", "raise KeyError('x')", r"KeyError: no x \(raises\.py, line 10\)"),
        (
            "controls",
            "pass",
            "raise ValueError('\\x1b[31mred\\nx')",
            r"\\x1b\[31mred \(controls\.py",
        ),
        (
            "shape",
            "pass",
            "return v[:, :, 1:]",
            r"\[2, 2, 5, 4\] from attend, found \[2, 2, 4, 4\]",
        ),
        ("nothing", "pass", "return None", r"expected a tensor .* found None \(nothing\.py, line 9\)"),
        ("not_finite", "pass", "return v * float('nan')", r"found NaN \(not_finite\.py, line 9\)"),
    ],
)
def test_a_failure_is_one_line(name: str, init: str, body: str, expected: str, tmp_path: Path) -> None:
    """Each ended with a traceback through the model; SystemExit(0) ended a training with status 0."""
    file = tmp_path / f"{name}.py"
    file.write_text(CODE.replace("INIT", init).replace("BODY", body))
    full = given_name(f"{file}:A-3")
    with pytest.raises(UserError, match=rf"^attention '{name}:A-3': .*{expected}") as caught:
        build_self_attention(full, model_dim=8, heads=2)(torch.randn(2, 5, 8), torch.tensor([5, 3]))
    assert caught.value.line.isprintable()
    first = next(run_checks(full)).failure
    assert first
    assert first.isprintable()


def test_a_later_nan_is_found_again(tmp_path: Path) -> None:
    """Only the first output of a mechanism was looked at."""
    file = tmp_path / "later.py"
    code = CODE.replace("INIT", "self.bad = False")
    code = code.replace("BODY", "return v * (float('nan') if self.bad else 1)")
    file.write_text(code)
    line = code[: code.index("def attend")].count("\n") + 1
    layer = build_self_attention(given_name(f"{file}:A-3"), model_dim=8, heads=2)
    inputs = torch.randn(2, 5, 8), torch.tensor([5, 3])
    assert layer(*inputs).isfinite().all()
    assert nan_again(layer, lambda: layer(*inputs)) == ""
    layer.mechanism.bad = True  # type: ignore[union-attr]
    assert layer(*inputs).isnan().any()
    assert f"found NaN (later.py, line {line})" in nan_again(layer, lambda: layer(*inputs))
    plain = build_self_attention("full", model_dim=8, heads=2)
    assert nan_again(plain, lambda: 1 / 0) == ""


@pytest.mark.parametrize(
    ("init", "body", "expected"),
    [
        ("pass", "return v + (v - v).square().sum(-1, True).sqrt()", "found NaN (gradient.py, line 9)"),
        (
            "self.scale = torch.nn.Parameter(torch.zeros(()))",
            "return v + self.scale.sqrt()",
            "found inf (gradient.py, line 9)",
        ),
        ("pass", "return v.square()", ""),
    ],
)
def test_a_bad_gradient_names_the_mechanism(init: str, body: str, expected: str, tmp_path: Path) -> None:
    """A training skipped its steps, "the gradient norm is nan", without a word on the mechanism."""
    file = tmp_path / "gradient.py"
    file.write_text("import torch; " + CODE.replace("INIT", init).replace("BODY", body))
    name = given_name(f"{file}:A-3")
    layers = torch.nn.ModuleList(build_self_attention(name, model_dim=8, heads=2) for _ in range(2))
    lengths = torch.tensor([5, 3])

    def loss() -> torch.Tensor:
        x = torch.ones(2, 5, 8)
        for layer in layers:
            x = x + layer(x, lengths)
        return x.sum()

    loss().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in layers.parameters()) == (not expected)
    assert expected in bad_gradient_again(layers, loss)
    assert bool(bad_gradient_again(layers, loss)) == bool(expected)
    assert bad_gradient_again(layers, lambda: loss() * float("nan")) == ""
