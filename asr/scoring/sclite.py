"""References and hypotheses in NIST sclite's trn format, for those who score with it."""

from collections.abc import Iterable
from pathlib import Path

from asr.scoring.hypotheses import Hypothesis


def write_trn(folder: str | Path, hypotheses: Iterable[Hypothesis]) -> tuple[Path, Path]:
    """Write `ref.trn` and `hyp.trn`: one `words (speaker-utterance)` per line, words where there are any
    and tokens otherwise. Score them with `sclite -i wsj -r ref.trn trn -h hyp.trn trn`.

    sclite aligns at costs 4, 3, 3 for substitution, deletion and insertion. Its total is that of `score` or
    slightly higher, and has fewer substitutions for more deletions and insertions.
    """
    reference_path, hypothesis_path = Path(folder, "ref.trn"), Path(folder, "hyp.trn")
    with open(reference_path, "w") as references, open(hypothesis_path, "w") as heard:
        for hypothesis in hypotheses:
            label = f"({hypothesis.speaker.replace('-', '_')}-{hypothesis.id})"
            if hypothesis.text is not None and hypothesis.reference is not None:
                reference, text = hypothesis.reference, hypothesis.text
            else:
                reference, text = " ".join(hypothesis.reference_tokens or []), " ".join(hypothesis.tokens)
            references.write(f"{reference} {label}\n")
            heard.write(f"{text} {label}\n")
    return reference_path, hypothesis_path
