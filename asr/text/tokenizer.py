"""Tokenizers between transcripts and CTC labels: phones of a lexicon, characters, sentence pieces, or the
vocabulary of a published model.

Index 0 is the CTC blank in every vocabulary. Checkpoints store a tokenizer as plain data:
`tokenizer_from_state(tokenizer.state())` restores it.
"""

import io
import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal

from asr.errors import UserError, did_you_mean
from asr.files import digest
from asr.text.lexicon import Lexicon, Phones

BLANK = "<blank>"
WORD_GAP = "|"  # space between words in a character vocabulary
NOISE_WORD = "<NOISE>"
# Noises as written in corpora. A lexicon gives them phones; character and piece tokenizers skip them.
NOISE_WORDS = frozenset({NOISE_WORD, "[noise]", "[vocalized-noise]", "[laughter]"})
TAGS = ("<", "[", "!", "{")  # first characters of words that aren't spoken, e.g. <UNK>, [noise], !SIL
SPOKEN_NOISE = "SPN"  # phone for a word outside the lexicon
NON_SPEECH_NOISE = "NSN"  # phone for a noise outside the lexicon
UNKNOWN = "<unk>"
PIECE_START = "▁"  # sentencepiece's prefix for the first piece of a word
Unit = Literal["phone", "character", "piece"]

KINDS = ["phone", "character", "sentencepiece"]


class Tokenizer(ABC):
    """A vocabulary with blank at index 0, and the conversion between text and labels.

    Attributes:
        gap: whether words are separated by a label that occurs in no word.
    """

    unit: Unit
    symbols: list[str]
    gap = False
    lexicon: Lexicon | None = None

    def __len__(self) -> int:
        return len(self.symbols)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the labels of a transcript, without blanks."""

    @abstractmethod
    def oov(self, text: str) -> list[str]:
        """Return the words (for phones and pieces) or characters that the vocabulary can't represent."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str | None:
        """Return the text of a label sequence; None for phones, which need a lexicon search."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return plain data from which `tokenizer_from_state` restores the tokenizer."""

    def extended(self, texts: Iterable[str]) -> "Tokenizer":
        """Return the vocabulary with symbols added that the texts need; pieces stay as they are."""
        return self

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols of the labels."""
        return [self.symbols[index] for index in ids]

    @property
    def written(self) -> list[str]:
        """The symbols as written in recognised texts, in lower case if these are."""
        return self.symbols

    @property
    def digest(self) -> str:
        """Hash of the state, 12 hex digits."""
        canonical = json.dumps(self.state(), sort_keys=True, default=bytes.hex)
        return digest(canonical)


class PhoneTokenizer(Tokenizer):
    """Phones of each word's first pronunciation; outside the lexicon, NSN for noises and SPN for other words.

    >>> tokenizer = PhoneTokenizer(Lexicon({"go": [("G", "OW")]}))
    >>> tokenizer.tokens(tokenizer.encode("go <NOISE> gnu")), tokenizer.oov("go gnu")
    (['G', 'OW', 'NSN', 'SPN'], ['gnu'])
    """

    unit: Unit = "phone"
    lexicon: Lexicon

    def __init__(self, lexicon: Lexicon):
        special = [BLANK, SPOKEN_NOISE, NON_SPEECH_NOISE]
        self.lexicon = lexicon
        self.symbols = special + [phone for phone in lexicon.phones if phone not in special]
        self._index = {symbol: index for index, symbol in enumerate(self.symbols)}

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return [self._index[phone] for word in text.split() for phone in self.phones(word)]

    def oov(self, text: str) -> list[str]:
        """Return the words that `encode` maps to SPN."""
        return [word for word in text.split() if word not in NOISE_WORDS and word not in self.lexicon]

    def text(self, ids: Sequence[int]) -> None:
        """Return None: words need a lexicon search."""
        return

    def state(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return self.lexicon.tokenizer_state()

    @property
    def digest(self) -> str:
        """See `Tokenizer`; kept with the lexicon, which several tokenizers may share."""
        return self.lexicon.tokenizer_digest

    def knowing(self, lexicon: Lexicon) -> "PhoneTokenizer":
        """Return a tokenizer with the same symbols that also pronounces other words with its phones.

        >>> tokenizer = PhoneTokenizer(Lexicon({"go": [("G", "OW")]}))
        >>> wider = tokenizer.knowing(Lexicon({"og": [("OW", "G")], "no": [("N", "OW")]}))
        >>> wider.tokens(wider.encode("go og no"))
        ['G', 'OW', 'OW', 'G', 'SPN']
        """
        fitting = {
            word: [phones for phones in said if self._index.keys() >= set(phones)]
            for word, said in lexicon.pronunciations.items()
            if word not in self.lexicon
        }
        wider = copy(self)
        wider.lexicon = self.lexicon.merged(Lexicon({word: said for word, said in fitting.items() if said}))
        return wider

    def phones(self, word: str) -> Phones:
        """Return the first pronunciation of a word or noise; NSN or SPN outside the lexicon."""
        if word in self.lexicon:
            return self.lexicon.first(word)
        return (NON_SPEECH_NOISE if word in NOISE_WORDS else SPOKEN_NOISE,)


class CharacterTokenizer(Tokenizer):
    """Characters, with `|` between words and `<unk>` for unseen characters; noises are skipped.

    >>> tokenizer = CharacterTokenizer.train(["go on"])
    >>> tokenizer.tokens(tokenizer.encode("no go")), tokenizer.text(tokenizer.encode("no  <NOISE> go"))
    (['n', 'o', '|', 'g', 'o'], 'no go')
    """

    unit: Unit = "character"
    gap = True

    def __init__(self, characters: list[str]):
        self.symbols = [BLANK, UNKNOWN, WORD_GAP, *characters]
        # A literal "|" in a transcript is an unknown character, not a word gap.
        self._index = {" ": 2, **{character: index for index, character in enumerate(characters, start=3)}}

    @classmethod
    def train(cls, texts: Iterable[str]) -> "CharacterTokenizer":
        """Build a vocabulary of all characters in the transcripts."""
        words: set[str] = set()
        for text in texts:
            words.update(text.split())
        return cls(sorted(set("".join(words - NOISE_WORDS)) - {WORD_GAP}))

    def extended(self, texts: Iterable[str]) -> "CharacterTokenizer":
        """Return the vocabulary with new characters of the texts appended."""
        own, found = self.symbols[3:], CharacterTokenizer.train(texts).symbols[3:]
        return CharacterTokenizer([*own, *(x for x in found if x not in own)])

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return list(map(self._index.get, _speech(text), itertools.repeat(1)))

    def oov(self, text: str) -> list[str]:
        """Return the characters that `encode` maps to `<unk>`."""
        return [character for character in _speech(text) if character not in self._index]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text, with `⁇` for unknown characters."""
        written = {WORD_GAP: " ", UNKNOWN: "⁇", BLANK: ""}
        characters = "".join(written.get(symbol, symbol) for symbol in self.tokens(ids))
        return " ".join(characters.split())

    def state(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "character", "characters": self.symbols[3:]}


class VocabularyTokenizer(Tokenizer):
    """The vocabulary of a published model: symbols of one or more characters, with `|` between words.

    Text is divided into the longest symbols from left to right, as in transformers' Wav2Vec2CTCTokenizer. A
    character outside the vocabulary is tried in its other case, because many models know capitals only.

    Args:
        symbols: symbols in the order of the outputs, the blank first.
        unknown: symbol for unseen characters; None: they are skipped.
        lower: whether recognised text is written in lower case.

    >>> tokenizer = VocabularyTokenizer([BLANK, "|", "G", "N", "O", "CH"])
    >>> tokenizer.tokens(tokenizer.encode("go Nöch")), tokenizer.oov("go Nöch")
    (['G', 'O', '|', 'N', 'CH'], ['ö'])
    """

    unit: Unit = "character"
    gap = True

    def __init__(self, symbols: list[str], unknown: str | None = None, lower: bool = False):
        self.symbols, self.unknown, self.lower = [BLANK, *symbols[1:]], unknown, lower
        self._index = {symbol: i for i, symbol in enumerate(self.symbols)}
        self._index[" "] = self._index.pop(WORD_GAP)
        for symbol, index in list(self._index.items()):
            for other in (symbol.lower(), symbol.upper()):
                if len(other) == len(symbol):  # ß isn't the small form of SS
                    self._index.setdefault(other, index)
        longest = sorted(filter(lambda x: len(x) > 1, self._index), key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, longest), "."]), re.DOTALL)

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        unknown = self.symbols.index(self.unknown) if self.unknown else None
        found = (self._index.get(x, unknown) for x in self._symbol.findall(_speech(text)))
        return [index for index in found if index is not None]

    def oov(self, text: str) -> list[str]:
        """Return the characters outside the vocabulary."""
        return [x for x in self._symbol.findall(_speech(text)) if x not in self._index]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text with single spaces; symbols such as `<unk>` stay."""
        written = "".join(" " if x == WORD_GAP else x for x in self.tokens(ids) if x != BLANK)
        text = " ".join(written.split())
        return text.lower() if self.lower else text

    @property
    def written(self) -> list[str]:
        """See `Tokenizer`."""
        return [symbol.lower() for symbol in self.symbols] if self.lower else self.symbols

    def in_case_of(self, texts: Iterable[str]) -> "VocabularyTokenizer":
        """Return the vocabulary in the texts' case (see `case_of`), unless two symbols would coincide."""
        change = case_of(word for text in texts for word in text.split())
        if change is str:
            return self
        symbols = [x if x == self.unknown or len(change(x)) != len(x) else change(x) for x in self.symbols]
        return VocabularyTokenizer(symbols, self.unknown) if len(set(symbols)) == len(symbols) else self

    def extended(self, texts: Iterable[str]) -> Tokenizer:
        """Return the vocabulary in the texts' case; or single characters, if it lacks some of theirs."""
        words = list(texts)
        own = self.in_case_of(words)
        if not any(map(own.oov, words)):
            return own
        return CharacterTokenizer([x for x in own.symbols if len(x) == 1 and x != WORD_GAP]).extended(words)

    def state(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "vocabulary", "symbols": self.symbols, "unknown": self.unknown, "lower": self.lower}


class PieceTokenizer(Tokenizer):
    """The pieces of a published model, encoded and decoded by the library `tokenizers`.

    Args:
        model: contents of tokenizer.json.
        order: index of each symbol in tokenizer.json, the blank first.

    Raises:
        UserError: `tokenizers` isn't installed, or the model can't be read or lacks a symbol.
    """

    unit: Unit = "piece"

    def __init__(self, model: str, order: list[int]):
        try:
            import tokenizers
        except ImportError:
            raise UserError(
                "pieces of published models need pip install 'clustered-asr[transformers]'"
            ) from None
        try:
            self._own: Any = tokenizers.Tokenizer.from_str(model)
        except BaseException as error:  # the library panics with an exception that isn't an Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"expected a model of tokenizers, found one that can't be read: {reason}"
            ) from None
        self.model, self.order = model, order
        found: list[Any] = [self._own.id_to_token(number) for number in order]
        if None in found:
            missing = order[found.index(None)]
            raise UserError(f"expected a piece for each output, found none for {missing}")
        self.symbols = [BLANK, *found[1:]]
        self._label = {number: label for label, number in enumerate(order)}

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        numbers = self._own.encode(_speech(text), add_special_tokens=False).ids
        return [self._label[x] for x in numbers if self._label.get(x)]

    def oov(self, text: str) -> list[str]:
        """Return the words for which `encode` needs an unknown piece."""
        return [
            word
            for word in _speech(text).split()
            if UNKNOWN in self.tokens(self.encode(word)) or not self.encode(word)
        ]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text with single spaces."""
        found: str = self._own.decode([self.order[x] for x in ids if x > 0], skip_special_tokens=False)
        return " ".join(found.split())

    def state(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "pieces", "model": self.model, "order": self.order}


class SentencePieceTokenizer(Tokenizer):
    """Unigram sentence pieces (Kudo 2018), trained in memory.

    Attributes:
        model: contents of the sentencepiece `.model` file.
    """

    unit: Unit = "piece"

    def __init__(self, model: bytes):
        import sentencepiece

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._processor.id_to_piece(index) for index in range(len(self._processor))]
        self.symbols = [BLANK, *pieces]

    @classmethod
    def train(cls, texts: Iterable[str], pieces: int) -> "SentencePieceTokenizer":
        """Train a model with `pieces` pieces, including `<unk>`; deterministic for given texts and order."""
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=map(_speech, texts),
                model_writer=model,
                model_type="unigram",
                vocab_size=pieces,
                character_coverage=1.0,
                normalization_rule_name="identity",
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                unk_surface="⁇",  # the default has spaces around it, which would divide a word
                num_threads=1,
                minloglevel=2,
                max_sentence_length=2**30,  # bytes; longer texts would be skipped silently
            )
        except (RuntimeError, ValueError) as error:  # ValueError: the number exceeds its integers
            reason = str(error).strip().rpartition("] ")[2]
            raise UserError(f"pieces={pieces}: sentencepiece can't learn that many: {reason}") from None
        return cls(model.getvalue())

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return [index + 1 for index in self._processor.encode(_speech(text))]

    def oov(self, text: str) -> list[str]:
        """Return the words with a character that no piece covers."""
        unknown = self._processor.unk_id()
        return [word for word in _speech(text).split() if unknown in self._processor.encode(word)]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text, with `⁇` for unknown pieces."""
        return " ".join(self._processor.decode([index - 1 for index in ids if index > 0]).split())

    def state(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "sentencepiece", "model": self.model}


def build_tokenizer(
    kind: str, texts: Iterable[str], lexicon: Lexicon | None = None, pieces: int = 500
) -> Tokenizer:
    """Build a tokenizer from the training transcripts.

    Args:
        kind: `phone`, `character` or `sentencepiece`.
        texts: training transcripts.
        lexicon: pronunciation lexicon; required for phones.
        pieces: number of sentence pieces, including `<unk>`.

    Raises:
        UserError: the kind is unknown, phones have no lexicon, or there are too many pieces for the texts.
    """
    match kind:
        case "phone":
            if lexicon is None:
                raise UserError(
                    "phones need a lexicon: expected lexicon.txt beside the manifests, found none"
                )
            return PhoneTokenizer(lexicon)
        case "character":
            return CharacterTokenizer.train(texts)
        case "sentencepiece":
            return SentencePieceTokenizer.train(texts, pieces)
    raise UserError(f"unknown tokenizer {kind!r}{did_you_mean(kind, KINDS)}")


def tokenizer_from_state(state: Mapping[str, Any], source: str = "tokenizer") -> Tokenizer:
    """Restore the tokenizer stored in a checkpoint.

    Args:
        state: result of `Tokenizer.state`.
        source: file, for messages.

    Raises:
        UserError: this version doesn't know the kind, or the library for the pieces is missing.
    """
    match state["kind"]:
        case "phone":
            lexicon = {word: list(map(tuple, said)) for word, said in state["pronunciations"].items()}
            return PhoneTokenizer(Lexicon(lexicon, tuple(state.get("unspoken", ()))))
        case "character":
            return CharacterTokenizer(state["characters"])
        case "vocabulary":
            return VocabularyTokenizer(state["symbols"], state["unknown"], state["lower"])
        case "pieces":
            return PieceTokenizer(state["model"], state["order"])
        case "sentencepiece":
            return SentencePieceTokenizer(state["model"])
    raise UserError(f"{source}: expected a tokenizer of this version's kinds, found {state['kind']!r}")


def case_of(words: Iterable[str]) -> Callable[[str], str]:
    """Return `str.lower` or `str.upper` if all words except tags have that case, else `str`."""
    written = "".join(word for word in words if not word.startswith(TAGS))
    for change in (str.lower, str.upper):
        if change(written) == written != written.swapcase():
            return change
    return str


def _speech(text: str) -> str:
    """Return the text without noises, with single spaces."""
    words = text.split()
    if not NOISE_WORDS.isdisjoint(words):
        words = [word for word in words if word not in NOISE_WORDS]
    return " ".join(words)
