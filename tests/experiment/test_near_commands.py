"""Commands with near-field attention: training and decoding."""

import json
from pathlib import Path

from tone_corpora import TINY

from asr.cli import main
from asr.training.config import train_options
from asr.training.run import train

NAME = "near-10:topk=8,window=3"


def test_a_model_trains_with_it_and_decodes_with_another(tone_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = ["trainer.max_steps=2", "trainer.validate_every=2"]
    train(train_options([*TINY, f"data.train=[{tone_corpus}]", f"run={run}", f"attention={NAME}", *steps]))
    for attention in (NAME, "full"):
        assert main(["decode", str(run), f"attention={attention}"]) == 0
        about = json.loads((run / f"decode/test/{attention}-greedy/decode.json").read_text())
        assert about["attention"] == attention


def test_a_trained_model_is_decoded_with_its_default_options(trained: Path) -> None:
    """The windows and top keys of near-25 hold most of these short utterances: it decodes as `full` does."""
    assert main(["decode", str(trained), "attention=near-25"]) == 0
    folder = trained / "decode" / "test" / "near-25-greedy"
    assert main(["score", str(folder)]) == 0
    assert json.loads((folder / "score.json").read_text())["wer"]["rate"] < 0.1
