"""Mechanisms from outside the package: names, faults, checks, and that code runs only if it is named."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from asr.attention import build_mechanism, build_self_attention, given_name, own, parse_name
from asr.attention.checks import run_checks
from asr.attention.spec import NoOptions
from asr.attention.table import class_named, code_digests, exchange, layer_names, mechanism_class
from asr.cli import main
from asr.config.names import alternatives
from asr.errors import UserError
from asr.files import file_digest

NYSTROM = Path(__file__).parents[2] / "docs" / "examples" / "nystrom.py"

MEAN = '''\
"""The mean of all values, with an option of every kind."""

from dataclasses import dataclass

import torch

from asr.attention import SoftmaxMechanism, both_lengths, option
from attention_ext.tensors import zero_padding


@dataclass
class Options:
    power: int = option(2, help="P", affects="result", letter="P", minimum=1, maximum=8)
    half: bool = option(False, help="h", affects="result")


class Mean(SoftmaxMechanism):
    options = Options
    source, time, memory = "a test", "N", "N"

    def __init__(self, name, backend, dropout, options):
        super().__init__(name, backend, dropout)

    def attend(self, q, k, v, query_lengths, key_lengths):
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        return self.dense(q, k, query_lengths, key_lengths).to(v.dtype) @ zero_padding(v, key_lengths)

    def dense(self, q, k, query_lengths, key_lengths):
        dtype = torch.promote_types(q.dtype, torch.float32)
        ones = zero_padding(torch.ones_like(q, dtype=dtype), query_lengths)
        keys = zero_padding(torch.ones_like(k, dtype=dtype), key_lengths)
        return ones @ keys.mT / q.shape[-1] / key_lengths.clamp(min=1)[:, None, None, None]
'''


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Function that writes the class `Mean` with a change, and returns the path of its file."""

    def write(before: str = "", after: str = "") -> str:
        assert before in MEAN
        (tmp_path / "mean.py").write_text(MEAN.replace(before, after) if before else MEAN)
        return str(tmp_path / "mean.py")

    return write


@pytest.mark.slow
def test_the_example_has_at_most_60_lines_and_passes_the_common_checks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(NYSTROM.read_text().splitlines()) <= 60
    assert main(["attention", "check", f"{NYSTROM}:Nystrom-32"]) == 0
    assert "nystrom:Nystrom-32: passes 51 checks" in capsys.readouterr().out


def test_nystrom_attention_equals_its_equations() -> None:
    """Eq. 13 and 14 with PyTorch's pseudoinverse; with a landmark for each position it is full attention."""
    q, k, v = torch.randn(3, 2, 2, 32, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    few_q, few_k = (x.unflatten(2, (4, 8)).mean(3) for x in (q, k))
    rows, small, columns = (
        (a @ b.mT / 6**0.5).softmax(-1) for a, b in ((q, few_k), (few_q, few_k), (few_q, k))
    )
    found = build_mechanism(given_name(f"{NYSTROM}:Nystrom-4:iterations=20"))(q, k, v)
    torch.testing.assert_close(found, rows @ torch.linalg.pinv(small) @ columns @ v, rtol=0, atol=1e-9)
    lengths = torch.tensor([32, 13])
    found, full = (build_mechanism(x)(q, k, v, lengths) for x in ("nystrom:Nystrom-32:iterations=20", "full"))
    torch.testing.assert_close(found, full, rtol=0, atol=1e-5)


def test_a_given_name_loads_code_and_a_stored_one_does_not(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint names a class: neither a file in the way nor Python's path is enough to run its code."""
    path = write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for stored in ("mean:Mean-2", f"{path}:Mean-2", "./mean.py:Mean-2", "full*1,mean:Mean-2*1"):
        with pytest.raises(UserError, match="is code that runs only if you name it: give attention="):
            layer_names(stored, 2)
    assert "mean" not in sys.modules
    assert given_name(f"full*1,{path}:Mean-3:half=true*1") == "full*1,mean:Mean-3:half=true*1"
    assert layer_names("mean:Mean-3", 2) == ["mean:Mean-3"] * 2
    assert parse_name("mean:Mean-02:half=false").name == "mean:Mean-2"
    assert parse_name("mean:Mean-2").arguments == {"power": 2, "half": False}
    assert exchange("mean:Mean") == "yes"
    assert code_digests("full*1,mean:Mean-2*1", "lsh-4") == {"mean": file_digest(path)}
    layer = build_self_attention("full", 12, 2)
    layer.set_mechanism("mean:Mean-2")
    assert layer.name == "mean:Mean-2"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full*3,./my-code/nystrom.py:Nystrom-32*9", ["full*3,./my-code/nystrom.py:Nystrom-32*9"]),
        (
            "./my-code/v-2/nystrom.py:Nystrom-16/32",
            ["./my-code/v-2/nystrom.py:Nystrom-16", "./my-code/v-2/nystrom.py:Nystrom-32"],
        ),
        (
            "clustered-25/50*3,./a-b/n.py:N-4:size=8*9",
            ["clustered-25*3,./a-b/n.py:N-4:size=8*9", "clustered-50*3,./a-b/n.py:N-4:size=8*9"],
        ),
        (
            "full*3,/x=y/a-b/n.py:N-4:size=8/16*9",
            ["full*3,/x=y/a-b/n.py:N-4:size=8*9", "full*3,/x=y/a-b/n.py:N-4:size=16*9"],
        ),
    ],
)
def test_folders_are_no_alternatives(name: str, expected: list[str]) -> None:
    """The path of a layer's file was divided where a folder has a hyphen."""
    assert alternatives([name]) == expected


def test_a_module_that_a_program_has_imported_is_given(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    monkeypatch.syspath_prepend(tmp_path)
    __import__("mean")
    assert build_mechanism("mean:Mean-2").name == "mean:Mean-2"
    assert code_digests("mean:Mean-2") == {"mean": file_digest(path)}


def test_an_installed_mechanism_has_a_name_of_its_own(
    write: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write()
    installed = tmp_path / "mean-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mean\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[asr.attention]\nmean-of = mean:Mean\n")
    monkeypatch.syspath_prepend(tmp_path)
    own.entry_points.cache_clear()
    own._installed.cache_clear()
    try:
        assert main(["completion", "words", "train", "", "attention=mean", "2"]) == 0
        assert capsys.readouterr().out == "attention=mean-of\n"
        assert main(["attention"]) == 0
        assert "mean:Mean" in capsys.readouterr().out
        assert "mean" not in sys.modules
        assert parse_name("mean-of-4:half=true").name == "mean-of-4:half=true"  # by a checkpoint, too
        assert class_named("mean-of-4").__name__ == "Mean"
        assert code_digests("mean-of-4") == {"mean": file_digest(path)}
        with pytest.raises(UserError, match=r"unknown attention 'mean-of'.*: expected one of .*mean-of-P"):
            parse_name("mean-of")
    finally:
        own.entry_points.cache_clear()
        own._installed.cache_clear()


@pytest.mark.parametrize(
    ("before", "after", "name", "expected"),
    [
        ("", "", "Mea-2", r"expected a class Mea in .*mean\.py, found Mean$"),
        ("", "", "Options-2", r"expected a subclass of SoftmaxMechanism, .*, found a class of object"),
        ("", "", "SoftmaxMechanism-2", r"expected a subclass of SoftmaxMechanism"),
        ("", "", "torch-2", r"expected a subclass of SoftmaxMechanism, .*, found <module 'torch'"),
        ("", "", "Mean", r"unknown attention 'mean:Mean'.*: expected one of mean:Mean-P \(capital letters"),
        ("", "", "Mean-x", "unknown attention 'mean:Mean-x'"),
        ("", "", "Mean-9", r"attention 'mean:Mean-9': power=9: expected a number 1 … 8"),
        ("", "", "Mean-2:whole=1", "unknown option 'whole=1', expected half=true | false"),
        ("", "", "Mean-2:half=maybe", r"half=maybe: expected true or false"),
        ("def attend", "def attends", "Mean-2", "'mean:Mean': expected a method attend, found none"),
        (', "N", "N"\n', ', "N", ""\n', "Mean-2", "expected text in the class attribute memory, found ''"),
        ("options = Options", "options = 3", "Mean-2", "expected a dataclass in the class attribute options"),
        ("@dataclass\n", "", "Mean-2", "expected a dataclass in the class attribute options, found <class"),
        ('option(False, help="h", affects="result")', "option()", "Mean-2", r"TypeError.*mean\.py, line 14"),
        ("    half: bool = option(False, help=\"h\", affects=\"result\")", "    half: bool = False", "Mean-2",
         r"option 'half': expected option\(…\), found False"),
        ("power: int", "Power: int", "Mean-2", "option 'Power': expected a name of small letters"),
        ("option(2", "option(0", "Mean-2", "option 'power': default 0, expected a number 1 … 8"),
        ("power: int", "power: str", "Mean-2", "option 'power': expected int, found <class 'str'>"),
        ('t")\n\n', 't", letter="H")\n\n', "Mean-2", "expected one option with a letter, found several"),
        ('t")\n\n', 't", only=("whole",))\n\n', "Mean-2", "only='whole', no option of this class"),
        ("dropout, options)", "dropout)", "Mean-2", r"Mean\.__init__: got an unexpected keyword arg"),
    ],
)  # fmt: skip
def test_faults_of_classes_and_names_are_one_line(
    before: str, after: str, name: str, expected: str, write: Callable[..., str]
) -> None:
    with pytest.raises(UserError, match=expected) as error:
        given_name(f"{write(before, after)}:{name}")
    assert "\n" not in str(error.value)


def test_a_file_alone_is_no_mechanism() -> None:
    for name in ("./mean.py", "./mean.py:", "./mean.py:3", "./mean.py:Mean-2,full"):
        with pytest.raises(UserError, match=r"expected a class of the file, e\.g\. \./mean\.py:Nystrom-32"):
            given_name(name)


def test_a_file_has_another_name_than_the_mechanisms_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "linear.py").write_text(MEAN)
    with pytest.raises(UserError, match="linear is a mechanism of this program; rename the file"):
        given_name(f"{tmp_path / 'linear.py'}:Mean-2")


def test_a_class_without_number_and_options_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(MEAN.replace(", dropout, options", ", dropout").replace("    options = Options\n", ""))
    assert parse_name(given_name(f"{path}:Mean")).arguments == {}
    assert mechanism_class("plain:Mean").options is NoOptions


@pytest.mark.parametrize(
    ("before", "after", "title", "failure"),
    [
        ("", "", "", ""),
        ("zero_padding(v, key_lengths)", "v", "An utterance is the same", "is not zero at padding"),
        (
            "key_lengths.clamp(min=1)[:, None, None, None]",
            "key_lengths.max()",
            "An utter",
            "differs by up to",
        ),
        ("ones @ keys.mT", "torch.rand_like(ones) @ keys.mT", "Two calls give the same", "a second call has"),
        ("backend, dropout)\n", "backend, 0.5)\n", "A layer that is switched", "dropout is 0.5, not 0.25"),
        ("ones_like(q", "ones_like(q.detach() + q", "", ""),
        ("@ zero_padding(v, ", "@ zero_padding(v.detach(), ", "Gradients equal finite", "Numerical gradient"),
        (".to(v.dtype) @", ".half().to(v.dtype) @", "`weights` @ v is the output", "differs by up to"),
        ("ones @", "1 / 0 * ones @", "Two calls", "ZeroDivisionError: division by zero (mean.py, line 32)"),
    ],
)
def test_the_checks_find_what_is_wrong(
    before: str, after: str, title: str, failure: str, write: Callable[..., str]
) -> None:
    outcomes = list(run_checks(given_name(f"{write(before, after)}:Mean-2")))
    found = {x.title: x.failure for x in outcomes if x.failure}
    assert bool(found) == bool(title), found
    assert any(x.startswith(title) and failure in why for x, why in found.items()) or not title, found
    assert not any("\n" in x for x in found.values())


@pytest.mark.parametrize(
    ("base", "module", "name"),
    [("SummaryMixing", "summary", "Mine"), ("LinearAttention", "linear", "Mine:causal=true")],
)
def test_mechanisms_of_every_kind_are_checked(base: str, module: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from asr.attention.{module} import {base}\n\n\nclass Mine({base}):\n    pass\n")
    outcomes = list(run_checks(given_name(f"{path}:{name}")))
    assert len(outcomes) >= 11
    assert [x for x in outcomes if x.failure] == []
    assert exchange("mine:Mine") == "no"
    with pytest.raises(UserError, match=r"can't be exchanged for 'mine:Mine|has parameters of its own"):
        build_self_attention("full", 12, 2).set_mechanism(f"mine:{name}")


def test_failing_checks_are_listed(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    path = write("zero_padding(v, key_lengths)", "v")
    assert main(["attention", "check", f"{path}:Mean-2"]) == 1
    printed = capsys.readouterr()
    assert "NaN or" in printed.out
    assert re.search(r"asr: mean:Mean-2: \d+ of 34 checks fail", printed.err)
    assert main(["attention", "check"]) == 1
    assert "asr attention check takes mechanisms" in capsys.readouterr().err
