import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from speech_data import speech_data as data

from asr import Recognizer
from asr.data.places import manifest_path, split_beside
from asr.errors import UserError
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import PhoneTokenizer


def test_batches_have_the_audio_and_targets_of_their_utterances(
    tone_corpus: Path, recognizer: Recognizer
) -> None:
    speech = data(tone_corpus, recognizer)
    texts = {cut.id: cut.supervisions[0].text for cut in speech.train_cuts}
    speech.batches = speech.epoch_batches(0)
    seen = []
    for batch in speech.train_dataloader():
        assert batch.audio.dtype == torch.float32
        assert int(batch.audio_lengths.max()) == batch.audio.shape[1]
        for i, name in enumerate(batch.ids):
            tokens = batch.tokens[i, : batch.token_lengths[i]].tolist()
            assert tokens == recognizer.tokenizer.encode(texts[name])
            assert not batch.audio[i, batch.audio_lengths[i] :].any()
        seen += batch.ids
    assert sorted(seen) == sorted(texts)


def test_words_of_dev_that_train_lacks_have_their_own_pronunciations(
    tone_corpus: Path, recognizer: Recognizer, tmp_path: Path
) -> None:
    """Validation counted the phones of such words as insertions, `asr score` didn't."""
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    whole = Lexicon.load(corpus / "lexicon.txt")
    text = data(corpus, recognizer).dev_cuts[0].supervisions[0].text
    word = text.split()[0]
    rest = {name: said for name, said in whole.pronunciations.items() if name != word}
    tokenizer = PhoneTokenizer(Lexicon(rest, tuple(whole.phones)))
    Lexicon(rest).save(corpus / "lexicon.txt")

    def dev_labels() -> list[str]:
        speech = data(corpus, SimpleNamespace(model=recognizer.model, tokenizer=tokenizer))
        (found,) = (
            batch.tokens[i, : batch.token_lengths[i]].tolist()
            for batch in speech.val_dataloader()
            for i, name in enumerate(batch.ids)
            if name == speech.dev_cuts[0].id
        )
        assert speech.tokenizer is tokenizer
        return tokenizer.tokens(found)

    assert dev_labels()[0] == "SPN"
    Lexicon({word: whole.pronunciations[word]}).save(corpus / "references.txt")
    assert dev_labels() == [phone for name in text.split() for phone in whole.first(name)]


def test_the_worst_batch_is_spoken_at_the_slowest_speed(tone_corpus: Path, recognizer: Recognizer) -> None:
    """The batch was tried without speed perturbation, so that a later one needed more memory."""
    normal, slow = (
        int(data(tone_corpus, recognizer, speed_factors=factors).worst_batch().audio_lengths.max())
        for factors in ([1.0], [0.8, 1.0])
    )
    assert slow == pytest.approx(normal / 0.8, rel=0.01)


def test_the_worst_batch_is_the_largest(tone_corpus: Path, recognizer: Recognizer) -> None:
    speech = data(tone_corpus, recognizer)
    worst = speech.worst_batch()
    assert int(worst.audio_lengths.max()) == max(cut.num_samples for cut in speech.train_cuts)
    padded = [speech.train_frames(0)[plan].max() * len(plan) for plan in speech.stream().epoch(0)]
    size = max(1, int(worst.audio.shape[1] / 160)) * len(worst.ids)
    assert size >= 0.9 * max(padded)


def test_speed_depends_on_seed_epoch_and_utterance_alone(tone_corpus: Path, recognizer: Recognizer) -> None:
    lengths = []
    for workers in (0, 1):
        speech = data(tone_corpus, recognizer, (0.9, 1.0, 1.1), seed=5, workers=workers)
        speech.batches = 2 * speech.epoch_batches(0)
        batches = [(batch.ids, batch.audio_lengths.tolist()) for batch in speech.train_dataloader()]
        lengths.append({(i, n) for ids, samples in batches for i, n in zip(ids, samples, strict=True)})
    assert lengths[0] == lengths[1]
    cut_samples = {cut.id: cut.num_samples for cut in speech.train_cuts}
    factors = {round(cut_samples[name] / samples, 1) for name, samples in lengths[0]}
    assert factors == {0.9, 1.0, 1.1}


def test_durations_outside_the_limits_are_left_out_and_listed(
    tone_corpus: Path, recognizer: Recognizer
) -> None:
    durations = sorted(cut.duration for cut in data(tone_corpus, recognizer).train_cuts)
    limit = float(np.median(durations))
    speech = data(tone_corpus, recognizer, max_duration_s=limit)
    left_out = [item for item in speech.left_out if item[0] == "train"]
    assert len(left_out) == sum(duration > limit for duration in durations)
    assert all(f"is outside 0.1 … {limit} s" in item[2] for item in left_out)
    with pytest.raises(UserError, match="split train: no utterance is usable"):
        data(tone_corpus, recognizer, max_duration_s=0.2)


def test_an_utterance_in_two_manifests_is_an_error(tone_corpus: Path, recognizer: Recognizer) -> None:
    with pytest.raises(UserError, match="utterance train-0 is in two manifests"):
        data(tone_corpus, recognizer, train=[str(tone_corpus), str(tone_corpus / "train.cuts.jsonl.gz")])


def test_other_splits_are_found_beside_a_training_manifest_file(
    corpus_maker: Callable[..., Path], recognizer: Recognizer
) -> None:
    """A recipe may train on one of several sets; the training file itself was mistaken for its dev set."""
    folder = corpus_maker(train=3)
    place = folder / "si84.cuts.jsonl.gz"
    (folder / "train.cuts.jsonl.gz").rename(place)
    assert manifest_path(str(place), "train") == place
    assert split_beside(str(place), "test") == split_beside(str(folder), "test")
    speech = data(place, recognizer)
    assert [cut.id for cut in speech.train_cuts] == ["train-0", "train-1", "train-2"]
    assert [cut.id for cut in speech.dev_cuts] == ["dev-0", "dev-1"]


@pytest.mark.slow
def test_a_batch_that_cannot_be_sent_ends_the_worker() -> None:
    """Under `ulimit -f`, the worker printed a traceback and training waited for the batch for ever."""
    code = """
import resource, torch
from torch.utils.data import DataLoader
from asr.data.module import _begin_worker
class Large(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return torch.zeros(1 << 20)
    def __len__(self):
        return 2
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    list(DataLoader(Large(), batch_size=None, num_workers=1, worker_init_fn=_begin_worker))
except RuntimeError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert "DataLoader worker (pid" in found.stdout
    assert not found.stderr
