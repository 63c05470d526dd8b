"""Makes hypotheses from the results of a search."""

import dataclasses
from typing import Any

from asr.scoring.hypotheses import Hypothesis
from asr.search.path import TokenPath, text_of, words_of
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import Tokenizer


def reference_tokens(tokenizer: Tokenizer, cut: Any, references: ReferencePhones | None) -> list[str]:
    """Return the labels of an utterance's transcript; `references` has the pronunciations for phones."""
    text = cut.supervisions[0].text
    return references(text) if references else tokenizer.tokens(tokenizer.encode(text))


def hypothesis_of(
    tokenizer: Tokenizer, frame_s: float, path: TokenPath, cut: Any, reference: list[str], nbest: int
) -> Hypothesis:
    """Return the hypothesis of an utterance.

    Args:
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        path: result of the search.
        cut: the utterance.
        reference: labels of the reference.
        nbest: number of texts to keep.
    """
    supervision = cut.supervisions[0]
    hypotheses = [path, *path.alternatives]
    words = words_of(path, tokenizer)
    return Hypothesis(
        id=cut.id,
        speaker=supervision.speaker or "unknown",
        duration_s=cut.duration,
        reference=supervision.text,
        reference_tokens=reference,
        tokens=tokenizer.tokens(path.ids),
        times_s=[round(frame * frame_s, 3) for frame in path.frames],
        text=text_of(path, tokenizer),
        unit=tokenizer.unit,
        words=None if words is None else [dataclasses.asdict(word) for word in path.timed(words, frame_s)],
        nbest=[{"text": text_of(other, tokenizer), "score": other.score} for other in hypotheses]
        if nbest > 1
        else None,
    )
