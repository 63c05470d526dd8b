"""Hypotheses of decoding, from the results of a search."""

from typing import Any

from asr.scoring.hypotheses import Hypothesis
from asr.search.decoder import text_of, words_of
from asr.search.path import TokenPath
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import Tokenizer


def reference_tokens(tokenizer: Tokenizer, cut: Any, references: ReferencePhones | None) -> list[str]:
    """Return the labels of an utterance's transcript, of phones with the pronunciations in `references`."""
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
        words=_word_times(tokenizer, frame_s, path),
        nbest=[{"text": text_of(other, tokenizer), "score": other.score} for other in hypotheses]
        if nbest > 1
        else None,
    )


def _word_times(tokenizer: Tokenizer, frame_s: float, path: TokenPath) -> list[dict[str, Any]] | None:
    """Return each word with its times in seconds and the mean confidence of its labels."""
    words = words_of(path, tokenizer)
    if words is None:
        return None
    return [
        {
            "word": word.word,
            "start_s": round(path.frames[word.start] * frame_s, 3),
            "end_s": round(path.ends[word.end - 1] * frame_s, 3),
            "confidence": round(sum(path.confidences[word.start : word.end]) / (word.end - word.start), 4),
        }
        for word in words
    ]
