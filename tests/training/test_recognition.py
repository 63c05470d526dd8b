"""Vocabulary, initial weights and dev error of a recogniser in training."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tone_corpora import save_cuts
from torch.nn.functional import one_hot

from asr import Recognizer
from asr.data.batch import Batch
from asr.data.manifest import read_cuts
from asr.data.module import load_training_cuts
from asr.losses.loss import CTCLoss
from asr.model.acoustic_model import AcousticModel
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, Tokenizer
from asr.training.config import train_options
from asr.training.recognition import RecognitionTask, initialise, training_tokenizer


def tokenizer_of(overrides: list[str]) -> Tokenizer:
    options = train_options(overrides)
    return training_tokenizer(options, load_training_cuts(options.data))


def test_init_from_matches_the_rows_of_the_head_by_symbol(
    trained: Path, corpus_maker: Callable[..., Path]
) -> None:
    """A model could not be initialised from one whose lexicon had a phone more or less."""
    corpus = corpus_maker()
    (corpus / "lexicon.txt").write_text((corpus / "lexicon.txt").read_text() + "ah AH\nzoo Z UW\n")
    old = Recognizer.load(trained)
    tokenizer = tokenizer_of([f"data.train=[{corpus}]"])
    new = AcousticModel(old.model.config, len(tokenizer))
    fresh = new.head.projection.weight.detach().clone()
    initialise(new, tokenizer, Recognizer.load(trained), "trained")
    for i, symbol in enumerate(tokenizer.symbols):
        known = symbol in old.tokenizer.symbols
        expected = (
            old.model.head.projection.weight[old.tokenizer.symbols.index(symbol)] if known else fresh[i]
        )
        assert torch.equal(new.head.projection.weight[i], expected)
    assert {"Z", "UW", "AH"} == set(tokenizer.symbols) - set(old.tokenizer.symbols)


def test_joint_training_merges_the_lexicons_of_all_corpora(
    tone_corpus: Path, corpus_maker: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first folder's lexicon was read, and words of the second became SPN."""
    other = corpus_maker()
    cuts = [cut.with_id(f"other-{cut.id}") for cut in read_cuts(other / "train.cuts.jsonl.gz")]
    save_cuts(cuts, other / "train.cuts.jsonl.gz")
    lexicon = other / "lexicon.txt"
    lines = lexicon.read_text().splitlines()
    lexicon.write_text(
        "\n".join([*(line for line in lines if not line.startswith("cat")), "zoo Z UW"]) + "\n"
    )
    overrides = [f"data.train=[{other},{tone_corpus}]"]
    tokenizer = tokenizer_of(overrides)
    assert tokenizer.oov("cat zoo be") == []
    assert "outside the vocabulary" not in caplog.text
    overrides.append(f"tokenizer.lexicon={lexicon}")
    assert tokenizer_of(overrides).oov("cat zoo be") == ["cat"]


@pytest.mark.parametrize(
    ("tokenizer", "spoken", "heard", "counted"),
    [
        (
            PhoneTokenizer(Lexicon({"go": [("G", "OW")], "noise": [("NSN",)], "odd": [("SPN",)]})),
            "NSN G OW G SPN",
            "G SPN OW OW",
            (1, 3, 5),
        ),
        (CharacterTokenizer.train(["go on"]), "g o | o n", "| g o | | o |", (1, 5, 5)),
    ],
)
def test_the_dev_error_counts_what_asr_score_does(tokenizer, spoken, heard, counted):
    """A recognised or missing NSN or SPN, or a repeated space, was an error in training alone."""
    spoken, heard = ([tokenizer.symbols.index(x) for x in symbols.split()] for symbols in (spoken, heard))
    frames = [label for label in heard for label in (label, 0)]  # blanks separate equal labels
    log_probs = one_hot(torch.tensor([frames]), len(tokenizer)).float().log_softmax(-1)

    class Task(RecognitionTask):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.tokenizer = tokenizer
            self.loss = CTCLoss()
            self.word_errors = None
            self.shown = ()
            self.model = Mock(return_value=(log_probs, torch.tensor([len(frames)])))
            self.model.config.topology = "ctc"

    padded = torch.tensor([[*spoken, 0, 0]])
    lengths = torch.tensor([len(spoken)])
    batch = Batch(["u"], None, torch.zeros(1, 1), torch.tensor([1]), padded, lengths)
    errors, wanted, _, targets = Task().dev_counts(batch)
    assert (errors, wanted, targets) == counted


def test_trainings_share_a_lexicon_until_its_file_changes(
    corpus_maker: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of six candidates read its lexicon twelve times, and hashed it eight times as a tokenizer."""
    corpus, read = corpus_maker(), []
    load = Lexicon.load

    def count(path: Path) -> Lexicon:
        read.append(path)
        return load(path)

    monkeypatch.setattr(Lexicon, "load", count)
    first, second = (tokenizer_of([f"data.train=[{corpus}]", f"seed={seed}"]) for seed in (0, 1))
    assert first.lexicon is second.lexicon
    assert read == [corpus / "lexicon.txt"]
    state = json.dumps(first.state(), sort_keys=True)
    assert first.digest == second.digest == hashlib.sha256(state.encode()).hexdigest()[:12]
    with (corpus / "lexicon.txt").open("a") as file:
        file.write("zoo Z UW\n")
    changed = tokenizer_of([f"data.train=[{corpus}]"])
    assert changed.oov("zoo") == []
    assert changed.digest != first.digest
