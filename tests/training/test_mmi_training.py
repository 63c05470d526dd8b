"""Training with CTC-CRF and LF-MMI: it learns, resumes exactly, and the model decodes, aligns and exports."""

from pathlib import Path

import pytest
import torch
from runs import assert_same_weights, killed, metrics
from tone_corpora import TINY

from asr import Recognizer
from asr.commands import align, export
from asr.errors import UserError
from asr.files import read_json
from asr.model.options import ExportOptions
from asr.search.decoders import AllOptions
from asr.search.options import DecodeOptions
from asr.training.config import train_options
from asr.training.options import TrainConfig
from asr.training.run import train
from asr.transcription.options import AlignOptions

LOSSES = {"crf": ["loss=mmi", "loss.order=3"], "lf_mmi": ["loss=lf_mmi", "loss.order=3"]}


def options(corpus: Path, folder: Path, *overrides: str) -> TrainConfig:
    steps = ["trainer.max_steps=8", "trainer.validate_every=8", "trainer.checkpoint_every=3"]
    return train_options([*TINY, *steps, f"data.train=[{corpus}]", f"run={folder}", *overrides])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["crf", "lf_mmi"])
def test_a_run_resumes_exactly_and_its_model_is_used_like_any(
    loss: str, tone_corpus: Path, tmp_path: Path
) -> None:
    whole, halves, exported = tmp_path / "whole", tmp_path / "halves", tmp_path / "exported"
    train(options(tone_corpus, whole, *LOSSES[loss]))
    with killed(5):
        train(options(tone_corpus, halves, *LOSSES[loss]))
    train(options(tone_corpus, halves, *LOSSES[loss], "resume=auto"))
    assert_same_weights(whole, halves)
    losses = [float(row["loss"]) for row in metrics(whole) if row["loss"]]
    assert losses[-1] < losses[0]
    assert read_json(whole / "environment.json", "")["label_ngram"]

    recognizer = Recognizer.load(whole)
    assert recognizer.model.config.topology == ("hmm" if loss == "lf_mmi" else "ctc")
    for decoder in ("greedy", "beam", "prefix"):
        beam = AllOptions() if decoder == "greedy" else AllOptions(size=5)
        recognizer.decode(DecodeOptions(decoder=decoder, beam=beam, split="dev"))
        assert (whole / "decode" / "dev" / f"full-{decoder}" / "hyp.jsonl").is_file()
    align.run([whole], AlignOptions(split="dev"))
    export.run([whole], ExportOptions(out=str(exported)))
    samples = torch.randn(1, 8000)
    for a, b in zip(
        recognizer.model(samples, torch.tensor([8000])),
        Recognizer.load(exported).model(samples, torch.tensor([8000])),
        strict=True,
    ):
        assert torch.equal(a, b)
    wav = next((tone_corpus / "wav").glob("*.wav"))
    recognizer.transcribe(wav)


@pytest.mark.slow
def test_other_training_labels_are_noticed_on_resume(tone_corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with killed(5):
        train(options(tone_corpus, folder, "loss=mmi"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr.losses.label_ngram.LabelNgram.digest", "0123456789abcdef")
        with pytest.raises(UserError, match="label_ngram 0123456789abcdef"):
            train(options(tone_corpus, folder, "loss=mmi", "resume=auto"))


def test_a_model_may_start_from_one_with_another_topology(trained: Path, tmp_path: Path, tone_corpus: Path):
    """Both outputs of a label start from the one of the other model."""
    folder = tmp_path / "run"
    overrides = [
        "loss=lf_mmi",
        f"init_from={trained}",
        "trainer.max_steps=1",
        "optimizer.learning_rate=1e-12",
    ]
    train(options(tone_corpus, folder, *overrides))
    new, old = (Recognizer.load(x).model.head.projection.weight for x in (folder, trained))
    torch.testing.assert_close(new[: len(old)], old)
    torch.testing.assert_close(new[len(old) :], old[1:])


def test_options_of_mmi_have_no_effect_with_ctc(tone_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="topology=hmm: has no effect with loss=ctc"):
        options(tone_corpus, tmp_path, "loss=ctc", "loss.topology=hmm")
