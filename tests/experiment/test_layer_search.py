"""The greedy search over layers: its steps on given measurements, and with real models."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from once import once
from published_models import make_voices, sentence, train_ctc
from tiny_whisper import save_whisper
from tone_corpora import make_corpus

from asr.attention.table import layer_names
from asr.cli import main
from asr.config.schedule import layer_factors
from asr.errors import UserError
from asr.experiment.layer_search import search_layers
from asr.experiment.transcribers import WhisperTranscriber
from asr.experiment.variant import Variant
from asr.experiment.workload import Outcome

# Divergence that a change of each layer adds, and time that it saves.
COSTS: dict[str | int, list[tuple[float, float]]] = {
    "local-8": [(0.001, 0.10), (0.004, 0.10), (0.020, 0.10)],
    2: [(0.008, 0.30), (0.002, 0.30), (0.003, -0.05)],
}


def outcome(variant: Variant) -> Outcome:
    """Return what a variant would be measured to be, if costs added up."""
    names, factors = layer_names(variant.attention, 3), layer_factors(variant.frames or "1", 3)
    changes = [
        COSTS[value][layer]
        for values in (names, factors)
        for layer, value in enumerate(values)
        if value in COSTS
    ]
    divergence, saved = (sum(x[i] for x in changes) for i in (0, 1))
    saved += 0.15 if factors[1:] == [2, 2] else 0.0  # no pooling between them
    relative = np.ones(3) - saved
    return Outcome({"kl": divergence}, {}, seconds=2 * relative, relative=relative)


def searched(limit: float, lost: str = "") -> tuple[dict[str, Any], list[list[str]]]:
    """Return what is found, and the variants that were measured in each step; one can't run."""
    asked: list[list[str]] = []

    def measure(variants: list[Variant], step: int) -> list[Outcome | None]:
        assert step == len(asked)
        asked.append([str(x) for x in variants])
        return [None if str(x) == lost else outcome(x) for x in variants]

    return search_layers(measure, ["full", "local-8"], [2], 3, "1", limit), asked


def test_each_step_takes_what_saves_most_for_the_divergence_that_it_adds() -> None:
    """A factor holds from a layer on: a search by single layers missed that halved layers pay in a row."""
    found, asked = searched(0.008)
    assert asked == [
        ["full"],
        [
            "local-8*1,full*2",
            "full frames=2",
            "full*1,local-8*1,full*1",
            "full frames=1,2*2",
            "full*2,local-8*1",
            "full frames=1*2,2",
        ],
        [
            "local-8*2,full*1",
            "local-8*1,full*2 frames=1,2*2",
            "local-8*1,full*2 frames=1*2,2",
        ],
        ["local-8*2,full*1 frames=1,2*2"],
    ]
    assert [x["tried"] for x in found["steps"]] == asked[1:]
    chosen = ["local-8*1,full*2", "local-8*1,full*2 frames=1,2*2"]
    assert [x["chosen"] for x in found["steps"]] == [*chosen, None]
    assert found["chosen"] == chosen[-1]


def test_nothing_within_the_limit_is_full_attention() -> None:
    found, asked = searched(1e-4)
    assert found["chosen"] == "full"
    assert [x["chosen"] for x in found["steps"]] == [None]
    assert len(asked) == 2


def test_a_model_whose_frames_are_joined_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"expected a model with a factor for each layer, found frames=merge-0.4"
    ):
        search_layers(lambda variants, step: [], ["full"], [2], 3, "merge-0.4", 0.01)


def test_a_change_that_cannot_run_is_left_out() -> None:
    found, _ = searched(0.008, lost="local-8*1,full*2")
    assert found["steps"][0]["chosen"] == "full frames=1,2*2"


def test_a_model_keeps_its_own_frames_where_they_are_not_changed() -> None:
    asked: list[str] = []

    def measure(variants: list[Variant], step: int) -> list[Outcome | None]:
        asked.extend(str(x) for x in variants)
        return [Outcome({"kl": 1.0}, {}, np.ones(1), np.ones(1)) for _ in variants]

    search_layers(measure, ["local-8"], [2], 2, "1,2", 0.01)
    assert asked == ["full", "local-8*1,full*1", "full frames=2", "full*1,local-8*1"]


def arguments(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    given = [f"model={model}", f"data={data}", f"folder={out}", "device=cpu"]
    return ["compare", *given, "sweep=greedy", "attentions=local-2", "frames=2", *more]


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def whisper(shared: Path) -> Path:
    """Folder with a model, and recordings without transcripts."""

    def make(folder: Path) -> None:
        save_whisper(folder / "model")
        make_corpus(folder / "data", {"test": 3})
        manifest = folder / "data/test.cuts.jsonl.gz"
        (folder / "data/test.cuts.jsonl").write_text(_without_texts(manifest))

    return once(shared / "unlabelled_whisper", make)


def _without_texts(manifest: Path) -> str:
    cuts = [json.loads(line) for line in gzip.decompress(manifest.read_bytes()).splitlines()]
    for cut in cuts:
        cut["supervisions"][0].pop("text")
    return "".join(json.dumps(cut) + "\n" for cut in cuts)


def test_whisper_is_searched_on_recordings_without_transcripts(
    whisper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted search goes on where it stopped, and finds the same."""
    given = arguments(whisper / "model", whisper / "data/test.cuts.jsonl", tmp_path, "limit=100", "batch=150")
    original, calls = WhisperTranscriber.judged, []

    def judged(self: WhisperTranscriber, *rest: Any) -> Any:
        calls.append(len(rest[0]))
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original(self, *rest)

    monkeypatch.setattr(WhisperTranscriber, "judged", judged)
    assert main(given) == 130
    assert main(given) == 0
    found = results(tmp_path)
    (search,) = found["protocol"]["search"].values()
    rows = {x["variant"]: x for x in found["evaluations"]}
    tried = {name for step in search["steps"] for name in step["tried"]}
    assert set(rows) == {"full", *tried}
    assert len(calls) == 1 + 3 * len(rows)
    assert all(set(x["rates"]) == {"kl", "encoder"} for x in rows.values())
    assert rows["full"]["rates"]["kl"]["rate"] == 0
    calls.clear()
    assert main(given) == 0
    assert calls == []
    assert results(tmp_path)["protocol"]["search"] == found["protocol"]["search"]
    assert "steps of the search over layers, KL up to 100" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert f"{search['chosen']}: KL " in page


def test_data_may_be_a_folder_of_recordings(
    whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr prepare` refuses recordings without transcripts, so only a hand-made manifest could be used."""
    recordings = tmp_path / "recordings"
    shutil.copytree(whisper / "data/wav", recordings / "day 1")
    (recordings / "notes.txt").write_text("no audio")
    (recordings / "talk.jsonl").write_text("{}\n")  # a transcript of this program
    given = arguments(whisper / "model", recordings, tmp_path / "out", "limit=100")
    for _ in range(2):
        assert main(given) == 0
    found = results(tmp_path / "out")
    assert found["data"]["recordings"]["utterances"] == 3
    assert "reusing" in capsys.readouterr().out
    soundfile.write(recordings / "stereo.wav", np.zeros((1600, 2)), 16000)
    assert main(given) == 1
    assert f"{recordings}/stereo.wav: expected one channel, found 2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_published_ctc_model_is_searched(shared: Path, tmp_path: Path) -> None:
    published = once(shared / "published", train_ctc)
    texts = [sentence(random.Random(i)).lower() for i in range(100, 106)]
    voices = once(shared / "six_voices", lambda folder: make_voices(folder, texts))
    assert main(arguments(published, voices, tmp_path, "limit=100")) == 0
    found = results(tmp_path)
    (search,) = found["protocol"]["search"].values()
    assert search["steps"][0]["tried"] == [
        "local-2*1,full*1",
        "full frames=2",
        "full*1,local-2*1",
        "full frames=1,2",
    ]
    assert all(set(x["rates"]) == {"kl", "changed"} for x in found["evaluations"])
    written = (tmp_path / "results.md").read_text()
    assert search["chosen"].replace("*", r"\*") in written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["attentions=full", "frames=[]"],
            "sweep=greedy: expected baseline=full and other attentions or frames",
        ),
        (["frames=['1,2']"], "frames=1,2: expected one factor for a layer with sweep=greedy, e.g. 2"),
        (["frames=[pad-10]"], "frames=pad-10: expected one factor for a layer"),
        (["precisions=bf16"], "precisions=: has no effect with sweep=greedy"),
        (["sweep=layers", "frames=[]", "limit=0.1"], "limit=0.1: has no effect with sweep=layers"),
        (["attentions=cast-8"], "attention 'cast-8' has parameters of its own"),
    ],
)
def test_errors_are_one_line(
    options: list[str], message: str, whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = whisper / "data/test.cuts.jsonl"
    assert main(arguments(whisper / "model", data, tmp_path / "out", *options)) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
