"""A CTC model that transformers trained on the embedded corpus: our texts, exchange, fine-tuning, export."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from once import once
from published_models import RATE, fit, trainable, transformers

from asr.cli import main
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.recognizer import Recognizer
from asr.scoring.error_rates import ErrorCounts

pytest.importorskip("espeakng_loader", reason="the extra `demo` is not installed")
pytestmark = pytest.mark.slow
SMALL = ["train_minutes=0.5", "dev_minutes=0.1", "test_minutes=0.3", "test_voices_minutes=0.1", "workers=1"]
SMALL += ["voices=2", "unseen_voices=1", "random_words=50", f"sample_rate={RATE}"]
STEPS = 300
Speech = list[tuple[NDArray[np.float32], str]]


@pytest.fixture(scope="module")
def corpus(shared: Path) -> Path:
    def make(folder: Path) -> None:
        assert main(["prepare", "demo", f"folder={folder}", *SMALL]) == 0

    return once(shared / "short_demo", make)


def read(corpus: Path, split: str) -> Speech:
    """Return recordings with their texts."""
    cuts = read_cuts(corpus / f"{split}.cuts.jsonl.gz")
    return [
        (np.asarray(load_cut(cut, RATE), np.float32).reshape(-1), cut.supervisions[0].text) for cut in cuts
    ]


@pytest.fixture(scope="module")
def published(corpus: Path, shared: Path) -> Path:
    """Folder of a model; the letters of a text were its targets at equal distances."""

    def make(folder: Path) -> None:
        speech = read(corpus, "train")
        letters = sorted({x for _, text in speech for x in text if x != " "})
        model = trainable(folder, ["<pad>", "<unk>", "|", *letters])
        source = random.Random(0)
        chosen = [source.choice(speech) for _ in range(STEPS)]
        batches = [([recording], [text]) for recording, text in chosen]
        fit(model, folder, batches, letters_in_turn, learning_rate=5e-3)

    return once(shared / "published_speech", make)


def letters_in_turn(text: str, frames: int) -> list[str]:
    """Return the symbols of a text, each for as many frames."""
    return [text.replace(" ", "|")[i * len(text) // frames] for i in range(frames)]


def pipeline_texts(folder: Path, speech: Speech) -> list[str]:
    """Return what transformers recognises, with single spaces."""
    process = transformers.AutoProcessor.from_pretrained(folder)
    recognise = transformers.pipeline(
        "automatic-speech-recognition",
        model=transformers.AutoModelForCTC.from_pretrained(folder),
        tokenizer=process.tokenizer,
        feature_extractor=process.feature_extractor,
    )
    found = [recognise({"raw": recording.copy(), "sampling_rate": RATE})["text"] for recording, _ in speech]
    return [" ".join(text.split()) for text in found]


def our_texts(place: Path, speech: Speech) -> list[str]:
    recognizer = Recognizer.load(place)
    return [recognizer.transcribe(recording, RATE).text for recording, _ in speech]


def test_texts_equal_those_of_the_pipeline(corpus: Path, published: Path) -> None:
    """On all utterances: those of the test sets are misheard, those of training nearly known by heart."""
    known, new = read(corpus, "train"), read(corpus, "test") + read(corpus, "test_voices")
    expected = pipeline_texts(published, known + new)
    assert our_texts(published, known + new) == expected
    assert min(map(len, expected)) > 20
    heard = expected[: len(known)]
    counts = [ErrorCounts.between([list(text)], [list(x)]) for (_, text), x in zip(known, heard, strict=True)]
    assert sum(x.errors for x in counts) < 0.6 * sum(x.length for x in counts)


def test_attention_is_exchanged_in_a_table(corpus: Path, published: Path, tmp_path: Path) -> None:
    options = [f"model={published}", f"data={corpus}", "splits=test,test_voices", "samples=20", "device=cpu"]
    names = ["full", "local-999", "local-1", "i-clustered-4:topk=2"]
    options += [f"attentions={','.join(names)}", f"folder={tmp_path}"]
    assert main(["compare", *options]) == 0
    evaluations = json.loads((tmp_path / "results.json").read_text())["evaluations"]
    divergence = {x["variant"]: x["rates"]["kl"]["rate"] for x in evaluations}
    assert list(divergence) == names
    assert abs(divergence["local-999"]) < 1e-7
    assert min(divergence["local-1"], divergence["i-clustered-4:topk=2"]) > 1e-4


def test_it_is_fine_tuned_and_exported_back(corpus: Path, published: Path, tmp_path: Path) -> None:
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    options = ["recipe=folder", "tokenizer.kind=character", "data.workers=0", "trainer.accelerator=cpu"]
    options += ["trainer.max_steps=3", "optimizer.learning_rate=0.1", "data.frames_per_batch=1000"]
    options += [f"data.train=[{corpus}]", f"model.encoder={published}", f"run={run}"]
    assert main(["train", *options]) == 0
    assert main(["export", str(run), "format=transformers", f"out={theirs}"]) == 0
    speech = read(corpus, "test")
    ours = our_texts(run, speech)
    assert ours == pipeline_texts(theirs, speech) == our_texts(theirs, speech)
    assert ours != our_texts(published, speech)
