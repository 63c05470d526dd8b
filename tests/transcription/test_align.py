"""Alignment in batches: the times of one by one, and errors that concern one utterance."""

import json
from pathlib import Path

import pytest

from asr import Recognizer
from asr.cli import main
from asr.data.manifest import read_cuts
from asr.transcription import pipeline
from asr.transcription.align import Transcribed, align, groups_to_align, transcribed_cuts
from asr.transcription.options import EncodingOptions
from asr.transcription.posteriors import TOO_LONG, Posteriors


@pytest.fixture(scope="module")
def utterances(tone_corpus: Path) -> list[Transcribed]:
    return transcribed_cuts(read_cuts(tone_corpus / "train.cuts.jsonl.gz"))


@pytest.mark.slow
def test_times_are_those_of_one_by_one(recognizer: Recognizer, utterances: list[Transcribed]) -> None:
    options = EncodingOptions()
    batches = groups_to_align(recognizer.model, utterances, options)
    assert 1 < len(batches) < len(utterances)
    assert sorted(i for batch in batches for i in batch) == list(range(len(utterances)))
    found = []
    for groups in (batches, [[i] for i in range(len(utterances))]):
        results = align(
            recognizer.model, recognizer.tokenizer, utterances, groups, options, min_fit=0.0, name="train"
        )
        found.append({position: result.files for position, result in results})
    together, alone = found
    for position in range(len(utterances)):
        assert together[position].keys() == alone[position].keys()
        one, other = (json.loads(files[position]["train.jsonl"]) for files in found)
        assert one["fit"] == pytest.approx(other["fit"], abs=1e-3)
        assert [(word["start_s"], word["end_s"]) for word in one["words"]] == [
            (word["start_s"], word["end_s"]) for word in other["words"]
        ]


def test_long_utterances_are_aligned_alone_and_first(
    recognizer: Recognizer, utterances: list[Transcribed]
) -> None:
    longest_s = sorted(x.duration_s for x in utterances)[-3] / 1.5 - 1e-6
    recognizer.model.config.longest_s, before = longest_s, recognizer.model.config.longest_s
    try:
        groups = groups_to_align(recognizer.model, utterances, EncodingOptions())
        chunked = groups_to_align(recognizer.model, utterances, EncodingOptions(mode="chunked"))
    finally:
        recognizer.model.config.longest_s = before
    assert [len(group) for group in groups[:3]] == [1, 1, 1]
    assert {utterances[i].duration_s > 1.5 * longest_s for (i,) in groups[:3]} == {True}
    assert not any(utterances[i].duration_s > 1.5 * longest_s for group in groups[3:] for i in group)
    assert chunked == [[i] for i in range(len(utterances))]


def test_an_utterance_that_does_not_fit_into_memory_leaves_the_others(
    trained: Path,
    utterances: list[Transcribed],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = pipeline.encode
    longest = max(utterances, key=lambda x: x.duration_s)

    def limited(model: object, recordings: list[object]) -> Posteriors:
        if len(recordings) > 1 or len(recordings[0]) == round(16000 * longest.duration_s):
            raise RuntimeError("you can't allocate memory")
        return encode(model, recordings)

    monkeypatch.setattr(pipeline, "encode", limited)
    assert main(["align", str(trained), "split=train", f"output={tmp_path}", "min_fit=0"]) == 1
    shown = capsys.readouterr()
    assert f"{longest.stem}: {TOO_LONG}" in shown.err
    assert f"aligned {len(utterances) - 1} of {len(utterances)} utterances" in shown.out
