"""A trained model in several variants: the error rates are those of its training, and of `asr decode`."""

from pathlib import Path

import pytest
from tone_corpora import TINY

from asr.cli import main
from asr.experiment.results import read_results
from asr.report.tables.scores import ratios
from asr.scoring.run import read_score
from asr.training.config import train_options
from asr.training.run import train


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
    same = "candidates=['full frames=8*1','full*1','full precision=fp32']"  # no rows of their own
    assert main([*compared, same, f"folder={tmp_path / 'compared'}"]) == 0
    results = read_results(tmp_path / "compared")
    assert {x.variant: x.rates["per"]["rate"] for x in results.evaluations} == pytest.approx(rates)
    assert results.evaluations[0].rates["kl"]["rate"] == 0
    assert results.evaluations[1].ratios["time"]["rate"] > 0


def test_a_run_of_characters_is_led_by_the_rate_of_its_training(tone_corpus: Path, tmp_path: Path) -> None:
    """It was led by WER, although its training showed CER, and had no CER at all."""
    run, data = tmp_path / "run", f"data={tone_corpus}"
    given = [f"data.train=[{tone_corpus}]", "tokenizer.kind=character", f"run={run}"]
    train(train_options([*TINY, *given, "trainer.max_steps=60", "trainer.validate_every=60"]))
    assert main(["decode", str(run), data, "split=test", f"output={tmp_path / 'decoded'}"]) == 0
    assert main(["score", str(tmp_path / "decoded")]) == 0
    score = read_score(tmp_path / "decoded")
    assert main(["compare", f"model={run}", data, "attentions=[full]", f"folder={tmp_path / 'out'}"]) == 0
    results = read_results(tmp_path / "out")
    assert results.metrics()[:2] == ["cer", "wer"]
    found = results.evaluations[0].rates
    for rate in ("cer", "wer"):
        assert found[rate]["rate"] == pytest.approx(score[rate]["rate"])
    assert 0 < score["cer"]["rate"] != score["wer"]["rate"]
    table = ratios(results, "test")  # had columns of dashes: full attention has no KL to be divided by
    assert table is not None
    assert [x.name for x in table.columns] == ["attention", "CER", "WER", "NLL", "CPU time (quartiles)"]
