"""Selection of the best checkpoint by the word error rate of beam search."""

from collections import Counter
from pathlib import Path

import jiwer
import pytest
import torch
from lhotse import MonoCut, SupervisionSegment
from runs import metrics
from tone_corpora import TINY

from asr import Recognizer
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.scoring.score import scored_words
from asr.scoring.word_filter import WordFilterRules
from asr.search.path import text_of
from asr.training.config import train_options
from asr.training.options import SelectionConfig
from asr.training.recognition import build_recognition
from asr.training.run import train
from asr.training.selection import WordErrors, drawn


def test_word_errors_are_those_of_beam_search_on_the_chosen_utterances(
    trained: Path, tone_corpus: Path
) -> None:
    recognizer = Recognizer.load(trained)
    tokenizer = recognizer.tokenizer
    cuts = list(read_cuts(tone_corpus / "dev.cuts.jsonl.gz"))
    config = SelectionConfig("wer", utterances=3)
    errors = WordErrors(config, cuts, tokenizer, "ctc", None, seed=0)
    torch.manual_seed(0)
    log_probs = torch.randn(len(cuts), 40, len(tokenizer)).log_softmax(-1)
    lengths = torch.full((len(cuts),), 40)
    ids = [cut.id for cut in reversed(cuts)]
    first, rest = (
        errors.counts(ids[part], log_probs[part], lengths[part]) for part in (slice(0, 4), slice(4, None))
    )
    total = first + rest
    search = config.beam.build(tokenizer)
    chosen = drawn(cuts, 3, seed=0)
    rows = [ids.index(cut.id) for cut in chosen]
    heard = [text_of(path, tokenizer) or "" for path in search(log_probs[rows], lengths[rows])]
    said = [cut.supervisions[0].text for cut in chosen]
    expected = jiwer.process_words(
        *([" ".join(words) for words in scored_words(texts)] for texts in (said, heard))
    )
    assert total.errors == expected.substitutions + expected.deletions + expected.insertions
    assert total.length == sum(len(text.split()) for text in said)
    word = said[0].split()[0]
    dropping = WordErrors(config, cuts, tokenizer, "ctc", WordFilterRules(drop=[word]), seed=0)
    assert dropping.counts(ids, log_probs, lengths).length == total.length - " ".join(said).split().count(
        word
    )


def test_the_utterances_are_drawn_evenly_over_speakers() -> None:
    """The first 200 of Switchboard's 4,000 by id, a few telephone calls, selected the checkpoints."""
    numbers = {"a": 50, "b": 1, "c": 9, "d": 30, "e": 2, "f": 8}
    cuts = [
        MonoCut(f"{speaker}{i}", 0, 1.0, 0, [SupervisionSegment("s", "r", 0, 1.0, speaker=speaker)])
        for speaker, number in numbers.items()
        for i in range(number)
    ]
    for count, most in ((4, 1), (6, 1), (11, 2), (21, 5), (99, 50)):
        chosen = drawn(cuts, count, seed=0)
        assert len({cut.id for cut in chosen}) == count
        found = Counter(cut.supervisions[0].speaker for cut in chosen)
        assert max(found.values()) <= most
        assert all(found[speaker] >= min(most - 1, number) for speaker, number in numbers.items())
    draws = {tuple(cut.id for cut in drawn(cuts, 4, seed)) for seed in (0, 0, 1, 2)}
    assert len(draws) == 3
    assert drawn(cuts, 100, seed=0) == cuts


def test_training_validates_by_words(tone_corpus: Path, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.max_steps=2"]
    overrides += ["select.metric=wer", "select.utterances=4"]
    train(train_options(overrides))
    rates = [float(row["dev_wer"]) for row in metrics(tmp_path) if row["dev_wer"]]
    assert rates
    assert all(rate >= 0 for rate in rates)
    assert list(tmp_path.glob("checkpoints/best-*.ckpt"))


def test_options_of_the_search_need_the_metric_and_words(tone_corpus: Path) -> None:
    with pytest.raises(UserError, match=r"utterances=5: has no effect with select\.metric=greedy"):
        train_options(["select.utterances=5"])
    options = train_options([*TINY, f"data.train=[{tone_corpus}]", "select.metric=wer", "select.lm=no.arpa"])
    with pytest.raises((UserError, OSError), match=r"no\.arpa"):
        build_recognition(options, resuming=False)
