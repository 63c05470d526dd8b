from dataclasses import replace

import pytest

from asr.errors import UserError
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.scoring.score import score, scored_phones, scored_words


def hypothesis(
    ident, reference, text, *, phones=None, heard=None, speaker="s1", unit="phone", duration_s=1.0
):
    tokens = (heard or "").split()
    return Hypothesis(
        ident,
        speaker,
        duration_s,
        reference,
        None if phones is None else phones.split(),
        tokens,
        [0.0] * len(tokens),
        text,
        unit,
    )


def test_rates_of_phones_words_and_characters():
    hypotheses = [
        hypothesis("u1", "go on", "go in", phones="G OW AA N", heard="G OW IH N"),
        hypothesis("u2", "go", "go", phones="G OW", heard="G OW", speaker="s2"),
    ]
    result = replace(score(hypotheses), decode_s=0.5, lexicon="abc")
    assert result.rates["per"].counts == ErrorCounts(1, 0, 0, 6)
    assert result.rates["wer"].counts == ErrorCounts(1, 0, 0, 3)
    assert result.rates["cer"].counts == ErrorCounts(1, 0, 0, 7)
    assert [(speaker.speaker, speaker.counts["per"].errors) for speaker in result.speakers] == [
        ("s1", 1),
        ("s2", 0),
    ]
    assert [utterance.id for utterance in result.utterances] == ["u1", "u2"]
    written = result.as_dict()
    assert {name: written[name] for name in ("utterances", "audio_s", "decode_s", "lexicon")} == {
        "utterances": 2,
        "audio_s": 2.0,
        "decode_s": 0.5,
        "lexicon": "abc",
    }
    assert set(written["per"]) == {"rate", "interval", "substitutions", "deletions", "insertions", "length"}


def test_noise_and_unknown_words_do_not_count_as_phones():
    result = score([hypothesis("u", None, None, phones="NSN G OW SPN", heard="G SPN SPN OW")])
    assert result.rates["per"].counts == ErrorCounts(0, 0, 0, 2)
    assert list(result.rates) == ["per"]


def test_validation_tuning_and_scoring_count_the_same_errors():
    """`asr score` used sclite's costs, validation and tuning unit costs, and validation counted noises: one
    hypothesis had several error rates.
    """
    reference, heard = "NSN a b c d e", "d e f g h"
    utterance = hypothesis("u", f"{reference}", heard.upper(), phones=reference, heard=heard)

    def without_noise(words):
        return [word for word in words if word != "NSN"]

    result = score([utterance], filter_words=without_noise)
    phones = [scored_phones(reference.split())], [scored_phones(heard.split())]
    words = [scored_words([text], without_noise) for text in (utterance.reference, utterance.text)]
    for metric, tokens in (("per", phones), ("wer", words)):
        assert result.rates[metric].counts == ErrorCounts.between(*tokens) == ErrorCounts(5, 0, 0, 5)
    official = score([utterance], ScoreOptions(align="sclite"), without_noise)
    assert official.rates["per"].counts == official.rates["wer"].counts == ErrorCounts(0, 3, 3, 5)
    assert (result.as_dict()["alignment"], official.as_dict()["alignment"]) == ("unit", "sclite")


def test_per_applies_only_to_phones():
    result = score([hypothesis("u", "go on", "go on", phones="g o o n", heard="g o", unit="character")])
    assert set(result.rates) == {"wer", "cer"}


@pytest.mark.parametrize(
    ("unit", "rates", "headlines", "worst"),
    [
        ("phone", ["per", "wer", "cer"], ["per", "wer"], "phones"),
        ("character", ["cer", "wer"], ["cer", "wer"], "letters"),
        ("piece", ["wer", "cer"], ["wer"], "words"),
    ],
)
def test_the_main_error_rate_comes_first(unit, rates, headlines, worst):
    """For models of characters, `asr decode` and `score` put WER first, and sorted by it."""
    utterances = [
        hypothesis("phones", "a b", "a b", phones="a b", heard="a", unit=unit),
        hypothesis("words", "going going", "goin going", phones="a b", heard="a b", unit=unit),
        hypothesis("letters", "go on then", "go on ", phones="a b", heard="a b", unit=unit),
    ]
    result = score(utterances)
    assert (list(result.rates), result.headlines) == (rates, headlines)
    assert result.utterances[0].id == worst


def test_words_are_filtered_on_both_sides_and_compared_case_insensitively():
    def without_noise(words):
        return [word for word in words if word != "<NOISE>"]

    utterance = hypothesis("u", "<NOISE> GO ON", "go <NOISE> <NOISE> on")
    result = score([utterance], filter_words=without_noise)
    assert result.rates["wer"].counts == ErrorCounts(0, 0, 0, 2)
    assert result.rates["cer"].counts == ErrorCounts(0, 0, 0, 5)
    assert score([utterance], ScoreOptions(text="none"), without_noise).rates["wer"].rate == 1.0


def test_the_worst_utterances_come_first_by_rate_then_errors():
    result = score(
        [
            hypothesis("good", "a b", "a b"),
            hypothesis("all wrong", "a", "b"),
            hypothesis("all wrong and long", "a b", "c d"),
            hypothesis("half", "a b", "a c"),
        ]
    )
    assert [u.id for u in result.utterances] == ["all wrong and long", "all wrong", "half", "good"]


def test_an_empty_reference_counts_insertions():
    result = score([hypothesis("u1", "", "a b"), hypothesis("u2", "a b c d", "a b c d")])
    assert result.rates["wer"].counts == ErrorCounts(0, 0, 2, 4)
    assert result.utterances[0].id == "u1"


@pytest.mark.parametrize(
    ("hypotheses", "message"),
    [
        ([], "expected hypotheses to score, found none"),
        ([hypothesis("u1", "a", "a")] * 2, "utterance 'u1': expected once, found 2 times"),
        ([hypothesis("u1", "a", "a"), hypothesis("u2", None, "a")], "utterance 'u2': expected a reference"),
        (
            [hypothesis("u1", "", "a"), hypothesis("u2", "", "")],
            "utterance 'u1' and all others.*word for WER",
        ),
        ([hypothesis("u1", "", None, phones="NSN", heard="A")], "expected a reference phone for PER"),
        (
            [hypothesis("u1", "a", "a"), hypothesis("u2", "a", None)],
            "utterance 'u2': expected text as in other",
        ),
        (
            [hypothesis("u1", "a", "a"), hypothesis("u2", "a", "a", unit="piece")],
            "'u2': expected unit 'phone'",
        ),
        ([hypothesis("u1", "a", None)], "utterance 'u1': expected reference phones, or"),
    ],
)
def test_errors_name_what_cannot_be_scored(hypotheses, message):
    with pytest.raises(UserError, match=message):
        score(hypotheses)
