"""OpenAI's Whisper: its encoder and transcripts against transformers, and folders that don't fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_whisper import save_whisper

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.attention.multihead import SelfAttention  # noqa: E402
from asr.errors import UserError  # noqa: E402
from asr.model.frames import through_blocks  # noqa: E402
from asr.model.whisper import Whisper, normaliser  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model."""
    return save_whisper(tmp_path_factory.mktemp("whisper") / "model")


def audio(*sizes: int) -> list[Any]:
    """Return noise at Whisper's rate."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size).astype(np.float32) for size in sizes]


def test_fewer_layers_and_frames_are_those_of_transformers(model: Path) -> None:
    """Half the layers is a model without them; half the frames, the change of pairs' means added to both."""
    whisper = Whisper(model, "cpu", "")
    inputs = whisper.features(audio(16000))
    encoder = transformers.WhisperModel.from_pretrained(model).eval().encoder
    mel, layers, expected = inputs["features"].mT, encoder.layers, {}
    with torch.inference_mode():
        expected["", 0] = encoder(mel).last_hidden_state
        encoder.layers = layers[:1]  # of two
        expected["", 1] = encoder(mel).last_hidden_state
        states = encoder.conv2(torch.nn.functional.gelu(encoder.conv1(mel)))
        states = torch.nn.functional.gelu(states).transpose(1, 2) + encoder.embed_positions.weight
        start = means = states.unflatten(1, (-1, 2)).mean(2)
        for layer in layers:
            means = layer(means, None)
        states = states + (means - start).repeat_interleave(2, dim=1)
        expected["2", 0] = encoder.layer_norm(states)
    for (frames, count), states in [*expected.items(), (("", 0), expected["", 0])]:
        whisper.set_encoder("full", frames, count)
        torch.testing.assert_close(whisper.encode(**inputs), states, rtol=1e-4, atol=1e-5)


def test_half_precision_is_that_of_autocast(model: Path) -> None:
    whisper = Whisper(model, "cpu", "")
    inputs = whisper.features(audio(16000))
    full = whisper.encode(**inputs)
    whisper.set_encoder("full", precision="bf16")
    half = whisper.encode(**inputs)
    assert half.dtype == torch.float32
    assert 1e-4 < float((half - full).norm() / full.norm()) < 0.1
    whisper.set_encoder("full")
    assert torch.equal(whisper.encode(**inputs), full)


@torch.no_grad()
def test_merged_padding_counts_as_its_frames(model: Path) -> None:
    """Runs of one frame change nothing; equal frames have the states of their run, whatever the batch."""
    whisper = Whisper(model, "cpu", "")
    sounds = audio(16000, 9001, 48000)
    inputs = whisper.features(sounds)
    assert inputs["heard_B"].tolist() == [50, 29, 150]
    full = whisper.encode(**inputs)
    whisper.set_encoder("full", "pad-10")
    merged = whisper.encode(**inputs)
    torch.testing.assert_close(merged[2], full[2], rtol=0, atol=1e-4)  # as long as an input
    assert (merged[:2] - full[:2]).abs().max() > 1e-3
    alone = whisper.encode(**whisper.features(sounds[1:2]))
    torch.testing.assert_close(alone[0], merged[1], rtol=0, atol=1e-4)
    whisper.set_encoder("full", "pad-1")
    torch.testing.assert_close(whisper.encode(**inputs), full, rtol=0, atol=1e-4)
    # With equal frames, a run and its members have the same states: a key that counts as often as they do.
    x, lengths = torch.ones(1, 30, 24).cumsum(1), torch.tensor([30])
    x[:, 10:] = x[:, 10:11]
    whole = x
    for block in whisper.encoder.blocks:
        whole = block(whole, lengths)
    run_BT = torch.arange(30).clamp(max=10)[None] + (torch.arange(30) - 10).clamp(min=0) // 7
    found = through_blocks(whisper.encoder.blocks, [1, 1], x, lengths, run_BT=run_BT)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-4)


def test_the_decoder_keeps_its_attention(model: Path) -> None:
    """The same encoder states have the same distributions and texts, whatever the encoder's mechanism."""
    whisper = Whisper(model, "cpu", "")
    states = torch.randn(2, 150, 24, generator=torch.Generator().manual_seed(0))
    found = []
    for name in ("full", "clustered-2"):
        whisper.set_encoder(name)
        found.append((whisper.transcripts(states), whisper.forced(states, ["a cat", "tea"])))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_queries_and_keys_have_the_weights_of_transformers(model: Path) -> None:
    """Whisper scales its queries before the attention function, others in it."""
    whisper = Whisper(model, "cpu", "")
    inputs = whisper.features([0.1 * audio(16000)[0]])
    layers = [x for x in whisper.encoder.modules() if isinstance(x, SelfAttention)]
    found: list[torch.Tensor] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, given: found.append(layer.weights("full", given[0])))
    whisper.encode(**inputs)
    eager = transformers.WhisperForConditionalGeneration.from_pretrained(
        model, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        expected = eager.model.encoder(inputs["features"].mT, output_attentions=True).attentions
    assert len(found) == len(expected)
    for weights_1HNN, wanted_1HNN in zip(found, expected, strict=True):
        torch.testing.assert_close(weights_1HNN, wanted_1HNN, rtol=0, atol=1e-5)


def test_a_language_is_in_the_prompt(tmp_path: Path) -> None:
    whisper = Whisper(save_whisper(tmp_path / "model", multilingual=True), "cpu", "de")
    names = ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert whisper.tokenizer.convert_ids_to_tokens(whisper.prompt) == names
    assert len(whisper.transcripts(torch.randn(1, 150, 24))) == 1


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
    file: str, change: dict[str, Any], message: str | None, model: Path, tmp_path: Path
) -> None:
    """Nothing of a folder is run, and what doesn't fit ends in one line that names the folder."""
    copied = tmp_path / "model"
    shutil.copytree(model, copied)
    (copied / "evil.py").write_text("raise SystemExit('run')")
    content = json.loads((copied / file).read_text())
    (content["feature_extractor"] if file.startswith("processor") else content).update(change)
    (copied / file).write_text(json.dumps(content))
    if message is None:
        assert Whisper(copied, "cpu", "").prompt
        return
    with pytest.raises(UserError) as caught:
        Whisper(copied, "cpu", "")
    assert f"model={copied}: " in str(caught.value)
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
    assert normaliser(None, "en")(text) == normal


def test_numbers_of_other_languages_are_words() -> None:
    """`quatorze` in the reference and `14` in the transcript were an error."""
    assert normaliser(None, "de")("Vier, Öl!") == "vier öl"
    normalise = normaliser(None, "fr")
    assert normalise("Le 14, composez le 24.") == normalise("le quatorze composez le vingt-quatre")


def test_a_tokenizer_that_lost_a_merge_is_refused(model: Path, tmp_path: Path) -> None:
    """Many conversions lost the first merge, `Ġ t`: words became other tokens, and the NLL rose to 1.34."""
    shutil.copytree(model, tmp_path / "model")
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


def test_another_models_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    """Only lost merges were noticed: with English tokens, a model of several languages read other marks."""
    shutil.copytree(model, tmp_path / "model")
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
    shutil.copy(model / "tokenizer.json", file)
    settings = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    settings["no_timestamps_token_id"] -= 1
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"the token <\|notimestamps\|> at \d+, .* found '<\|startofp"):
        Whisper(tmp_path / "model", "cpu", "")


def test_a_tokenizer_that_cuts_the_models_own_texts_otherwise_is_refused(model: Path, tmp_path: Path) -> None:
    """With all merges in order and all marks in place, another tokenizer showed in the NLL alone."""
    shutil.copytree(model, tmp_path / "model")
    tokenizer, settings = (tmp_path / "model" / f"{x}.json" for x in ("tokenizer", "generation_config"))
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    others = [number for token, number in vocabulary.items() if not (token.isascii() and token.isalpha())]
    marks = [token["id"] for token in content["added_tokens"]]
    changed = json.loads(settings.read_text()) | {"suppress_tokens": [*others, *marks]}
    settings.write_text(json.dumps(changed))
    whisper, states = Whisper(tmp_path / "model", "cpu", ""), torch.randn(3, 150, 24)
    whisper.check_own_texts(states)
    text = "".join(whisper.transcripts(states))
    pair = max((text[at : at + 2] for at in range(len(text) - 1)), key=text.count)
    spare = vocabulary.pop("Ā")
    content["model"] |= {"vocab": vocabulary | {pair: spare}, "merges": [list(pair)]}
    tokenizer.write_text(json.dumps(content))
    damaged = Whisper(tmp_path / "model", "cpu", "")
    with pytest.raises(
        UserError, match=r"found one that adds \d+\.\d\d nats a token to the loss of the model's own"
    ):
        damaged.check_own_texts(states)


def test_a_folder_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected the folder of a Whisper model, found none"):
        Whisper(tmp_path, "cpu", "")
