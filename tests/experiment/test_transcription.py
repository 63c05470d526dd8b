"""`asr compare model=… data=…` on a tiny random Whisper: transformers alone, measures, errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tiny_whisper import SECONDS, save_whisper
from tone_corpora import make_corpus, make_cut, save_cuts

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.cli import main  # noqa: E402
from asr.data.audio import load_cut  # noqa: E402
from asr.data.manifest import manifest_digest, read_cuts  # noqa: E402
from asr.experiment.exchange import Exchange, workloads  # noqa: E402
from asr.experiment.request import parse  # noqa: E402
from asr.experiment.results import read_results  # noqa: E402
from asr.experiment.transcribers import WhisperTranscriber  # noqa: E402
from asr.experiment.transcription import Transcription  # noqa: E402

EXACT = "near-150:topk=150"  # as many clusters and keys as positions
ATTENTIONS = ["full", "clustered-3", EXACT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a model and a corpus."""
    made = tmp_path_factory.mktemp("whisper")
    save_whisper(made / "model")
    make_corpus(made / "data", {"dev": 2, "test": 5})
    return made


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    """Return the arguments of a command; a later one replaces an earlier one with the same key."""
    given = {
        "model": folder / "model",
        "data": folder / "data",
        "attentions": ",".join(ATTENTIONS),
        "folder": out,
        "batch": 450,
        "device": "cpu",
    }
    given |= dict(x.split("=", 1) for x in more)
    return ["compare", *(f"{key}={value}" for key, value in given.items())]


def rows(out: Path) -> dict[str, Any]:
    """Return the evaluation of each variant."""
    evaluations = json.loads((out / "results.json").read_text())["evaluations"]
    return {x["variant"]: x for x in evaluations}


def predictions(out: Path, name: str) -> list[dict[str, Any]]:
    (folder,) = (x for x in out.iterdir() if x.is_dir() and x.name != "figures")
    found = json.loads((folder / f"predictions-{name}.json").read_text())["predictions"]
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Path:
    """Output folder of an evaluation."""
    out = folder / "out"
    assert main(arguments(folder, out)) == 0
    return out


def test_full_attention_is_transformers_own(folder: Path, evaluated: Path) -> None:
    """Texts by `generate` from features and the loss of labels, one utterance at a time."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "model").eval()
    processor = transformers.WhisperProcessor.from_pretrained(folder / "model")
    found = predictions(evaluated, "full")
    cuts = list(read_cuts(folder / "data/test.cuts.jsonl.gz"))
    assert [item["utterances"] for item in found] == [[cut.id] for cut in cuts]
    for cut, item in zip(cuts, found, strict=True):
        inputs = processor(load_cut(cut, 16000), sampling_rate=16000, return_tensors="pt")
        labels = processor.tokenizer(f" {cut.supervisions[0].text}", return_tensors="pt").input_ids
        with torch.inference_mode():
            ids = model.generate(inputs.input_features, do_sample=False, max_new_tokens=30)
            logits = model(inputs.input_features, decoder_input_ids=labels[:, :-1]).logits
        assert item["text"] == processor.decode(ids[0], skip_special_tokens=True).strip()
        assert item["tokens"] == len(cut.supervisions[0].text) + 2  # space and end; tokens are bytes
        nll = torch.nn.functional.cross_entropy(logits[0, 1:], labels[0, 2:], reduction="sum")
        assert item["nll"] == pytest.approx(float(nll), rel=1e-4)
        assert item["divergence"] == item["difference"] == 0


def test_measures_tell_an_exact_exchange_from_a_coarse_one(evaluated: Path) -> None:
    found = rows(evaluated)
    assert list(found) == ATTENTIONS
    for row in found.values():
        assert list(row["rates"]) == ["wer", "nll", "top-1", "kl", "encoder"]
        assert row["forward_cpu_s"] > 0
    full, coarse, exact = ({k: v["rate"] for k, v in found[name]["rates"].items()} for name in ATTENTIONS)
    assert full["kl"] == full["encoder"] == 0
    assert exact["kl"] < 1e-6 < 1e-4 < coarse["kl"]
    assert exact["encoder"] < 1e-4 < 1e-2 < coarse["encoder"]
    assert exact["nll"] == pytest.approx(full["nll"], rel=1e-4)
    assert abs(coarse["nll"] - full["nll"]) > 1e-3
    assert found["full"]["ratios"]["nll"]["rate"] == 1.0
    assert "kl" not in found["full"]["ratios"]  # to zero
    assert found["full"]["ratios"]["time"] == {"rate": 1.0, "interval": [1.0, 1.0]}


def test_variants_are_compared_in_pairs_over_inputs(folder: Path, evaluated: Path) -> None:
    """Sentences on differences rested on overlapping intervals, and no digest of the data was stored."""
    results = read_results(evaluated)
    assert results.data["test"].hash == manifest_digest(folder / "data/test.cuts.jsonl.gz")
    assert (results.data["test"].utterances, results.unit) == (5, "inputs")
    full, coarse, exact = ((x.candidate, x.variant) for x in results.evaluations)
    for metric in ("wer", "nll", "top-1", "kl", "encoder"):
        found = results.difference(coarse, full, "test", metric)
        one, other = (results.error_rate(full[0], "test", metric, x[1]) for x in (coarse, full))
        assert found
        assert one
        assert other
        assert found.value == pytest.approx(one.value - other.value)
        assert found.interval
        assert found.interval[0] <= found.value <= found.interval[1]
        assert found.over == "inputs"
    for metric, shown in (("wer", True), ("kl", True), ("nll", False)):
        assert (results.difference(exact, coarse, "test", metric) is not None) is shown
    assert not results.level(coarse, full, "test", "kl")
    assert "WER on test, compared with full" in (evaluated / "results.md").read_text()


@pytest.mark.slow
def test_layers_are_exchanged_one_at_a_time(folder: Path, evaluated: Path, tmp_path: Path) -> None:
    assert main(arguments(folder, tmp_path, "attentions=full,clustered-3", "sweep=layers")) == 0
    found = rows(tmp_path)
    assert list(found) == ["full", "clustered-3*1,full*1", "full*1,clustered-3*1"]
    first, second = (found[x]["rates"]["encoder"]["rate"] for x in list(found)[1:])
    assert 0 < second != first > 0
    assert found["full"]["rates"]["wer"] == rows(evaluated)["full"]["rates"]["wer"]
    table = (tmp_path / "results.md").read_bytes()
    (tmp_path / "results.md").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "results.md").read_bytes() == table


@pytest.mark.slow
def test_the_axes_are_crossed_and_single_variants_are_added(folder: Path, tmp_path: Path) -> None:
    """A baseline that isn't asked for is measured, too; the model's own frames have no name of their own."""
    single = ["local-3 frames=pad-10", "full frames=merge-0.4:cap=3,at=2"]
    given = ["attentions=full,local-2", "frames=1,2", "layers=1", f"candidates={single}"]
    assert main(arguments(folder, tmp_path, *given, "precisions=bf16", "baseline=full layers=1")) == 0
    found = rows(tmp_path)
    both = [f"{name} {axes}" for name in ("full", "local-2") for axes in ("layers=1", "frames=2 layers=1")]
    crossed = [f"{name}{end}" for name in both for end in ("", " precision=bf16")]
    crossed.remove("full layers=1")
    assert list(found) == ["full", "full layers=1", *crossed, *single]
    assert found["full layers=1"]["ratios"]["nll"]["rate"] == 1.0
    half, whole = (found[f"full layers=1{end}"]["rates"]["nll"]["rate"] for end in (" precision=bf16", ""))
    assert 0 < abs(half - whole) < 0.05 * whole


@pytest.mark.slow
def test_an_interrupted_comparison_continues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = WhisperTranscriber.judged, []

    def judged(self: WhisperTranscriber, *given: Any) -> Any:
        calls.append(len(given[1]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, *given)

    monkeypatch.setattr(WhisperTranscriber, "judged", judged)
    given = arguments(folder, tmp_path, "batch=150")
    assert main(given) == 130
    stored = (tmp_path / "test" / "outputs.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)[0] for line in stored] == [f"{name} 0" for name in ATTENTIONS]
    assert main(given) == 0
    assert calls == [1] * (4 + 5 * 3 - 3)
    monkeypatch.undo()
    assert list(rows(tmp_path)) == ATTENTIONS


@pytest.mark.slow
def test_a_variant_that_runs_out_of_memory_is_a_failure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = WhisperTranscriber.use

    def use(self: WhisperTranscriber, variant: Any, *given: Any) -> None:
        original(self, variant, *given)
        self.short = variant.attention == "local-2"  # type: ignore[attr-defined]

    run = WhisperTranscriber.run

    def without_memory(self: WhisperTranscriber, inputs: Any) -> Any:
        if self.short:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("out of memory")
        return run(self, inputs)

    monkeypatch.setattr(WhisperTranscriber, "use", use)
    monkeypatch.setattr(WhisperTranscriber, "run", without_memory)
    assert main(arguments(folder, tmp_path, "attentions=full,local-2")) == 1
    assert "1 cell failed (test: local-2)" in capsys.readouterr().err
    found = rows(tmp_path)
    assert [found[name]["status"] for name in ("full", "local-2")] == ["done", "failed"]
    assert found["local-2"]["error"] == "out of memory"


@pytest.mark.slow
def test_ratios_to_another_baseline(folder: Path, evaluated: Path) -> None:
    before = (evaluated / "results.json").read_bytes()
    assert main(arguments(folder, evaluated, "baseline=clustered-3")) == 0
    found = rows(evaluated)
    (evaluated / "results.json").write_bytes(before)
    assert found["clustered-3"]["ratios"]["kl"]["rate"] == 1.0
    assert found[EXACT]["ratios"]["kl"]["interval"][1] < 1e-2


@pytest.mark.slow
def test_joined_inputs_hold_every_utterance_once(folder: Path, tmp_path: Path) -> None:
    given = arguments(folder, tmp_path, "splits=dev,test", f"join_s={SECONDS}", "attentions=full")
    assert main(given) == 0
    cuts = {x.id: x for split in ("dev", "test") for x in read_cuts(folder / f"data/{split}.cuts.jsonl.gz")}
    groups = [item["utterances"] for item in predictions(tmp_path, "full")]
    assert sorted(name for group in groups for name in group) == sorted(cuts)
    assert len(groups) < len(cuts)
    for item, group in zip(predictions(tmp_path, "full"), groups, strict=True):
        assert sum(cuts[name].duration + 0.5 for name in group) <= SECONDS + 0.5
        assert item["reference"] == " ".join(cuts[name].supervisions[0].text for name in group)


@pytest.mark.slow
def test_a_mechanism_added_later_is_compared_with_full_attention_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(arguments(folder, tmp_path, "attentions=full,local-2")) == 0
    before = rows(tmp_path)
    added: list[str] = []
    original = Exchange._checked

    def checked(self: Exchange, output: Any, variant: Any) -> Any:
        added.append(str(variant))
        return original(self, output, variant)

    monkeypatch.setattr(Exchange, "_checked", checked)
    assert main(arguments(folder, tmp_path, "attentions=full,local-2,clustered-3")) == 0
    after = rows(tmp_path)
    assert set(added) == {"full", "clustered-3"}
    assert after["clustered-3"]["rates"]["kl"]["rate"] > 1e-4
    assert {name: after[name] for name in before} == before


def long_recording(folder: Path, tmp_path: Path) -> list[str]:
    wav = tmp_path / "long.wav"
    soundfile.write(wav, np.zeros(16000 * SECONDS + 1600), 16000)
    save_cuts([make_cut(wav, "a", "too-long")], tmp_path / "test.cuts.jsonl.gz")
    return [f"data={tmp_path}"]


def long_transcript(folder: Path, tmp_path: Path) -> list[str]:
    wav = tmp_path / "short.wav"
    soundfile.write(wav, np.zeros(16000), 16000)
    save_cuts([make_cut(wav, "a" * 60, "wordy")], tmp_path / "test.cuts.jsonl.gz")
    return [f"data={tmp_path}"]


def without(*names: str) -> Any:
    def change(folder: Path, tmp_path: Path) -> list[str]:
        shutil.copytree(folder / "model", tmp_path / "model")
        for name in names:
            (tmp_path / "model" / name).unlink()
        return [f"model={tmp_path / 'model'}"]

    return change


def pickled(folder: Path, tmp_path: Path) -> list[str]:
    (model,) = without("model.safetensors")(folder, tmp_path)
    torch.save({}, tmp_path / "model/pytorch_model.bin")
    return [model]


def other_features(folder: Path, tmp_path: Path) -> list[str]:
    (model,) = without()(folder, tmp_path)
    extractor = transformers.WhisperFeatureExtractor(chunk_length=SECONDS)
    words = transformers.WhisperTokenizer.from_pretrained(folder / "model")
    transformers.WhisperProcessor(extractor, words).save_pretrained(tmp_path / "model")
    return [model]


def ctranslate2(folder: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text('{"lang_ids": []}')
    (tmp_path / "model.bin").write_bytes(b"\6\0\0\0\14\0WhisperSpec\0")
    return [f"model={tmp_path}"]


def bert(folder: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    return [f"model={tmp_path}"]


def multilingual(language: str) -> Any:
    def change(folder: Path, tmp_path: Path) -> list[str]:
        return [f"model={save_whisper(tmp_path / 'model', multilingual=True)}", f"language={language}"]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bert, "config.json: expected a model of wav2vec2,"),
        (without("processor_config.json"), "feature extractor"),
        (without("tokenizer.json"), "expected a tokenizer (tokenizer.json), found none"),
        (other_features, "expected features of 20 bins × 300 frames, found an extractor of 80 × 300"),
        (ctranslate2, "found one of CTranslate2: convert it with python tools/whisper_folder.py"),
        (without("model.safetensors"), "no file named model.safetensors"),
        (pickled, "no file named model.safetensors"),
        (["language=de"], "language=de: expected en, the only language of"),
        (multilingual("fr"), "language=fr: expected one of de, en; found fr"),
        (multilingual(""), "language=: expected one of de, en; found none"),
        (long_recording, "utterance 'too-long': expected at most 3 s, Whisper's longest input, found 3.10 s"),
        (long_transcript, "utterance 'wordy': expected a transcript of at most 60 tokens, found 64"),
        (["data=nowhere"], "nowhere/test.cuts.jsonl.gz"),
        (["splits="], "splits=[]: expected at least one"),
        (["data={folder}/test.cuts.jsonl.gz", "splits=dev"], "splits=[dev]: has no effect with data="),
        (["attentions="], "nothing to compare: attentions=["),
        (["baseline=lokal-3"], "lokal-3"),
        (["candidates=['full precision=fp8']"], "full precision=fp8: precision=fp8: expected one of"),
        (["candidates=[{attention: full}]"], "expected text with data=, e.g. near-25 frames=2, found {"),
        (["frames=['1,2,2']"], "frames=1,2,2: expected factors for 2 layers, found 3"),
        (["frames=pad-0"], "frames=pad-0: expected a factor"),
        (["layers=3"], "layers=3: expected at most 2, the layers of"),
        (["attentions=lsh-1"], "needs keys tied to the queries"),
        (["attentions=cast-8"], "attention 'cast-8' has parameters of its own"),
        (["seeds=[0,1]"], "seeds=[0,1]: has no effect with data"),
        (["launcher=ray"], "launcher=ray: has no effect with data"),
        (["trainer.max_steps=3"], "trainer.max_steps=3: has no effect with data=, which trains nothing"),
        (["decoder=beam"], "decoder=beam: has no effect with data=, which trains nothing and"),
        (["recipe=demo"], "recipe=demo: has no effect with data=, as it has no task for trained models"),
        (["model="], "expected model=<run, folder or name on the Hub> beside it"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    change: Any, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = change if isinstance(change, list) else change(folder, tmp_path)
    given = [x.replace("{folder}", str(folder / "data")) for x in given]
    assert main(arguments(folder, tmp_path / "out", "join_s=2", *given)) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("asr: ")]
    assert message in line


def test_transcripts_that_the_tokenizer_cannot_write_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    content = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    letter = read_cuts(folder / "data" / "test.cuts.jsonl.gz")[0].supervisions[0].text[0]
    content["model"]["vocab"]["一"] = content["model"]["vocab"].pop(letter)
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(content))
    assert main(arguments(folder, tmp_path / "out", f"model={tmp_path / 'model'}")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"expected '{letter}" in line
    assert "the tokenizer is another model's" in line


def test_whisper_of_the_hub_is_measured_in_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a repository was taken for that of a CTC model: use another command, it said."""
    from huggingface_hub import constants

    repository = tmp_path / "cache" / "models--owner--tiny"
    save_whisper(repository / "snapshots" / "0123", multilingual=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    make_corpus(tmp_path / "data", {"test": 1})
    given = {"model": "owner/tiny", "data": str(tmp_path / "data"), "language": "de"}
    (workload,) = workloads(parse(given | {"attentions": ["full"], "device": "cpu"}))
    assert isinstance(workload, Transcription)
    assert isinstance(workload.model, WhisperTranscriber)
