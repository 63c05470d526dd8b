"""Recipe switchboard: words, segments, splits and the segments of eval2000."""

import pytest
from asr_recipes.switchboard.eval2000 import Span, widened
from asr_recipes.switchboard.splits import divide, without_copies
from asr_recipes.switchboard.transcripts import SideSegment, parse_segment
from asr_recipes.switchboard.words import map_word


@pytest.mark.parametrize(
    ("written", "trained"),
    [
        ("[laughter-story]", "story"),
        ("[laughter-b[ecause]-]", "b-"),
        ("[it'n/isn't]", "it'n"),
        ("[lem[guini]-/linguini]", "lem-"),
        ("-[an]y", "-y"),
        ("[an]y", "-y"),
        ("ab[solute]-", "ab-"),
        ("ab[solute]", "ab-"),
        ("ex[specially]-/especially]", "ex"),
        ("{yuppiedom}", "yuppiedom"),
        ("ammu[n]it-", "ammu-it-"),
        ("them_1", "them"),
        ("them_1's", "them's"),
        ("[Noise]", "[noise]"),
        ("[vocalized-noise]", "[vocalized-noise]"),
        ("[laughter]", "[laughter]"),
        ("[SILENCE]", None),
        ("<B_ASIDE>", None),
        ("<e_aside>", None),
        ("Uh-huh", "uh-huh"),
        ("o'clock", "o'clock"),
        ("sixty-", "sixty-"),
        ("20/20", "20/20"),
        ("and/or", "and/or"),
        ("[vocalized-laughter]", "[laughter]"),
        ("[noise]-[laughter]", "[noise] [laughter]"),
    ],
)
def test_word_mapping(written, trained):
    assert map_word(written) == trained


@pytest.mark.parametrize("written", ["[bang]", "<c_aside>", "[a", "b]", "{}", "[laughter-]"])
def test_unknown_markup_is_refused(written):
    with pytest.raises(ValueError, match="known markup"):
        map_word(written)


def test_a_line_becomes_a_segment_with_kaldis_id():
    line = "sw2001A-ms98-a-0002 0.977625 11.561375 hi um yeah [silence] i'd [laughter-like]"
    segment = parse_segment(line)
    assert segment == SideSegment("sw02001", "A", 98, 1156, "hi um yeah i'd like")
    assert segment.name == "sw02001-A_000098-001156"
    assert parse_segment(line.replace(" ", "\t", 3)) == segment


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sw2001A-ms98-a-0002 0.9 x hi", "expected `sw2001A"),
        ("sw2001C-ms98-a-0002 0.9 1.0 hi", "expected `sw2001A"),
        ("sw2001A-ms98-a-0002 1.0 0.9 hi", "end after the start"),
        ("sw2001A-ms98-a-0002 0.9 1.5 [bang]", r"\[bang\]"),
    ],
)
def test_a_broken_line_is_refused(line, found):
    with pytest.raises(ValueError, match=found):
        parse_segment(line)


def test_splits_match_kaldi():
    segments = [SideSegment("sw02001", "A", i, i + 1, "uh-huh" if i % 2 else f"text {i}") for i in range(20)]
    splits = divide(reversed(segments), development=4)
    assert [segment.start for segment in splits["train_dev"]] == [0, 1, 2, 3]
    assert [segment.start for segment in splits["train_nodev"]] == list(range(4, 20))
    assert splits["train_nodup"] == splits["train_nodev"]  # fewer than 300 copies


def test_copies_of_a_text_are_drawn_from_all_conversations():
    """The first 300 copies by id were all from early conversations."""
    segments = [
        SideSegment("sw02001", "A", i, i + 1, "uh-huh" if i % 2 else f"text {i}") for i in range(8000)
    ]
    kept = list(without_copies(segments))
    assert kept == list(without_copies(segments))
    copies = [segment.start for segment in kept if segment.text == "uh-huh"]
    assert len(kept) - len(copies) == 4000
    assert 250 < len(copies) < 350
    assert 3500 < sum(copies) / len(copies) < 4500


def test_ids_of_eval2000_truncate_times_as_kaldis():
    """478 of 4,459 ids differed from the usual ones by a hundredth of a second."""
    assert Span("en_4156", "A", 0.29, 16.4).name == "en_4156-A_000028-001639"
    assert Span("en_4156", "A", 301.85, 357.64).name == "en_4156-A_030185-035764"


def test_segments_are_extended_into_gaps():
    """The cases of Kaldi's extend_segments.pl: 0.1 s, at most half the gap, nothing at overlaps."""
    spans = {
        "first": Span("en_1", "A", 0.05, 1.0),
        "near": Span("en_1", "A", 1.1, 2.0),
        "overlapping": Span("en_1", "A", 1.9, 3.0),
        "far": Span("en_1", "A", 5.0, 6.0),
        "other side": Span("en_1", "B", 1.0, 1.5),
    }
    wide = widened(spans)
    assert {name: (round(x.start_s, 3), round(x.end_s, 3)) for name, x in wide.items()} == {
        "first": (0.0, 1.05),
        "near": (1.05, 2.0),
        "overlapping": (1.9, 3.1),
        "far": (4.9, 6.1),
        "other side": (0.9, 1.6),
    }
