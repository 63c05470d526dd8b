"""`asr compare model=… data=…` with CTC models: a published one and a run; layer by layer."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from once import once
from published_models import make_voices, save_ctc, sentence, train_ctc
from tone_corpora import make_cut, save_cuts

from asr.cli import main
from asr.experiment.results import read_results
from asr.experiment.transcribers import CTCTranscriber, plain_words
from asr.experiment.variant import Variant
from asr.recognizer import Recognizer
from asr.report.tables.scores import by_layer

TEXTS = [sentence(random.Random(i)).lower() for i in range(100, 106)]
EXACT = "near-150:topk=150"  # as many clusters and keys as frames


@pytest.fixture(scope="module")
def published(shared: Path) -> Path:
    return once(shared / "published", train_ctc)


@pytest.fixture(scope="module")
def voices(shared: Path) -> Path:
    return once(shared / "six_voices", lambda folder: make_voices(folder, TEXTS))


def arguments(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    given = [f"model={model}", f"data={data}", f"folder={out}"]
    return ["compare", *given, "device=cpu", *more]


def rows(out: Path) -> dict[str, Any]:
    results = json.loads((out / "results.json").read_text())
    assert [size["timed"] for size in results["protocol"]["sizes"].values()] == ["encoder"]
    return {x["variant"]: x for x in results["evaluations"]}


def test_schedules_of_frames_are_rows_and_leave_the_model_as_it_was(published: Path) -> None:
    recognizer = Recognizer.load(published)
    model = CTCTranscriber(recognizer.model, recognizer.tokenizer, published)
    merged = "merge-0.4:cap=2,at=1"
    for text, attention, frames in (
        ("full frames=1,2", "full", "1,2"),
        (f"near-4 frames={merged}", "near-4", merged),
        ("local-3", "local-3", "1"),
    ):
        model.use(Variant.read(text), "fp32", "auto")
        assert (model.model.attention, model.model.config.model.frames) == (attention, frames)


@pytest.mark.slow
def test_an_exact_exchange_changes_nothing_and_a_window_does(
    published: Path, voices: Path, tmp_path: Path
) -> None:
    names = f"attentions=full,local-0,{EXACT}"
    precise = "candidates=['full precision=bf16']"
    assert main(arguments(published, voices, tmp_path, names, precise, "join_s=2")) == 0
    found = rows(tmp_path)
    for row in found.values():
        assert set(row["rates"]) == {"cer", "wer", "nll", "kl", "changed"}
    values = {name: {x: row["rates"][x]["rate"] for x in row["rates"]} for name, row in found.items()}
    assert values["full"]["kl"] == values["full"]["changed"] == 0
    assert values[EXACT]["kl"] < 1e-6
    assert values[EXACT]["nll"] == pytest.approx(values["full"]["nll"], rel=1e-4)
    assert values["local-0"]["kl"] > 1e-3
    assert 0 <= values["full precision=bf16"]["kl"] < values["local-0"]["kl"]
    kept = json.loads((tmp_path / "test/predictions-full.json").read_text())["predictions"]
    assert sum(len(item["utterances"]) for item in kept) == len(TEXTS) > len(kept)


def test_texts_and_likelihoods_are_those_of_the_recogniser(
    published: Path, voices: Path, tmp_path: Path
) -> None:
    assert main(arguments(published, voices, tmp_path, "attentions=full")) == 0
    kept = json.loads((tmp_path / "test/predictions-full.json").read_text())["predictions"]
    recognizer = Recognizer.load(published)
    for item, text in zip(kept, TEXTS, strict=True):
        assert item["text"] == recognizer.transcribe(voices / f"{item['utterances'][0]}.wav").text
        assert item["reference"] == text
        assert item["tokens"] == len(text)


@pytest.mark.slow
def test_layers_are_exchanged_one_at_a_time(published: Path, voices: Path, tmp_path: Path) -> None:
    options = ["attentions=full,local-0", "sweep=layers"]
    assert main(arguments(published, voices, tmp_path, *options)) == 0
    found = rows(tmp_path)
    assert list(found) == ["full", "local-0*1,full*1", "full*1,local-0*1"]
    first, second = (found[x]["rates"]["kl"]["rate"] for x in list(found)[1:])
    assert min(first, second) > 0
    assert first != second
    assert (tmp_path / "test/predictions-fullx1,local-0x1.json").is_file()
    options = ["attentions=full,full*1,local-0*1"]
    assert main(arguments(published, voices, tmp_path / "named", *options)) == 0
    named = rows(tmp_path / "named")
    assert list(named) == ["full", "full*1,local-0*1"]
    assert named["full*1,local-0*1"]["rates"] == found["full*1,local-0*1"]["rates"]


def test_frame_rates_are_tried_from_each_layer_on(published: Path, voices: Path, tmp_path: Path) -> None:
    """sweep=layers refused frames: which layers bear which factor was shown by the greedy search alone."""
    assert main(arguments(published, voices, tmp_path, "sweep=layers", "frames=2,3")) == 0
    found = rows(tmp_path)
    assert list(found) == ["full", "full frames=2", "full frames=1,2", "full frames=3", "full frames=1,3"]
    assert found["full frames=2"]["rates"]["kl"]["rate"] > found["full frames=1,2"]["rates"]["kl"]["rate"] > 0
    table = by_layer(read_results(tmp_path), "test")
    assert table is not None
    rate, layer = ([row[column].text for row in table.rows] for column in (0, 1))
    assert rate == ["full frames=2"] * 2 + ["full frames=3"] * 2
    assert layer == ["1", "2"] * 2


def test_a_transcript_with_more_labels_than_frames_is_named(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message had the text, without the utterance."""
    data = tmp_path / "data"
    make_voices(data, ["ab", "ac"])
    cuts = [make_cut(data / f"test-{i}.wav", text, f"test-{i}") for i, text in enumerate(("ab", "ac" * 6))]
    save_cuts(cuts, data / "test.cuts.jsonl.gz")
    assert main(arguments(published, data, tmp_path / "out", "frames=2")) == 1
    found = "utterance 'test-1': expected a transcript for 10 encoder frames, found 12 labels"
    assert found in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी में, है।", "हिन्दी में है"),
        ("தமிழ் மொழி", "தமிழ் மொழி"),
        ("ภาษาไทยที่ดี", "ภาษาไทยที่ดี"),
        ("It’s Ann’s", "it's ann's"),
        ("cafe\u0301", "café"),
        ("O'Brien's well-known (“new”) 3.5% — don't!", "o'brien's well known new 3 5 don't"),
        ("<NOISE> [noise] <spoken_noise> U.S. 10:30 one_two", "noise spoken noise u s 10 30 one two"),
    ],
)
def test_words_of_all_scripts_are_compared(text: str, words: str) -> None:
    """Hindi, Tamil and Thai words fell apart at their vowels, ’ differed from '."""
    assert plain_words(text) == words.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["sweep=layers", "attentions=full"], "sweep=layers: expected baseline=full and other attentions"),
        (["sweep=layers", "frames=['1,2']"], "frames=1,2: expected one factor for a layer with sweep=layers"),
        (
            ["sweep=layers", "attentions=full,full*1,local-0*1"],
            "sweep=layers: expected one mechanism for all",
        ),
        (["attentions=full,full*1,local-0*2"], "expected mechanisms for 2 layers, found 3"),
        (["language=de", "attentions=full"], "language=de: has no effect with a CTC model"),
        (["peers=transformers"], "peers=transformers: expected a Whisper folder"),
        (["layers=1"], "layers=1: has no effect with a CTC model"),
        (["frames=['1,2*2']"], "frames=1,2*2: expected factors for 2 layers, found 3"),
        (["frames=['merge-0.4:cap=2,at=3']"], "expected one of 2 layers, found at=3"),
        (["attentions=full,lsh-1"], "needs keys tied to the queries"),
        (["model=nowhere/else/model", "attentions=full"], "nowhere/else/model"),
    ],
)
def test_errors_are_one_line(
    options: list[str],
    message: str,
    voices: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_ctc(tmp_path / "model")
    capsys.readouterr()
    assert main(arguments(tmp_path / "model", voices, tmp_path / "out", *options)) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
