"""Forward times of several models on the same utterances."""

from pathlib import Path

from pretrained_models import load_model, save_model

from asr.compare.timing import forward_times
from asr.model.portable import write_portable
from asr.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizer


def test_pretrained_models_of_several_sizes_have_inputs_of_their_own(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Models with equal feature settings shared the input of the first, which others couldn't take."""
    tokenizer = CharacterTokenizer.train(["abc"])
    for size in (24, 36):
        save_model(tmp_path / f"encoder-{size}", hidden_size=size)
        model = load_model(tmp_path / f"encoder-{size}", vocabulary=len(tokenizer))
        write_portable(Recognizer(model, tokenizer).state(), tmp_path / f"model-{size}")
    times, _ = forward_times(
        [(tmp_path / "model-24", "full"), (tmp_path / "model-36", "full")],
        tone_corpus / "test.cuts.jsonl.gz",
        repeats=1,
        frames_per_batch=1000,
        device="cpu",
        threads=1,
        advance=lambda share: None,
    )
    assert [entry["error"] for entry in times] == ["", ""]
