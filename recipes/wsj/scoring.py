"""The customary filter for WSJ references and hypotheses before scoring."""

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
