import logging
from pathlib import Path

import pytest

from asr.text import prepared
from asr.text.lexicon import Lexicon
from asr.text.prepared import find_prepared, obtain_tokenizer, tokenizer_files, tokenizer_name
from asr.text.tokenizer import build_tokenizer

TEXTS = ["go on and on", "an odd end", "no gain", "[noise] on and off", "ä good deed"]
LEXICON = Lexicon({"go": [("G", "OW")], "on": [("AA", "N"), ("AO", "N")]})


@pytest.fixture(params=["phone", "character", "sentencepiece"])
def kind(request, tmp_path):
    """Prepare a tokenizer in the folder and return its kind."""
    name = tokenizer_name(request.param, 15)
    tokenizer = build_tokenizer(request.param, TEXTS, LEXICON, 15)
    for file, content in tokenizer_files(name, tokenizer, TEXTS, LEXICON).items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content)
    return request.param


def test_a_prepared_tokenizer_is_reused_unchanged(kind, tmp_path, monkeypatch):
    made = build_tokenizer(kind, TEXTS, LEXICON, 15)
    monkeypatch.setattr(prepared, "build_tokenizer", None)
    found = obtain_tokenizer(kind, TEXTS, LEXICON, 15, [tmp_path / "elsewhere", tmp_path])
    assert type(found) is type(made)
    assert found.state() == made.state()
    assert [found.encode(text) for text in TEXTS] == [made.encode(text) for text in TEXTS]


def test_other_training_data_gives_another_tokenizer(kind, tmp_path):
    """Data outside the training set must not leak into the vocabulary."""
    lexicon = LEXICON.merged(Lexicon({"off": [("AO", "F")]}))
    texts = [*TEXTS[::-1], "go off in style"]
    assert find_prepared(tmp_path, kind, 15, TEXTS if kind == "phone" else texts, lexicon) is None
    found = obtain_tokenizer(kind, texts, lexicon, 15, [tmp_path])
    assert found.state() == build_tokenizer(kind, texts, lexicon, 15).state()


@pytest.mark.parametrize("kind", ["sentencepiece"], indirect=True)
def test_another_number_of_pieces_gives_another_tokenizer(kind, tmp_path):
    assert len(obtain_tokenizer(kind, TEXTS, None, 15, [tmp_path])) == 16
    assert len(obtain_tokenizer(kind, TEXTS, None, 16, [tmp_path])) == 17


@pytest.mark.parametrize("damage", ["cut off", "symbols", "a list", "no bytes"])
def test_a_changed_file_is_not_used(kind, tmp_path, damage, caplog):
    path = next(Path(tmp_path / "tokenizers").glob("*.json"))
    content = path.read_text()
    if damage == "cut off":
        path.write_text(content[:-20])
    elif damage == "symbols":
        path.write_text(content.replace('"<blank>",', '"<blank>", "Z",'))
    elif damage == "a list":
        path.write_text("[]")
    else:
        (path.with_suffix(".model") if kind == "sentencepiece" else path).write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        found = obtain_tokenizer(kind, TEXTS, LEXICON, 15, [tmp_path])
    assert found.state() == build_tokenizer(kind, TEXTS, LEXICON, 15).state()
    assert "changed since `asr prepare` wrote it" in caplog.text
