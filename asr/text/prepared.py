"""Vocabularies beside the manifests: made once by `asr prepare`, taken by every training that they fit.

`tokenizers/<name>.json` says of a tokenizer what it was learnt from, and lists its symbols in their order;
sentence pieces have their model in `<name>.model`, as the programs of sentencepiece read it.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr.errors import UserError, did_you_mean
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import (
    KINDS,
    CharacterTokenizer,
    PhoneTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    build_tokenizer,
)

log = logging.getLogger(__name__)

FOLDER = "tokenizers"


def tokenizer_name(kind: str, pieces: int) -> str:
    """Return what a tokenizer's files are called.

    >>> tokenizer_name("phone", 500), tokenizer_name("sentencepiece", 500)
    ('phone', 'sentencepiece-500')
    """
    return f"{kind}-{pieces}" if kind == "sentencepiece" else kind


def parse_name(name: str) -> tuple[str, int]:
    """Return kind and number of pieces (0 but for sentencepiece) of a tokenizer's name.

    Raises:
        UserError: there is no such kind, or sentencepiece without a number.
    """
    kind, _, pieces = name.partition("-")
    if kind not in KINDS:
        raise UserError(f"tokenizers: there is no {name!r}{did_you_mean(kind, KINDS)}")
    if kind != "sentencepiece" and not pieces:
        return kind, 0
    if kind != "sentencepiece" or not re.fullmatch(r"[1-9]\d*", pieces):
        expected = "sentencepiece-500, with the number of pieces" if kind == "sentencepiece" else kind
        raise UserError(f"tokenizers: expected {expected}, found {name}")
    return kind, int(pieces)


def source_digest(kind: str, texts: Iterable[str], lexicon: Lexicon | None) -> str:
    """Return the hash of what a tokenizer is made from: the lexicon for phones, else the texts in order."""
    if kind == "phone":
        return lexicon.digest if lexicon else ""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def tokenizer_files(
    name: str, tokenizer: Tokenizer, texts: Iterable[str], lexicon: Lexicon | None
) -> dict[str, bytes]:
    """Return the content of a tokenizer's files by their names below the prepared folder."""
    description = {
        "source": source_digest(parse_name(name)[0], texts, lexicon),
        "digest": tokenizer.digest,
        "symbols": tokenizer.symbols,
    }
    written = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    files = {f"{FOLDER}/{name}.json": written.encode()}
    if isinstance(tokenizer, SentencePieceTokenizer):
        files[f"{FOLDER}/{name}.model"] = tokenizer.model
    return files


def find_prepared(
    folder: Path, kind: str, pieces: int, texts: Sequence[str], lexicon: Lexicon | None
) -> Tokenizer | None:
    """Return the tokenizer of a prepared folder if it is what `build_tokenizer` would make; else None.

    Args:
        folder: of the manifests.
        kind: see `build_tokenizer`.
        pieces: of sentencepiece.
        texts: the training transcripts.
        lexicon: that of the training.
    """
    path = folder / FOLDER / f"{tokenizer_name(kind, pieces)}.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["source"] != source_digest(kind, texts, lexicon):
            return None
        tokenizer = _load(kind, path, found["symbols"], lexicon)
        if (tokenizer.digest, tokenizer.symbols) == (found["digest"], found["symbols"]):
            return tokenizer
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        pass
    log.warning("%s: not as `asr prepare` wrote it, so the vocabulary is made anew", path)
    return None


def obtain_tokenizer(
    kind: str,
    texts: Sequence[str],
    lexicon: Lexicon | None = None,
    pieces: int = 500,
    folders: Iterable[Path] = (),
) -> Tokenizer:
    """Return the fitting tokenizer of one of the prepared folders, or make it: `build_tokenizer`."""
    for folder in folders:
        if (tokenizer := find_prepared(folder, kind, pieces, texts, lexicon)) is not None:
            log.info("vocabulary: %s", folder / FOLDER / f"{tokenizer_name(kind, pieces)}.json")
            return tokenizer
    return build_tokenizer(kind, texts, lexicon, pieces)


def _load(kind: str, path: Path, symbols: list[str], lexicon: Lexicon | None) -> Tokenizer:
    if kind == "sentencepiece":
        return SentencePieceTokenizer(path.with_suffix(".model").read_bytes())
    if kind == "phone" and lexicon is not None:
        return PhoneTokenizer(lexicon)
    return CharacterTokenizer(symbols[3:])
