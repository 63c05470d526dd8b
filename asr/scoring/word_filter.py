"""A recipe's scoring rules, which drop, clean and correct words before scoring.

`asr prepare` writes them to scoring.json beside the manifests, `asr decode` copies them into decode.json, and
`asr score` applies them to both references and hypotheses.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.data.places import WORD_RULES
from asr.errors import UserError
from asr.files import build, read_json, write_text


@dataclass(frozen=True)
class WordFilterRules:
    """Scoring rules, applied in the order of the attributes.

    Attributes:
        drop: words to leave out.
        delete: strings to delete anywhere in a word.
        replace: strings to replace anywhere in a word, for misspellings in the references.

    >>> rules = WordFilterRules(drop=["<NOISE>"], delete=[":"], replace={"COMPAIGN": "CAMPAIGN"})
    >>> rules(["A:ND", "<NOISE>", ":", "COMPAIGNS"])
    ['AND', 'CAMPAIGNS']
    """

    drop: list[str] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    replace: dict[str, str] = field(default_factory=dict)

    def __call__(self, words: list[str]) -> list[str]:
        """Return the words to score; a word that becomes empty is left out."""
        kept = []
        for word in words:
            if word in self.drop:
                continue
            for text in self.delete:
                word = word.replace(text, "")
            for wrong, right in self.replace.items():
                word = word.replace(wrong, right)
            if word:
                kept.append(word)
        return kept

    @classmethod
    def from_dict(cls, values: Any, source: str) -> "WordFilterRules":
        """Make rules from plain data; raise a `UserError` that names `source` if they are invalid."""
        rules: WordFilterRules = build(cls, values, f"{source}: scoring rules")
        if "" in (*rules.drop, *rules.delete, *rules.replace):
            raise UserError(f"{source}: expected scoring rules without empty strings, found {values!r}")
        return rules

    def save(self, path: Path) -> None:
        """Write the rules as JSON."""
        write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", path)


def rules_beside(manifest: Path) -> WordFilterRules | None:
    """Return the rules in scoring.json beside a manifest, or None."""
    path = manifest.parent / WORD_RULES
    if not path.is_file():
        return None
    return WordFilterRules.from_dict(read_json(path), str(path))
