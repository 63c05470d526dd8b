import io
import random
import re

import pytest
import sentencepiece
import torch

from asr.errors import UserError
from asr.search.path import TokenPath, words_of
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import VocabularyTokenizer, build_tokenizer, tokenizer_from_state

TEXTS = ["the company said it will report a loss", "shares rose two percent on monday", "it rose"]
LEXICON = Lexicon({"the": [("DH", "AH"), ("DH", "IY")], "rose": [("R", "OW", "Z")], "it": [("IH", "T")]})
KINDS = {"phone": "phone", "character": "character", "sentencepiece": "piece"}


def make(kind):
    return build_tokenizer(kind, TEXTS, LEXICON, pieces=24)


@pytest.mark.parametrize("kind", KINDS)
def test_blank_is_first_and_never_encoded(kind):
    tokenizer = make(kind)
    assert tokenizer.symbols[0] == "<blank>"
    assert len(tokenizer) == len(tokenizer.symbols) == len(set(tokenizer.symbols))
    assert tokenizer.unit == KINDS[kind]
    for text in [*TEXTS, "unheard ñ <NOISE>", ""]:
        ids = tokenizer.encode(text)
        assert 0 not in ids
        assert all(0 < index < len(tokenizer) for index in ids)
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("kind", KINDS)
def test_state_survives_a_safe_checkpoint(kind):
    tokenizer = make(kind)
    file = io.BytesIO()
    torch.save(tokenizer.state(), file)
    file.seek(0)
    again = tokenizer_from_state(torch.load(file, weights_only=True))
    assert again.symbols == tokenizer.symbols
    assert again.digest == tokenizer.digest
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("kind", ["character", "sentencepiece"])
def test_text_survives_a_round_trip(kind):
    tokenizer = make(kind)
    for text in TEXTS:
        assert tokenizer.text(tokenizer.encode(text)) == text
        assert tokenizer.oov(text) == []
    assert tokenizer.text(tokenizer.encode("the  <NOISE> loss")) == "the loss"
    assert tokenizer.text(tokenizer.encode("loñs the ñ")) == "lo⁇s the ⁇"
    assert tokenizer.lexicon is None


def test_pieces_are_learnt_from_long_texts():
    """Lines of more than 4,192 bytes were skipped, and with them characters that occur only there."""
    long = " ".join(["the loss falls"] * 400) + " ż"
    tokenizer = build_tokenizer("sentencepiece", [*TEXTS, long], pieces=25)
    assert tokenizer.oov("ż") == []


def test_training_is_deterministic():
    assert make("sentencepiece").digest == make("sentencepiece").digest
    assert make("character").digest == build_tokenizer("character", TEXTS[::-1]).digest


def test_phones_come_from_the_first_pronunciation_and_unknown_words_are_marked():
    tokenizer = make("phone")
    text = "the <NOISE> bank rose"
    assert tokenizer.tokens(tokenizer.encode(text)) == ["DH", "AH", "NSN", "SPN", "R", "OW", "Z"]
    assert tokenizer.oov(text) == ["bank"]
    assert tokenizer.text(tokenizer.encode(text)) is None
    assert tokenizer.lexicon is LEXICON
    assert {"SPN", "NSN"} <= set(tokenizer.symbols)


def test_noise_phones_in_the_lexicon_are_not_duplicated():
    tokenizer = build_tokenizer("phone", [], Lexicon({"uh": [("SPN",)], "go": [("G",)]}))
    assert tokenizer.symbols == ["<blank>", "SPN", "NSN", "G"]


def test_unseen_characters_and_a_literal_bar_are_unknown():
    tokenizer = make("character")
    assert tokenizer.oov("it ñ|z") == ["ñ", "|", "z"]
    assert tokenizer.tokens(tokenizer.encode("it ñ|")) == ["i", "t", "|", "<unk>", "<unk>"]


@pytest.mark.parametrize("kind", ["character", "sentencepiece"])
@pytest.mark.parametrize("text", ["the loñs rose", "ñtñ", "it ñ rose", "roseñ ñrose", "loññs"])
def test_unknown_labels_divide_no_words(kind, text):
    """Pieces wrote `lo ⁇ s`: three words for one, of which the times and confidences knew only one."""
    tokenizer = make(kind)
    ids = tokenizer.encode(text)
    expected = re.sub("ñ+" if kind == "sentencepiece" else "ñ", "⁇", text)
    assert tokenizer.text(ids) == expected
    frames = list(range(len(ids) + 1))
    words = words_of(TokenPath(ids, frames[:-1], frames[1:]), tokenizer)
    assert [word.word for word in words] == expected.split()


@pytest.mark.parametrize("tag", ["<NOISE>", "[NOISE]", "{LAUGHTER}", "!SIL"])
def test_a_published_vocabulary_takes_the_case_of_the_spoken_words(tag):
    """One <NOISE> beside lower-case transcripts made a fine-tuned model write capitals."""
    tokenizer = VocabularyTokenizer(["<pad>", "|", *"GNO"])
    assert tokenizer.in_case_of(["go on", tag]).symbols[2:] == ["g", "n", "o"]
    assert tokenizer.in_case_of(["Go on", tag]) is tokenizer


def test_other_pieces_are_decoded_as_by_sentencepiece():
    tokenizer = make("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    unknown = processor.unk_id() + 1
    draw = random.Random(0)
    for _ in range(200):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(9))]
        ids = [index for index in ids if index != unknown]
        decoded = processor.decode([index - 1 for index in ids if index])
        assert tokenizer.text(ids) == " ".join(decoded.split())


def test_words_that_no_pieces_cover_are_out_of_vocabulary():
    assert make("sentencepiece").oov("the loñs rose") == ["loñs"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_tokenizer("phone", TEXTS, None), "phones need a lexicon"),
        (lambda: build_tokenizer("phones", TEXTS, LEXICON), "did you mean 'phone'"),
        (lambda: build_tokenizer("sentencepiece", TEXTS, None, pieces=900), "pieces=900: .*<= "),
        (
            lambda: build_tokenizer("sentencepiece", TEXTS, None, pieces=10**11),
            "^pieces=1000.*: sentencepiece can",
        ),
        (
            lambda: tokenizer_from_state({"kind": "word"}),
            "of this version's kinds, found 'word'",
        ),
    ],
)
def test_user_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()
