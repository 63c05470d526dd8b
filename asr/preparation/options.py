"""Options of preparation."""

TEXT_RULES = {
    "none": "nothing else is changed",
    "lower": "lower-cased",
    "words": "lower-cased, punctuation removed except apostrophes and hyphens within words",
}
