"""Schemas of the tokenizers that models store: the plain data of `Tokenizer.state`."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from asr.errors import UserError
from asr.files import build

WORD_GAP = "|"  # space between words in a character vocabulary


@dataclass(frozen=True, kw_only=True)
class PhoneState:
    """A lexicon: the pronunciations of each word, the first of which is the training target.

    `unspoken` are phones of the language that none of the words has.
    """

    kind: Literal["phone"]
    pronunciations: dict[str, list[list[str]]]
    unspoken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for word, said in self.pronunciations.items():
            names = [word, *(phone for phones in said for phone in phones)]
            if not said or not all(said) or any(name.split() != [name] for name in names):
                raise UserError(f"pronunciations: expected phones for {word!r}, found {str(said)[:60]}")
        if any(name.split() != [name] for name in self.unspoken):
            raise UserError(f"unspoken: expected phones, found {str(self.unspoken)[:60]}")


@dataclass(frozen=True, kw_only=True)
class CharacterState:
    """The characters of a vocabulary in the order of its labels."""

    kind: Literal["character"]
    characters: list[str]

    def __post_init__(self) -> None:
        _check_distinct(self.characters, "characters")
        if others := [x for x in self.characters if len(x) != 1 or x == WORD_GAP]:
            raise UserError(f"characters: expected single ones other than {WORD_GAP}, found {others[0]!r}")


@dataclass(frozen=True, kw_only=True)
class VocabularyState:
    """The symbols of a published vocabulary; see `VocabularyTokenizer`."""

    kind: Literal["vocabulary"]
    symbols: list[str]
    unknown: str | None
    lower: bool

    def __post_init__(self) -> None:
        _check_distinct(self.symbols, "symbols")
        if WORD_GAP not in self.symbols[1:] or "" in self.symbols:
            raise UserError(f"symbols: expected the blank, {WORD_GAP} and others, found {self.symbols[:8]}")
        if self.unknown is not None and self.unknown not in self.symbols[1:]:
            raise UserError(f"unknown: expected one of the symbols, found {self.unknown!r}")


@dataclass(frozen=True, kw_only=True)
class PieceState:
    """The pieces of a published model; see `PieceTokenizer`."""

    kind: Literal["pieces"]
    model: str
    order: list[int]

    def __post_init__(self) -> None:
        if not self.order or not all(0 <= number < 2**31 for number in self.order):
            raise UserError(f"order: expected numbers of pieces, found {str(self.order)[:60]}")


@dataclass(frozen=True, kw_only=True)
class SentencePieceState:
    """A sentence-piece model, in sentencepiece's own format."""

    kind: Literal["sentencepiece"]
    model: bytes


TokenizerState = PhoneState | CharacterState | VocabularyState | PieceState | SentencePieceState
SCHEMAS: dict[str, type[TokenizerState]] = {
    "phone": PhoneState,
    "character": CharacterState,
    "sentencepiece": SentencePieceState,
    "vocabulary": VocabularyState,
    "pieces": PieceState,
}


def check_state(state: Any, source: str) -> TokenizerState:
    """Return the state of a tokenizer through its schema.

    Args:
        state: what `Tokenizer.state` returned, or anything that a file holds in its place.
        source: file and entry, for the message.

    Raises:
        UserError: the state is of no known kind, or not as its schema says.
    """
    kind = state.get("kind") if isinstance(state, dict) else None
    if not isinstance(kind, str) or kind not in SCHEMAS:
        found = repr(state if kind is None else kind)[:60]
        raise UserError(f"{source}: expected a tokenizer of kind {', '.join(SCHEMAS)}, found {found}")
    found_state: TokenizerState = build(SCHEMAS[kind], state, source)
    return found_state


def _check_distinct(symbols: Collection[str], name: str) -> None:
    if len(set(symbols)) < len(symbols):
        raise UserError(f"{name}: expected different ones, found one twice")
