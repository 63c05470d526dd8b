"""What operations are compared with, and from which length they are faster."""

from dataclasses import replace

import pytest

from asr.experiment.bench import measured_names, row_of, time_in_turns
from asr.experiment.crossings import causal_form, crossings, rival, speed_ups
from asr.experiment.options import BenchOptions
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.measure import Seconds

LAYER = Problem(8, 8, "fp32", "cpu", 0, unit="layer", feedforward=96, batch=2, length=40)


@pytest.mark.slow
def test_causal_forms_are_compared_with_the_causal_baseline() -> None:
    names = measured_names(
        BenchOptions(attentions=["full", "lsh-1", "agglomerative-8@reference"], causal="both", unit="layer")
    )
    assert names == [
        "full",
        "full:causal=true",
        "lsh-1",
        "agglomerative-8@reference",
        "agglomerative-8:causal=true@reference",
    ]
    assert [rival(name, "full", names) for name in names] == [
        "full",
        "full:causal=true",
        "full",
        "full",
        "full:causal=true",
    ]
    assert rival(names[-1], "full", ["full", names[-1]]) == "full"
    assert causal_form("agglomerative-8:causal=true") is None
    rows = time_in_turns(dict.fromkeys(names, LAYER), "forward", "cpu", 1, 3, 0.0)
    times = {row.variant: row.forward_cpu_s or 0.0 for row in rows}
    assert speed_ups(rows, "full", "cpu")[-1] == pytest.approx(times["full:causal=true"] / times[names[-1]])


def test_crossings_stand_beside_the_papers() -> None:
    def row(name: str, length: int, speed_up: float) -> Evaluation:
        return row_of(name, replace(LAYER, length=length), "forward", [Seconds(1.0, 1 / speed_up)])

    lengths = (512, 2048)
    pairs = {"full": (1.0, 1.0), "clustered-100": (0.5, 2.0), "lsh-1": (0.5, 0.8), "peer:lsh-1": (2.0, 3.0)}
    rows = [row(name, n, x) for name, pair in pairs.items() for n, x in zip(lengths, pair, strict=True)]
    assert crossings(rows, "full", "cpu") == {
        "clustered-100": "faster than full from 1,000; paper: about 1,000 (Vyas et al. 2020, C.1)",
        "lsh-1": "faster than full nowhere up to 2,048",
        "peer:lsh-1": "faster than full from 512 or less",
    }
    # The papers compare with full attention.
    assert "paper" not in crossings(rows, "lsh-1", "cpu")["clustered-100"]
