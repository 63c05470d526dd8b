"""A trained model of phones in several variants: its PER is that of `asr decode`."""

from pathlib import Path

import pytest

from asr.cli import main
from asr.experiment.results import read_results
from asr.scoring.run import read_score


@pytest.mark.slow
def test_the_error_rate_is_that_of_decoding(trained: Path, tone_corpus: Path, tmp_path: Path) -> None:
    rates = {}
    for frames in ("1", "8"):
        folder = tmp_path / frames
        asked = ["decode", str(trained), f"data={tone_corpus}", f"frames={frames}", f"output={folder}"]
        assert main([*asked, "split=test"]) == 0
        assert main(["score", str(folder)]) == 0
        rates["full" if frames == "1" else f"full frames={frames}"] = read_score(folder)["per"]["rate"]
    assert rates["full frames=8"] > 0
    compared = ["compare", f"model={trained}", f"data={tone_corpus}", "attentions=[full]", "frames=[1,8]"]
    assert main([*compared, f"folder={tmp_path / 'compared'}"]) == 0
    results = read_results(tmp_path / "compared")
    assert {x.variant: x.rates["per"]["rate"] for x in results.evaluations} == pytest.approx(rates)
    assert results.evaluations[0].rates["kl"]["rate"] == 0
    assert results.evaluations[1].ratios["time"]["rate"] > 0
