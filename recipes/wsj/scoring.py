"""What the field leaves out and repairs in references and hypotheses of WSJ before words are compared."""

from asr.scoring.word_filter import WordFilterRules

SCORING = WordFilterRules(
    drop=["<NOISE>", "<SPOKEN_NOISE>", "<UNK>"],
    delete=[":", "*"],
    replace={
        "-HOLDER": "HOLDER",
        "COMPAIGN": "CAMPAIGN",
        "APPROACHES-": "APPROACHES",
        "RESEACHERS": "RESEARCHERS",
    },
)
