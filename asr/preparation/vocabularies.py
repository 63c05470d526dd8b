"""The vocabularies that a preparation makes for its recipe's configurations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asr.errors import UserError
from asr.preparation.drafts import Drafts
from asr.text.lexicon import Lexicon
from asr.text.prepared import parse_name, tokenizer_files
from asr.text.tokenizer import build_tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that was asked for.

    Attributes:
        name: see `asr.text.prepared.tokenizer_name`.
        symbols: how many, the blank among them; 0: it could not be made.
        digest: of the tokenizer, as runs note it in environment.json.
        reason: why it could not be made.
    """

    name: str
    symbols: int = 0
    digest: str = ""
    reason: str = ""


def draft_vocabularies(
    names: Sequence[str],
    texts: Sequence[str],
    lexicon: Lexicon | None,
    drafts: Drafts,
    say: Callable[[str], None],
) -> list[Vocabulary]:
    """Make and draft the tokenizers of these names, as far as texts and lexicon allow it.

    Args:
        names: see `asr.text.prepared.tokenizer_name`.
        texts: the training transcripts.
        lexicon: of the phones.
        drafts: where their files go.
        say: is told what takes long.
    """
    vocabularies = []
    for name in names:
        if name != "phone" and texts:
            say(f"learning the tokenizer {name} from {len(texts):,} transcripts")
        vocabulary, files = _make_vocabulary(name, texts, lexicon)
        for file, content in files.items():
            drafts.path(file).write_bytes(content)
        vocabularies.append(vocabulary)
    return vocabularies


def _make_vocabulary(
    name: str, texts: Sequence[str], lexicon: Lexicon | None
) -> tuple[Vocabulary, dict[str, bytes]]:
    kind, pieces = parse_name(name)
    if kind == "phone" and lexicon is None:
        return Vocabulary(name, reason="there is no lexicon"), {}
    if kind != "phone" and not texts:
        return Vocabulary(name, reason="there are no training transcripts"), {}
    try:
        tokenizer = build_tokenizer(kind, texts, lexicon, pieces)
    except UserError as error:
        return Vocabulary(name, reason=str(error)), {}
    vocabulary = Vocabulary(name, len(tokenizer), tokenizer.digest)
    return vocabulary, tokenizer_files(name, tokenizer, texts, lexicon)
