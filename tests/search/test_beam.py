import builtins
import math
import random

import pytest
import torch

from asr.errors import UserError
from asr.search.beam import BeamSearch
from asr.search.path import Word
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

LEXICON = Lexicon(
    {
        "THE": [("DH", "AH"), ("DH", "IY")],
        "A": [("AH",)],
        "CAT": [("K", "AE", "T")],
        "KAT": [("K", "AE", "T")],
        "CATS": [("K", "AE", "T", "S")],
        "AT": [("AE", "T")],
        "SAT": [("S", "AE", "T")],
    }
)
TOKENIZER = PhoneTokenizer(LEXICON)


def posterior(labels: str, probability: float = 0.99) -> torch.Tensor:
    """[1, T, V] log-probabilities that are peaked at one label per frame; `_` is blank."""
    ids = [0 if label == "_" else TOKENIZER.symbols.index(label) for label in labels.split()]
    rest = math.log((1 - probability) / (len(TOKENIZER) - 1))
    log_probs = torch.full((1, len(ids), len(TOKENIZER)), rest)
    log_probs[0, torch.arange(len(ids)), torch.tensor(ids)] = math.log(probability)
    return log_probs


def decode(labels: str, **options):
    log_probs = posterior(labels)
    return BeamSearch(TOKENIZER, **options)(log_probs, torch.tensor([log_probs.shape[1]]))[0]


def test_a_peaked_posterior_gives_its_words_tokens_and_times():
    path = decode("_ DH IY IY _ K _ AE AE T T T _ S AE _ T")
    assert path.text == "THE CAT SAT"
    assert TOKENIZER.tokens(path.ids) == "DH IY K AE T S AE T".split()
    assert path.frames == [1, 2, 5, 7, 9, 13, 14, 16]
    assert path.words == [Word("THE", 0, 2), Word("CAT", 2, 5), Word("SAT", 5, 8)]
    assert path.confidences == pytest.approx([0.99] * 8)


def test_a_last_phone_may_last():
    """flashlight ends a word on the first frame of its last phone and can't stay on it: CAT with a T of two
    frames became CATS until each pronunciation was also given with its last phone doubled.
    """
    for frames in range(1, 5):
        assert decode("_ K K AE AE " + "T " * frames + "_").text == "CAT"
        assert decode("_ K K AE AE " + "T " * frames + "S " * frames).text == "CATS"


def test_a_doubled_last_phone_counts_once():
    """The doubled spelling with a blank within must not put a phone into the tokens that no word has."""
    path = decode("K AE T _ T _ AE T")
    assert path.text == "CAT AT"
    assert TOKENIZER.tokens(path.ids) == "K AE T AE T".split()
    assert path.frames == [0, 1, 2, 6, 7]
    assert path.words == [Word("CAT", 0, 3), Word("AT", 3, 5)]


def test_words_that_meet_in_one_phone():
    path = decode("DH AH _ AH _ K AE T")
    assert path.text == "THE A CAT"
    assert path.frames == [0, 1, 3, 5, 6, 7]


def test_an_unlikely_phone_gives_way_to_a_word():
    path = decode("DH AH _ K IY T _")
    assert path.text == "THE CAT"
    assert TOKENIZER.tokens(path.ids) == "DH AH K AE T".split()


def test_only_the_valid_frames_are_read():
    log_probs = posterior("K AE T _ S AE T")
    log_probs = torch.cat([log_probs, log_probs])
    log_probs[0, 3:] = torch.nan
    short, long = BeamSearch(TOKENIZER)(log_probs, torch.tensor([3, 7]))
    assert (short.text, long.text) == ("CAT", "CAT SAT")
    assert BeamSearch(TOKENIZER)(log_probs, torch.tensor([0, 0]))[0].text == ""


def test_random_sentences_are_found():
    rng = random.Random(0)
    words = [word for word in LEXICON if word not in ("KAT", "A", "AT")]
    search = BeamSearch(TOKENIZER)
    for _ in range(20):
        sentence = rng.choices(words, k=6)
        labels = []
        for word in sentence:
            for phone in rng.choice(LEXICON.pronunciations[word]):
                labels += [phone] * rng.randint(1, 3) + ["_"] * rng.randint(0, 2)
            labels.append("_")
        log_probs = posterior(" ".join(labels), 0.9)
        assert search(log_probs, torch.tensor([len(labels)]))[0].text == " ".join(sentence)


ARPA = """\\data\\
ngram 1=5

\\1-grams:
-1.0\t<unk>
-1.0\t<s>
-1.0\t</s>
-3.0\tCAT
-0.1\tKAT

\\end\\
"""


def test_a_language_model_chooses_among_homophones(tmp_path):
    lm = tmp_path / "unigram.arpa"
    lm.write_text(ARPA)
    assert decode("K AE T T").text == "CAT"
    assert decode("K AE T T", lm=lm).text == "KAT"


def test_what_the_beam_cannot_use_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"none.arpa: expected an ARPA or KenLM file, found none"):
        BeamSearch(TOKENIZER, lm=tmp_path / "none.arpa")
    (tmp_path / "bad.arpa").write_text("no model\n")
    with pytest.raises(UserError, match=r"bad.arpa: expected an ARPA or KenLM file, found "):
        BeamSearch(TOKENIZER, lm=tmp_path / "bad.arpa")
    with pytest.raises(UserError, match="expected a model of phones"):
        BeamSearch(CharacterTokenizer.train(["go on"]))

    real_import = builtins.__import__

    def without_flashlight(name, *arguments, **keywords):
        if name.startswith("torchaudio.models.decoder"):
            raise ImportError("No module named 'flashlight'")
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_flashlight)
    with pytest.raises(UserError, match="pip install 'flashlight-text"):
        BeamSearch(TOKENIZER)
