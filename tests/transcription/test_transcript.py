"""Words, segments and output formats of transcripts."""

import itertools
import json
import re

import pytest
from rich.cells import cell_len

from asr.search.path import TokenPath, Word
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer
from asr.transcription.formats import textgrid, write_transcript
from asr.transcription.transcript import (
    Segment,
    TimedWord,
    Transcript,
    split_segments,
    subtitle_lines,
    timed_words,
    transcript_of,
)

LEXICON = Lexicon({"go": [("G", "OW")], "on": [("AA", "N")]})


def words(*spans: tuple[str, float, float]) -> list[TimedWord]:
    return [TimedWord(word, start, end, 0.9) for word, start, end in spans]


def test_times_of_words_made_of_characters() -> None:
    tokenizer = CharacterTokenizer.train(["go on"])
    ids = tokenizer.encode("go on")
    path = TokenPath(ids, [2, 4, 5, 9, 10], ends=[3, 5, 6, 10, 14], confidences=[0.5, 0.7, 0.1, 1.0, 1.0])
    go, on = timed_words(path, tokenizer, frame_s=0.1)
    assert (go.word, go.start_s, go.end_s, go.confidence) == ("go", 0.2, 0.5, pytest.approx(0.6))
    assert (on.word, on.start_s, on.end_s, on.confidence) == ("on", 0.9, 1.4, 1.0)


def test_times_of_words_from_the_search_or_else_of_phones() -> None:
    tokenizer = PhoneTokenizer(LEXICON)
    ids = tokenizer.encode("go on")
    path = TokenPath(
        ids,
        [1, 2, 7, 8],
        ends=[2, 3, 8, 9],
        words=[Word("go", 0, 2), Word("on", 2, 4)],
        confidences=[1.0] * 4,
    )
    assert [(w.word, w.start_s, w.end_s) for w in timed_words(path, tokenizer, 1.0)] == [
        ("go", 1.0, 3.0),
        ("on", 7.0, 9.0),
    ]
    plain = TokenPath(ids, [1, 2, 7, 8], ends=[2, 3, 8, 9], confidences=[1.0] * 4)
    assert [w.word for w in timed_words(plain, tokenizer, 1.0)] == ["G", "OW", "AA", "N"]


def test_segments_end_at_pauses_or_after_two_lines_or_seven_seconds() -> None:
    paused = split_segments(words(("a", 0, 0.5), ("b", 0.6, 1), ("c", 1.8, 2)), min_confidence=0.5)
    assert [segment.text for segment in paused] == ["a b", "c"]
    assert [(segment.start_s, segment.end_s) for segment in paused] == [(0, 1), (1.8, 2)]
    many = split_segments(
        words(*((f"word{i}", 0.1 * i, 0.1 * i + 0.1) for i in range(40))), min_confidence=0.5
    )
    shown = [len(subtitle_lines(f"- {segment.text} [?]")) for segment in many]
    assert max(shown) == 2
    joined = (f"- {one.text} {two.words[0].word} [?]" for one, two in itertools.pairwise(many))
    assert all(len(subtitle_lines(text)) == 3 for text in joined)  # another word would not fit
    slow = split_segments(words(*(("a", float(i), i + 0.9) for i in range(20))), min_confidence=0.5)
    assert max(segment.end_s - segment.start_s for segment in slow) == pytest.approx(6.9)


CHINESE = (
    "今天天氣很好我們一起去公園散步然後回家吃飯看書聽音樂最後"
    "早點睡覺明天還要上班請不要忘記帶雨傘因為可能會下雨再見"
)


@pytest.mark.parametrize("spoken", [CHINESE, f"{CHINESE[:30]} {CHINESE[30:]} 12 好", "สวัสดีครับผมชื่อสมชาย" * 6])
def test_subtitles_of_scripts_without_spaces_keep_to_the_limits(spoken: str) -> None:
    """The whole of a Chinese recording was one word, hence one subtitle of one line."""
    tokenizer = CharacterTokenizer.train([spoken])
    ids = tokenizer.encode(spoken)
    frames = [4 * i for i in range(len(ids))]
    path = TokenPath(ids, frames, [x + 3 for x in frames], confidences=[0.9] * len(ids))
    made = transcript_of(path, tokenizer, frame_s=0.05, duration_s=len(ids), min_confidence=0.5, name="x")
    assert made.text == spoken
    assert len(made.segments) > 1
    for segment in made.segments:
        lines = subtitle_lines(segment.text)
        assert len(lines) <= 2
        assert max(map(cell_len, lines)) <= 42
        assert segment.end_s - segment.start_s <= 7.0
    assert "".join(x.text for x in made.segments).replace(" ", "") == spoken.replace(" ", "")
    if " " in spoken:
        assert any("12 好" in segment.text for segment in made.segments)


KOREAN = "오늘은 날씨가 아주 좋아서 우리는 함께 공원에 가서 산책을 하고 집에 돌아와 저녁을 먹었습니다"
HINDI = "आज मौसम बहुत अच्छा है इसलिए हम साथ में बगीचे में घूमने जाएंगे और फिर घर लौटकर खाना खाएंगे"


@pytest.mark.parametrize("spoken", [KOREAN, HINDI])
def test_lines_of_words_are_measured_in_columns(spoken: str) -> None:
    """A Korean line was 74 columns wide, a Hindi one broken after fewer than it may have."""
    lines = subtitle_lines(spoken)
    assert " ".join(lines) == spoken
    assert max(map(cell_len, lines)) <= 42
    for line, following in itertools.pairwise(lines):
        assert cell_len(f"{line} {following.split()[0]}") > 42


def test_short_words_without_spaces_stay_whole() -> None:
    tokenizer = CharacterTokenizer.train(["今天 好"])
    ids = tokenizer.encode("今天 好")
    path = TokenPath(ids, [0, 2, 4, 6], [1, 3, 5, 7], confidences=[0.9] * 4)
    made = transcript_of(path, tokenizer, frame_s=0.1, duration_s=1, min_confidence=0.5, name="x")
    assert [word.word for word in made.segments[0].words] == ["今天", "好"]
    assert made.segments[0].text == "今天 好"


def test_a_recording_without_labels_is_said_to_have_none(caplog: pytest.LogCaptureFixture) -> None:
    """The confidence of no labels is 0: audio of the training set was said to be unlike it."""
    path, tokenizer = TokenPath([], [], ends=[]), CharacterTokenizer.train(["go"])
    made = transcript_of(path, tokenizer, frame_s=0.1, duration_s=1, min_confidence=0.8, name="x.wav")
    assert (made.text, made.low_confidence) == ("", True)
    assert caplog.messages == ["x.wav: nothing recognised"]


def test_segments_with_low_confidence_are_marked() -> None:
    spans = [TimedWord("sure", 0, 1, 0.9), TimedWord("very", 1, 2, 0.8), TimedWord("unsure", 3, 3.5, 0.4)]
    first, second = split_segments(spans, min_confidence=0.5)
    assert (first.low_confidence, second.low_confidence) == (False, True)
    assert (first.confidence, second.confidence) == (pytest.approx(0.85), 0.4)


@pytest.fixture
def transcript() -> Transcript:
    long = " ".join(["sentences"] * 6)
    segments = [
        Segment("a < b", 0.5, 1.25, 0.9, False, words(("a", 0.5, 0.7), ("<", 0.7, 0.8), ("b", 0.8, 1.25))),
        Segment(long, 1.5, 4.0, 0.3, True, words((long, 1.5, 4.0))),
    ]
    return Transcript("a < b " + long, [], [], [], None, 3725.5, segments)


def test_subrip(transcript: Transcript) -> None:
    cues = write_transcript([transcript], "srt", "x.wav").split("\n\n")
    assert cues[0] == "1\n00:00:00,500 --> 00:00:01,500\na < b"  # shortened to end when the next one starts
    number, clock, *lines = cues[1].strip().splitlines()
    assert (number, clock) == ("2", "00:00:01,500 --> 00:00:04,400")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 42
    assert lines[-1].endswith(" [?]")


def test_no_subtitle_stays_for_more_than_seven_seconds() -> None:
    """One of 6.9 s stayed for 7.3 s."""
    slow = [Segment("a b", 1.0, 7.9, 0.9, False, words(("a", 1.0, 2.0), ("b", 7.5, 7.9)))]
    cue = write_transcript([Transcript("a b", [], [], [], None, 20.0, slow)], "srt", "x.wav")
    assert cue.splitlines()[1] == "00:00:01,000 --> 00:00:08,000"


def test_webvtt(transcript: Transcript) -> None:
    text = write_transcript([transcript], "vtt", "x.wav")
    assert text.startswith("WEBVTT\n\n00:00:00.500 --> 00:00:01.500\na &lt; b\n\n00:00:01.500 --> ")


def test_subtitles_of_several_channels_are_sorted_by_time_and_have_dashes(transcript: Transcript) -> None:
    other = Transcript(
        "c", [], [], [], None, 9.0, [Segment("c", 1.3, 1.4, 1.0, False, words(("c", 1.3, 1.4)))]
    )
    lines = write_transcript([transcript, other], "srt", "x.wav").splitlines()
    assert [line for line in lines if line.startswith("- ")][:2] == ["- a < b", "- c"]


def test_json_has_one_line_per_channel(transcript: Transcript) -> None:
    lines = write_transcript([transcript, transcript], "json", "x.wav").splitlines()
    assert [json.loads(line)["file"] for line in lines] == ["x.wav"] * 2
    assert json.loads(lines[0])["segments"][0]["words"][0]["start_s"] == 0.5


def read_textgrid(text: str) -> dict[str, list[tuple[float, float, str]]]:
    """Read Praat's long text format as in its manual, where names and spaces have no meaning."""
    values = re.findall(r'"(?:[^"]|"")*"|<exists>|(?<![\w"])-?\d+(?:\.\d+)?(?![\w"\]])', text)
    values = [value[1:-1].replace('""', '"') if value[0] == '"' else value for value in values]
    assert values[:2] == ["ooTextFile", "TextGrid"]
    end, exists, size, *rest = values[3:]
    assert exists == "<exists>"
    tiers = {}
    for _ in range(int(size)):
        kind, name, start, tier_end, count, *rest = rest
        assert (kind, start, tier_end) == ("IntervalTier", "0", end)
        tiers[name] = [
            (float(rest[3 * i]), float(rest[3 * i + 1]), rest[3 * i + 2]) for i in range(int(count))
        ]
        rest = rest[3 * int(count) :]
    assert not rest
    return tiers


def test_textgrid_intervals_have_no_gaps(transcript: Transcript) -> None:
    tiers = read_textgrid(write_transcript([transcript], "textgrid", "x.wav"))
    assert list(tiers) == ["segments", "words"]
    for intervals in tiers.values():
        assert intervals[0][0] == 0.0
        assert intervals[-1][1] == 3725.5
        assert all(a[1] == b[0] for a, b in itertools.pairwise(intervals))
        assert all(start < end for start, end, _ in intervals)
    assert [label for *_, label in tiers["words"]][:5] == ["", "a", "<", "b", ""]


def test_textgrid_doubles_quotes_and_accepts_empty_tiers() -> None:
    tiers = read_textgrid(textgrid({'the "words"': [(0.0, 1.0, 'say "go"')], "none": []}, 2.0))
    assert tiers == {'the "words"': [(0.0, 1.0, 'say "go"'), (1.0, 2.0, "")], "none": [(0.0, 2.0, "")]}


def test_a_recording_without_words_has_no_subtitles() -> None:
    """SubRip and WebVTT ended in a ValueError."""
    silent = Transcript("", [], [], [], [], 3.0, low_confidence=True)
    assert write_transcript([silent], "srt", "x.wav") == ""
    assert write_transcript([silent], "vtt", "x.wav") == "WEBVTT\n"
    assert read_textgrid(write_transcript([silent], "textgrid", "x.wav")) == {
        "segments": [(0.0, 3.0, "")],
        "words": [(0.0, 3.0, "")],
    }
