"""Prepared tokenizers: built once by `asr prepare` and reused by every training run that they fit.

`tokenizers/<name>.json` beside the manifests holds a tokenizer's symbols in order and a hash of the data it
was built from. `<name>.model` is the model of a sentencepiece tokenizer, in sentencepiece's own format.
"""

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from asr.config.names import MOST_PIECES
from asr.errors import UserError, did_you_mean
from asr.files import digest
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
    """Return the base name of a tokenizer's files.

    >>> tokenizer_name("phone", 500), tokenizer_name("sentencepiece", 500)
    ('phone', 'sentencepiece-500')
    """
    return f"{kind}-{pieces}" if kind == "sentencepiece" else kind


def parse_tokenizer_name(name: str) -> tuple[str, int]:
    """Return the kind and number of pieces of a tokenizer's name; the number is 0 for other kinds.

    Raises:
        UserError: the kind is unknown, or sentencepiece has no number or too large a one.
    """
    kind, _, pieces = name.partition("-")
    if kind not in KINDS:
        raise UserError(f"tokenizers: there is no {name!r}{did_you_mean(kind, KINDS)}")
    if kind != "sentencepiece" and not pieces:
        return kind, 0
    if kind != "sentencepiece" or not re.fullmatch(r"[1-9]\d{0,6}", pieces) or int(pieces) > MOST_PIECES:
        numbered = f"sentencepiece-500, with the number of pieces, at most {MOST_PIECES:,}"
        expected = numbered if kind == "sentencepiece" else kind
        raise UserError(f"tokenizers: expected {expected}, found {name}")
    return kind, int(pieces)


def texts_digest(kind: str, texts: Iterable[str], lexicon: Lexicon | None) -> str:
    """Return a hash of the data that a tokenizer is built from: lexicon, distinct words, or texts."""
    if kind == "phone":
        return lexicon.digest if lexicon else ""
    if kind == "character":
        texts = sorted({word for text in texts for word in text.split()})
    return digest((f"{text}\n" for text in texts), 64)


def tokenizer_files(
    name: str, tokenizer: Tokenizer, texts: Iterable[str], lexicon: Lexicon | None
) -> dict[str, bytes]:
    """Return the contents of a tokenizer's files by their path in the prepared folder."""
    description = {
        "source": texts_digest(parse_tokenizer_name(name)[0], texts, lexicon),
        "digest": tokenizer.digest,
        "symbols": tokenizer.symbols,
    }
    written = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    files = {f"{FOLDER}/{name}.json": written.encode()}
    if isinstance(tokenizer, SentencePieceTokenizer):
        files[f"{FOLDER}/{name}.model"] = tokenizer.model
    return files


def find_prepared(
    folder: Path, kind: str, pieces: int, texts: Iterable[str], lexicon: Lexicon | None
) -> Tokenizer | None:
    """Return the tokenizer in a prepared folder if it equals what `build_tokenizer` would return, else None.

    Args:
        folder: folder of the manifests.
        kind: kind of tokenizer, as in `build_tokenizer`.
        pieces: number of sentence pieces.
        texts: training transcripts; iterated several times.
        lexicon: training lexicon.
    """
    path = folder / FOLDER / f"{tokenizer_name(kind, pieces)}.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["source"] != texts_digest(kind, texts, lexicon):
            return None
        tokenizer = _load(kind, path, found["symbols"], lexicon)
        if (tokenizer.digest, tokenizer.symbols) == (found["digest"], found["symbols"]):
            return tokenizer
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        pass
    log.warning("%s: changed since `asr prepare` wrote it, so the tokenizer is rebuilt", path)
    return None


def obtain_tokenizer(
    kind: str,
    texts: Iterable[str],
    lexicon: Lexicon | None = None,
    pieces: int = 500,
    folders: Iterable[Path] = (),
) -> Tokenizer:
    """Return the matching tokenizer from one of the prepared folders, or build it from `texts`."""
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
