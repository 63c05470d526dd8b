"""`asr approximate task=transcription` on a tiny random Whisper: transformers alone, measures, errors."""

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
from asr.approximation.options import Options  # noqa: E402
from asr.approximation.run import TaskEvaluation  # noqa: E402
from asr.approximation.whisper import Whisper, _normaliser  # noqa: E402
from asr.cli import main  # noqa: E402
from asr.data.audio import load_cut  # noqa: E402
from asr.data.manifest import read_cuts  # noqa: E402
from asr.errors import UserError  # noqa: E402

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
        "task": "transcription",
        "attentions": ",".join(ATTENTIONS),
        "folder": out,
        "samples": 20,
        "batch": 450,
        "device": "cpu",
    }
    given |= dict(x.split("=", 1) for x in more)
    return ["approximate", *(f"{key}={value}" for key, value in given.items())]


def rows(out: Path) -> dict[str, Any]:
    """Return the results of each mechanism."""
    (task,) = json.loads((out / "results.json").read_text())["tasks"]
    return {row["attention"]: row for row in task["rows"]}


def predictions(out: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / f"transcription/predictions-{name}.json").read_text())[
        "predictions"
    ]
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
        assert list(row["scores"]) == ["WER", "NLL", "top-1", "KL", "encoder"]
        assert row["example_s"] > 0
    full, coarse, exact = ({k: v["value"] for k, v in found[name]["scores"].items()} for name in ATTENTIONS)
    assert full["KL"] == full["encoder"] == 0
    assert exact["KL"] < 1e-6 < 1e-4 < coarse["KL"]
    assert exact["encoder"] < 1e-4 < 1e-2 < coarse["encoder"]
    assert exact["NLL"] == pytest.approx(full["NLL"], rel=1e-4)
    assert abs(coarse["NLL"] - full["NLL"]) > 1e-3
    assert found["full"]["ratios"]["NLL"]["value"] == 1.0
    assert found["full"]["ratios"]["KL"] is None  # to zero


@pytest.mark.slow
def test_layers_are_exchanged_one_at_a_time(folder: Path, evaluated: Path, tmp_path: Path) -> None:
    assert main(arguments(folder, tmp_path, "attentions=full,clustered-3", "sweep=layers")) == 0
    found = rows(tmp_path)
    assert list(found) == ["full", "clustered-3*1,full*1", "full*1,clustered-3*1"]
    first, second = (found[x]["scores"]["encoder"]["value"] for x in list(found)[1:])
    assert 0 < second != first > 0
    assert found["full"]["scores"]["WER"] == rows(evaluated)["full"]["scores"]["WER"]
    table = (tmp_path / "results.md").read_bytes()
    (tmp_path / "results.md").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "results.md").read_bytes() == table


@pytest.mark.slow
def test_cheaper_encoders_are_rows_of_the_table(folder: Path, evaluated: Path, tmp_path: Path) -> None:
    """Half the layers is a model without them; half the frames, the change of pairs' means added to both."""
    assert main(arguments(folder, tmp_path, "attentions=full", "layers=1", "frames=2")) == 0
    found = rows(tmp_path)
    assert list(found) == ["full", "frames=2", "layers=1"]
    assert found["full"]["scores"] == rows(evaluated)["full"]["scores"]
    model = Whisper(folder / "model", "cpu", "")
    inputs = model.features([np.random.default_rng(0).standard_normal(16000).astype(np.float32)])
    encoder = transformers.WhisperModel.from_pretrained(folder / "model").eval().encoder
    layers, halved = encoder.layers, {}
    with torch.inference_mode():
        encoder.layers = layers[:1]  # of two
        halved["layers=1"] = encoder(inputs["input_features"]).last_hidden_state
        states = encoder.conv1(inputs["input_features"])
        states = encoder.conv2(torch.nn.functional.gelu(states))
        states = torch.nn.functional.gelu(states).transpose(1, 2) + encoder.embed_positions.weight
        start = means = states.unflatten(1, (-1, 2)).mean(2)
        for layer in layers:
            means = layer(means, None)
        states = states + (means - start).repeat_interleave(2, dim=1)
        halved["frames=2"] = encoder.layer_norm(states)
        for name, expected in halved.items():
            model.use(name, "auto")
            torch.testing.assert_close(model.run(inputs, name), expected, rtol=1e-4, atol=1e-5)
        model.use("full", "auto")
        encoder.layers = layers
        whole = encoder(inputs["input_features"]).last_hidden_state
        torch.testing.assert_close(model.run(inputs, "full"), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_merged_padding_counts_as_its_frames(folder: Path) -> None:
    """Runs of one frame change nothing; equal frames have the states of their run, whatever the batch."""
    model, rng = Whisper(folder / "model", "cpu", ""), np.random.default_rng(0)
    audio = [rng.standard_normal(size).astype(np.float32) for size in (16000, 9001, 48000)]
    inputs = model.features(audio)
    assert inputs["heard_B"].tolist() == [50, 29, 150]
    model.use("full", "auto")
    full = model.run(inputs, "full")
    model.use("frames=pad-10", "auto")
    merged = model.run(inputs, "frames=pad-10")
    torch.testing.assert_close(merged[2], full[2], rtol=0, atol=1e-4)  # as long as an input
    assert (merged[:2] - full[:2]).abs().max() > 1e-3
    alone = model.run(model.features(audio[1:2]), "frames=pad-10")
    torch.testing.assert_close(alone[0], merged[1], rtol=0, atol=1e-4)
    model.silence = 1
    torch.testing.assert_close(model.run(inputs, "frames=pad-1"), full, rtol=0, atol=1e-4)
    # With equal frames, a run and its members have the same states: a key that counts as often as they do.
    x, lengths = torch.ones(1, 30, 24).cumsum(1), torch.tensor([30])
    x[:, 10:] = x[:, 10:11]
    whole = x
    for block in model.ours.blocks:
        whole = block(whole, lengths)
    torch.testing.assert_close(
        model.ours._merged(x, lengths, torch.tensor([10]), 7), whole, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("frames=1,2,2", "frames=1,2,2: expected factors for 2 layers, found 3"),
        ("frames=pad-0", "frames=pad-0: expected a factor"),
        ("layers=3", "layers=3: expected at most 2, the layers of"),
    ],
)
def test_rows_that_the_model_lacks_are_refused(
    row: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, _, value = row.partition("=")
    assert (
        main(arguments(folder, tmp_path, "attentions=full", f"{key}=['{value}']" if key == "frames" else row))
        == 1
    )
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_ratios_to_another_baseline(folder: Path, evaluated: Path) -> None:
    before = (evaluated / "results.json").read_bytes()
    assert main(arguments(folder, evaluated, "baseline=clustered-3")) == 0
    found = rows(evaluated)
    (evaluated / "results.json").write_bytes(before)
    assert found["clustered-3"]["ratios"]["KL"]["value"] == 1.0
    assert found[EXACT]["ratios"]["KL"]["interval"][1] < 1e-2


def test_the_decoder_keeps_its_attention(folder: Path) -> None:
    """The same encoder states have the same distributions and texts, whatever the encoder's mechanism."""
    model = Whisper(folder / "model", "cpu", "")
    states = torch.randn(2, 150, 24, generator=torch.Generator().manual_seed(0))
    found = []
    for name in ("full", "clustered-2"):
        model.use(name, "auto")
        found.append((model.transcripts(states), model.forced(states, ["a cat", "tea"])))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_queries_and_keys_have_the_weights_of_transformers(folder: Path) -> None:
    """Whisper scales its queries before the attention function, others in it."""
    model = Whisper(folder / "model", "cpu", "")
    inputs = model.features([0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)])
    found = model.projections(inputs, "auto")
    eager = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder / "model", attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        expected = eager.model.encoder(**inputs, output_attentions=True).attentions
    assert len(found) == len(expected)
    for (q_1HND, k_1HND, _), weights_1HNN in zip(found, expected, strict=True):
        logits_1HNN = q_1HND @ k_1HND.mT / q_1HND.shape[-1] ** 0.5
        torch.testing.assert_close(logits_1HNN.softmax(-1), weights_1HNN, rtol=0, atol=1e-5)


def test_a_language_is_in_the_prompt(tmp_path: Path) -> None:
    model = Whisper(save_whisper(tmp_path / "model", multilingual=True), "cpu", "de")
    names = ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert model.tokenizer.convert_ids_to_tokens(model.prompt) == names
    model.use("full", "auto")
    assert len(model.transcripts(torch.randn(1, 150, 24))) == 1


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
    original = TaskEvaluation._timed

    def timed(self: TaskEvaluation, inputs: Any, attention: str) -> Any:
        added.append(attention)
        return original(self, inputs, attention)

    monkeypatch.setattr(TaskEvaluation, "_timed", timed)
    assert main(arguments(folder, tmp_path, "attentions=full,local-2,clustered-3")) == 0
    after = rows(tmp_path)
    assert set(added) == {"full", "clustered-3"}
    assert after["clustered-3"]["scores"]["KL"]["value"] > 1e-4
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
        (["attentions=local-2"], "attentions=local-2: expected full among them"),
        (["baseline=local-3"], "baseline=local-3: expected one of attentions, full, clustered-3"),
        (["task=rte"], "has no effect"),
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


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"encoder_attention_heads": 0}, ""),
        ("config.json", {"encoder_attention_heads": 5}, "divisible by num_heads"),
        ("config.json", {"activation_function": "unheard"}, "no unheard"),
        ("config.json", {"vocab_size": 7}, ""),
        ("config.json", {"d_model": -24}, ""),
        ("config.json", {"encoder_layers": 3}, "no weights model.encoder.layers.2"),
        ("config.json", {"auto_map": {"AutoConfig": "evil.Evil"}}, None),
        ("processor_config.json", {"sampling_rate": None}, ""),
        ("processor_config.json", {"sampling_rate": "x"}, ""),
        ("processor_config.json", {"chunk_length": 30}, "expected features of 20 bins × 300 frames"),
        ("generation_config.json", {"no_timestamps_token_id": None}, "expected no_timestamps_token_id in"),
        ("generation_config.json", {"eos_token_id": "x"}, "expected eos_token_id in"),
        ("tokenizer.json", {"model": 3}, ""),
    ],
)
def test_hostile_folders_are_one_line(
    file: str, change: dict[str, Any], message: str | None, folder: Path, tmp_path: Path
) -> None:
    """Nothing of a folder is run, and what doesn't fit ends in one line that names the folder."""
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    (model / "evil.py").write_text("raise SystemExit('run')")
    content = json.loads((model / file).read_text())
    (content["feature_extractor"] if file.startswith("processor") else content).update(change)
    (model / file).write_text(json.dumps(content))
    if message is None:
        assert Whisper(model, "cpu", "").prompt
        return
    with pytest.raises(UserError) as caught:
        Whisper(model, "cpu", "")
    assert f"model={model}: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Press 4 on the PBX, or pound.", "press 4 on the pbx or pound"),
        ("press four on the p. b. x. or pound", "press 4 on the pbx or pound"),
        ("I'm at the U.S.A. office", "i am at the usa office"),
        ("Seventeen. Thirteenth. Twenty-one!", "17 13th 21"),  # as one text, Whisper's makes 1713th
        ("seventeen", "17"),
    ],
)
def test_english_is_normalised(text: str, normal: str) -> None:
    """Whisper's own normalisation, with spelt letters as one word, and no number across a pause."""
    assert _normaliser(None, "en")(text) == normal


def test_numbers_of_other_languages_are_words() -> None:
    """`quatorze` in the reference and `14` in the transcript were an error."""
    assert _normaliser(None, "de")("Vier, Öl!") == "vier öl"
    normalise = _normaliser(None, "fr")
    assert normalise("Le 14, composez le 24.") == normalise("le quatorze composez le vingt-quatre")


def test_a_tokenizer_that_lost_a_merge_is_refused(folder: Path, tmp_path: Path) -> None:
    """Many conversions lost the first merge, `Ġ t`: words became other tokens, and the NLL rose to 1.34."""
    shutil.copytree(folder / "model", tmp_path / "model")
    content = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    spare = content["model"]["vocab"].pop("Ā")
    for merges in ([["Ġ", "t"]], []):
        content["model"] |= {"vocab": content["model"]["vocab"] | {"Ġt": spare}, "merges": merges}
        (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(content))
        if merges:
            assert spare in Whisper(tmp_path / "model", "cpu", "").tokens("to")
        else:
            with pytest.raises(UserError, match=r"found one without the merges of 1 tokens, e.g. 'Ġt'"):
                Whisper(tmp_path / "model", "cpu", "")


def test_another_models_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    """Only lost merges were noticed: with English tokens, a model of several languages read other marks."""
    shutil.copytree(folder / "model", tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = vocabulary.pop("Ā"), vocabulary.pop("ā")

    def load(th: int, he: int) -> Whisper:
        content["model"] |= {"vocab": vocabulary | {"th": th, "he": he}, "merges": [["t", "h"], ["h", "e"]]}
        file.write_text(json.dumps(content))
        return Whisper(tmp_path / "model", "cpu", "")

    assert first in load(first, second).tokens("th")
    with pytest.raises(UserError, match=r"1 merges in another order than their tokens, e\.g\. that of 'he'"):
        load(second, first)
    shutil.copy(folder / "model" / "tokenizer.json", file)
    settings = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    settings["no_timestamps_token_id"] -= 1
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"the token <\|notimestamps\|> at \d+, .* found '<\|startofp"):
        Whisper(tmp_path / "model", "cpu", "")


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
    """The name of a repository was taken for that of a CTC model: use asr approximate, it said."""
    from huggingface_hub import constants

    repository = tmp_path / "cache" / "models--owner--tiny"
    save_whisper(repository / "snapshots" / "0123", multilingual=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    make_corpus(tmp_path / "data", {"test": 1})
    options = Options(
        model="owner/tiny",
        task=["transcription"],
        data=str(tmp_path / "data"),
        language="de",
        device="cpu",
    )
    assert isinstance(TaskEvaluation("transcription", options, tmp_path / "out").model, Whisper)


def test_a_folder_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found no config.json"):
        Whisper(tmp_path, "cpu", "")
