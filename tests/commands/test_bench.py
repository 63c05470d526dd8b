"""`asr bench`: figures for every name, length and pass; errors that name the option."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from asr.commands.bench import Options, run
from asr.errors import UserError


def test_figures_of_every_name_length_and_pass(tmp_path: Path) -> None:
    text = io.StringIO()
    names = ["full", "i-clustered-4@reference", "clustered-4"]
    options = Options(
        attentions=names,
        lengths=[20, 30],
        heads=2,
        head_dim=8,
        rounds=3,
        memory=True,
        out=str(tmp_path / "b.json"),
    )
    timings = run([], options, console=Console(file=text, width=100))
    assert [(t.length, t.passes, t.name) for t in timings] == [
        (length, passes, name)
        for length in (20, 30)
        for passes in ("forward", "forward+backward")
        for name in names
    ]
    assert all(t.median_s > 0 and t.quartiles_s[0] <= t.median_s <= t.quartiles_s[1] for t in timings)
    assert all(t.ratio == 1 for t in timings if t.name == "full")
    record = json.loads((tmp_path / "b.json").read_text())
    assert len(record["timings"]) == len(timings)
    assert set(record["memory_bytes"]) == set(names)
    assert "i-clustered-4@reference" in text.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attentions": ["nonsense-3"]}, "nonsense"),
        ({"dtype": "int8"}, "dtype=int8"),
        ({"clock": "sun"}, "clock=sun"),
        ({"lengths": [0]}, "lengths="),
        ({"rounds": 0}, "rounds=0"),
        ({"attentions": ["peer:clustered-4"]}, "pytorch-fast-transformers"),
    ],
)
def test_bad_options(change: dict[str, object], message: str) -> None:
    if message.startswith("pytorch"):
        try:
            import fast_transformers  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("pytorch-fast-transformers is installed")
    with pytest.raises(UserError, match=message):
        run([], Options(**{"lengths": [8], **change}))  # type: ignore[arg-type]
