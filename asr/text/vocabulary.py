"""Reads vocabularies of published models: the files of transformers' tokenizers for CTC."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import read_as, read_json
from asr.text.tokenizer import WORD_GAP, PieceTokenizer, VocabularyTokenizer

SYMBOLS, SETTINGS, PIECES = "vocab.json", "tokenizer_config.json", "tokenizer.json"
CLASSES = (None, "Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a vocabulary in tokenizer_config.json; the defaults are Wav2Vec2CTCTokenizer's."""

    tokenizer_class: str | None = None
    pad_token: str | dict[str, Any] = "<pad>"
    unk_token: str | dict[str, Any] | None = "<unk>"
    word_delimiter_token: str | dict[str, Any] | None = WORD_GAP
    replace_word_delimiter_char: str = " "
    do_lower_case: bool = False
    target_lang: str | None = None
    added_tokens_decoder: dict[str, Any] = field(default_factory=dict)


def read_vocabulary(folder: Path, outputs: int | None) -> tuple[VocabularyTokenizer, list[int]]:
    """Read the vocabulary of a model with a CTC head.

    Args:
        folder: folder with vocab.json and, if not all settings are the defaults, tokenizer_config.json.
        outputs: number of the head's outputs, `vocab_size` of its configuration.

    Returns:
        The tokenizer, whose first symbol is the blank (the padding token), and the output of each symbol.

    Raises:
        UserError: a file is missing or has other content, the tokenizer is of another kind, or the vocabulary
            lacks blank or word delimiter, or doesn't fit the head.
    """
    path = folder / SYMBOLS
    if outputs is None:
        raise UserError(f"{folder}: expected a CTC head with vocab_size outputs, found null")
    settings = read_as(Settings, folder / SETTINGS) if (folder / SETTINGS).exists() else Settings()
    if settings.tokenizer_class not in CLASSES:
        raise UserError(
            f"{folder / SETTINGS}: expected tokenizer_class {CLASSES[1]}, found {settings.tokenizer_class}"
        )
    if settings.replace_word_delimiter_char != " ":
        raise UserError(
            f"{folder / SETTINGS}: expected words divided by spaces, found "
            f"replace_word_delimiter_char={settings.replace_word_delimiter_char!r}"
        )
    names = _outputs(path, settings, outputs)
    blank, gap = _content(settings.pad_token), _content(settings.word_delimiter_token)
    for what, symbol in (("pad_token (the blank)", blank), ("word_delimiter_token", gap)):
        if symbol is None or symbol not in names:
            raise UserError(f"{path}: expected {what} {symbol!r} among the symbols, found none")
    order = sorted(range(outputs), key=lambda i: (names[i] != blank, i))
    symbols = [WORD_GAP if names[i] == gap else names[i] for i in order]
    if symbols.count(WORD_GAP) > 1:
        raise UserError(f"{path}: expected {WORD_GAP} to divide words, found a label beside {gap!r}")
    unknown = _content(settings.unk_token)
    known = unknown if unknown in symbols else None
    return VocabularyTokenizer(symbols, known, settings.do_lower_case), order


def read_pieces(folder: Path, outputs: int) -> tuple[PieceTokenizer, list[int]]:
    """Read the pieces of a model with a CTC head; see `read_vocabulary`.

    Raises:
        UserError: tokenizer.json is missing or can't be read, has no padding token or lacks a piece.
    """
    path = folder / PIECES
    settings = read_as(Settings, folder / SETTINGS) if (folder / SETTINGS).exists() else Settings()
    added = read_json(path, "the pieces of a CTC model").get("added_tokens")
    pad = _content(settings.pad_token)
    listed = added if isinstance(added, list) else []
    numbers = [x.get("id") for x in listed if isinstance(x, dict) and x.get("content") == pad]
    if not numbers or type(numbers[0]) is not int or not 0 <= numbers[0] < outputs:
        raise UserError(
            f"{path}: expected pad_token (the blank) {pad!r} below {outputs}, found {numbers[:1]}"
        )
    order = [numbers[0], *(i for i in range(outputs) if i != numbers[0])]
    try:
        return PieceTokenizer(path.read_text(encoding="utf-8"), order), order
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _outputs(path: Path, settings: Settings, outputs: int) -> list[str]:
    """Return the symbol of each output of the head."""
    vocabulary = read_json(path, "the vocabulary of a CTC model")
    if settings.target_lang is not None:
        languages, vocabulary = vocabulary, vocabulary.get(settings.target_lang, {})
        if not isinstance(vocabulary, dict) or not vocabulary:
            raise UserError(
                f"{path}: expected the vocabulary of {settings.target_lang!r}, found languages "
                f"{', '.join(languages)[:60]}"
            )
    symbols: dict[int, str] = {}
    for symbol, index in vocabulary.items():
        if type(index) is not int or not 0 <= index < outputs or index in symbols or not symbol:
            raise UserError(
                f"{path}: expected symbols with different numbers from 0 to {outputs - 1}, as the head has "
                f"outputs, found {symbol!r}: {str(index)[:40]}"
            )
        symbols[index] = symbol
    for number, token in settings.added_tokens_decoder.items():  # tokens beyond the head have no output
        if number.isdecimal() and (content := _content(token)) and content not in symbols.values():
            symbols.setdefault(int(number), content)
    missing = next((i for i in range(outputs) if i not in symbols), None)
    if missing is not None:
        raise UserError(
            f"{path}: expected a symbol for each of the head's {outputs} outputs, found none for {missing}"
        )
    return [symbols[i] for i in range(outputs)]


def _content(token: Any) -> str | None:
    """Return the text of a token, which may be written as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
