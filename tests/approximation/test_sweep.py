"""Sweeps over layers."""

from types import SimpleNamespace
from typing import Any

from asr.approximation.run import swept
from asr.approximation.tables import by_layer


def test_a_model_of_one_layer_has_a_sweep() -> None:
    """Its mechanism has no number of layers; the chart without lines ended with Vega's traceback."""
    for layers in (1, 2):
        result: Any = SimpleNamespace(
            rows=[SimpleNamespace(attention=name) for name in swept(["full", "local-8"], layers)]
        )
        assert by_layer(result) == {"local-8": result.rows[1:]}
