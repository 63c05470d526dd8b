"""Hub-5 scores equal sclite's: frozen counts, and a direct comparison if SCTK is installed."""

import pytest
from hub5_cases import CASES, GLM, SUBSETS, fixed_test_set, random_test_set, write_test_set

from asr.errors import UserError
from asr.scoring.ctm import CtmAlternatives, CtmWord
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.glm import Glm, Rule, read_glm
from asr.scoring.hub5 import filter_entry, score_segments
from asr.scoring.network import align_networks, network_of
from asr.scoring.sclite import find_hubscr, run_hubscr
from asr.scoring.stm import Stm, StmSegment

HUBSCR = find_hubscr()
needs_sctk = pytest.mark.skipif(HUBSCR is None, reason="needs NIST's hubscr.pl (Debian's package sctk)")


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("glm") / "rules.glm"
    path.write_text(GLM)
    return read_glm(path, "reference"), read_glm(path, "hypothesis")


def pooled(scores):
    return sum((score.counts for score in scores), ErrorCounts())


def summary(counts):
    right = counts.length - counts.substitutions - counts.deletions
    return counts.length, right, counts.substitutions, counts.deletions, counts.insertions


@pytest.fixture(scope="module")
def scored_cases(rules):
    return {score.segment.speaker: score for score in score_segments(*fixed_test_set(), *rules)}


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: CASES[i].reference or "empty")
def test_counts_equal_the_frozen_counts_of_sclite(number, scored_cases):
    score = scored_cases.get(f"case{number:02d}")
    assert (score and summary(score.counts)) == CASES[number].counts


@pytest.mark.slow
@needs_sctk
def test_sclite_gives_the_frozen_counts(tmp_path):
    files = write_test_set(tmp_path, *fixed_test_set())
    result = run_hubscr(HUBSCR, *files)
    assert result.segments == sum(case.counts is not None for case in CASES)
    scored = [case.counts for case in CASES if case.counts]
    assert summary(result.counts) == tuple(map(sum, zip(*scored, strict=True)))


@pytest.mark.slow
@needs_sctk
@pytest.mark.parametrize("seed", [1, 2, 3, 10])
def test_counts_of_all_subsets_equal_those_of_sclite(seed, tmp_path):
    stm, heard = random_test_set(seed)
    assert any(word in segment.text for segment in stm.segments for word in "{(@-")
    for prefixes in SUBSETS.values():
        own = [word for word in heard if word.file.startswith(prefixes)]
        part = stm.restricted(prefixes)
        ref, hyp, glm = write_test_set(tmp_path, part, own)
        theirs = run_hubscr(HUBSCR, ref, hyp, glm)
        scores = score_segments(part, own, read_glm(glm, "reference"), read_glm(glm, "hypothesis"))
        assert (len(scores), pooled(scores)) == (theirs.segments, theirs.counts)
        assert theirs.counts.errors > 50


# segments, words, right, substitutions, deletions, insertions by SCTK 2.4.10
FROZEN = {1: (147, 831, 641, 114, 76, 71), 2: (146, 779, 589, 115, 75, 65), 3: (144, 823, 572, 94, 157, 62)}


def test_random_sets_have_the_frozen_counts_of_sclite(rules):
    """Runs without sclite."""
    found = {}
    for seed in (1, 2, 3):
        scores = score_segments(*random_test_set(seed), *rules)
        found[seed] = (len(scores), *summary(pooled(scores)))
    assert found == FROZEN


def test_a_word_belongs_to_the_segment_with_its_midpoint():
    segments = [StmSegment("f", "A", "s", t, t + 1.0, "", text) for t, text in ((0.0, "A"), (1.0, "B"))]

    def score(start_s):
        words = [CtmWord("f", "A", start_s, 0.2, "b")]
        return [pooled([x]).errors for x in score_segments(Stm(segments, []), words)]

    assert score(0.89) == [1, 1]  # midpoint in the first: a substitution there, a deletion in the next
    assert score(0.91) == [1, 0]
    assert score(7.0) == [1, 0]  # after all segments: assigned to the last


def test_a_channel_without_words_is_deleted_and_an_unknown_channel_raises():
    stm = Stm([StmSegment("f", c, "s", 0, 1, "", "A B") for c in "AB"], [])
    scores = score_segments(stm, [CtmWord("f", "B", 0.1, 0.2, "a")])
    assert [x.counts.deletions for x in scores] == [2, 1]
    with pytest.raises(UserError, match="recording g, channel A: expected it in the reference"):
        score_segments(stm, [CtmWord("g", "A", 0.1, 0.2, "a")])


def test_the_error_for_broken_markup_names_the_segment():
    for text in ("{ A / B", "{ }", "(A"):
        stm = Stm([StmSegment("f", "A", "s", 2, 3.5, "", text)], [])
        with pytest.raises(UserError, match=r"segment f A 2–3\.5 s: expected"):
            score_segments(stm, [])


def test_mapping_a_word_to_several_divides_its_duration():
    entry = CtmWord("f", "A", 1.0, 0.3, "okay", 0.5)
    (first, second) = filter_entry(entry, Glm([Rule("OKAY", "O. K.")]))
    assert (first.word, first.start_s, first.duration_s) == ("O.", 1.0, 0.15)
    assert (second.word, second.start_s, second.confidence) == ("K.", 1.15, 0.5)
    (both,) = filter_entry(entry, Glm([Rule("OKAY", "{O. K. / FINE}")]))
    assert isinstance(both, CtmAlternatives)
    assert [[word.word for word in choice] for choice in both.choices] == [["O.", "K."], ["FINE"]]
    assert both.middle_s == pytest.approx(1.225)
    assert filter_entry(entry, Glm([Rule("OKAY", "")])) == []


def test_alternatives_that_rules_delete_are_no_words():
    """Alternatives without any word left ended the scoring, because they had no midpoint."""
    choices = tuple((CtmWord("f", "A", 0.2, 0.1, word),) for word in ("uh", "um"))
    entry = CtmAlternatives("f", "A", choices)
    rules = Glm([Rule("UH", ""), Rule("UM", "")])
    assert filter_entry(entry, rules) == []
    (kept,) = filter_entry(entry, Glm([Rule("UH", "")]))
    assert [[word.word for word in choice] for choice in kept.choices] == [[], ["UM"]]
    segments = [StmSegment("f", "A", "s", t, t + 1.0, "", "A") for t in (0.0, 1.0)]
    scores = score_segments(Stm(segments, []), [entry], hypothesis_rules=rules)
    assert [summary(score.counts) for score in scores] == [(1, 0, 0, 1, 0)] * 2


def test_the_alignment_shows_the_path_taken_through_the_network():
    edits = align_networks(network_of("(uh) { he's / he is } ba- gone"), network_of("he is bad now"))
    assert [(edit.operation, edit.reference, edit.hypothesis) for edit in edits] == [
        ("=", "(uh)", ""),
        ("=", "he", "he"),
        ("=", "is", "is"),
        ("=", "ba-", "bad"),
        ("S", "gone", "now"),
    ]
