"""CTC models made by transformers alone: random ones of each family, and a trained one that spells tones."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from pretrained_models import CONFIGS, TINY, utterances
from tone_corpora import make_cut, save_cuts

from asr.model.acoustic_model import AcousticModel

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")

LETTERS = "ABCDE"
SYMBOLS = [*LETTERS, "|", "<unk>", "<s>", "</s>", "<pad>"]  # the blank last, as the tokenizer doesn't care
ORDER = [9, *range(9)]  # blank first
RATE = 16000
CHARACTER = 800  # samples, five frames of the tiny models
LEVEL = 0.01
BERT = {
    "conv_depthwise_kernel_size": 5,
    "initializer_range": 0.2,
    "feature_projection_input_dim": 40,
    "left_max_position_embeddings": 3,
    "right_max_position_embeddings": 2,
}


def save_processor(
    folder: Path, family: str = "wav2vec2", symbols: list[str] = SYMBOLS, **options: Any
) -> None:
    """Write vocabulary and feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json", **options)
    if family == "wav2vec2-bert":
        extractor = transformers.SeamlessM4TFeatureExtractor(feature_size=20, num_mel_bins=20)
        transformers.Wav2Vec2BertProcessor(extractor, tokenizer).save_pretrained(folder)
        return
    extractor = transformers.Wav2Vec2FeatureExtractor()
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)


def save_ctc(folder: Path, family: str = "wav2vec2", symbols: list[str] = SYMBOLS, **options: Any) -> Any:
    """Write a model with random weights, whose texts are as random, and return it in evaluation mode."""
    torch.manual_seed(0)
    kind = CONFIGS.get(family) or type(transformers.AutoConfig.for_model(family))
    config = kind(**(TINY | {"vocab_size": len(symbols), "pad_token_id": symbols.index("<pad>")} | options))
    model = transformers.AutoModelForCTC.from_config(config).eval()
    model.save_pretrained(folder)
    save_processor(folder, family, symbols)
    return model


@torch.no_grad()
def scores_of(
    theirs: torch.nn.Module, folder: Path, samples: torch.Tensor, order: list[int] = ORDER
) -> torch.Tensor:
    """Return the log-probabilities of transformers for one utterance alone, [T, V], blank first."""
    process = transformers.AutoProcessor.from_pretrained(folder)
    values = process(samples.numpy(), sampling_rate=RATE, return_tensors="pt")
    return theirs(**values).logits[0].log_softmax(-1)[:, order]


@torch.no_grad()
def assert_equals_transformers(
    model: AcousticModel,
    theirs: torch.nn.Module,
    folder: Path,
    lengths: torch.Tensor,
    order: list[int] = ORDER,
) -> torch.Tensor:
    """Check log-probabilities alone, and in a batch with padding of any values; return the numbers of frames.

    In such a batch, those of transformers differ.
    """
    ours, frames = model(utterances(lengths, float("nan")), lengths)
    assert ours.isfinite().all()
    for i, (length, count) in enumerate(zip(lengths.tolist(), frames.tolist(), strict=True)):
        if count:
            samples = utterances(lengths)[i, :length]
            expected = scores_of(theirs, folder, samples, order)[:count]
            alone, _ = model(samples[None], lengths[i : i + 1])
            torch.testing.assert_close(alone[0], expected, rtol=0, atol=1e-4)
            torch.testing.assert_close(ours[i, :count], expected, rtol=0, atol=1e-4)
    return frames


@torch.no_grad()
def assert_exchangeable(
    model: AcousticModel, lengths: torch.Tensor, names: Sequence[str], backend: str
) -> None:
    """Check that mechanisms that hold all frames are full attention, and smaller ones are not.

    Padding changes nothing in either.
    """
    full, frames = model(utterances(lengths, 0.0), lengths)
    keep = torch.arange(full.shape[1]) < frames.unsqueeze(1)
    for name in names:
        model.set_attention(name, backend)
        found, _ = model(utterances(lengths, float("nan")), lengths)
        torch.testing.assert_close(found[keep], full[keep], rtol=0, atol=2e-4)
    for name in ("local-1", "clustered-2", "i-clustered-2:topk=2"):
        model.set_attention(name, backend)
        found, _ = model(utterances(lengths, 0.0), lengths)
        assert (found[keep] - full[keep]).abs().max() > 0.01
        alone, _ = model(utterances(lengths)[1:2, : lengths[1]], lengths[1:2])
        torch.testing.assert_close(found[1, : frames[1]], alone[0], rtol=0, atol=2e-4)


def voice(text: str) -> NDArray[np.float32]:
    """Return 50 ms of a tone for each letter, and of silence for each space."""
    time_s = np.arange(CHARACTER) / RATE
    parts = [
        0.3 * np.sin(2 * np.pi * 400 * 1.5 ** LETTERS.index(x) * time_s) if x != " " else 0 * time_s
        for x in text.upper()
    ]
    noise = np.random.default_rng(len(text)).standard_normal(CHARACTER * len(text))
    return (np.concatenate(parts) + LEVEL * noise).astype(np.float32)


def sentence(source: random.Random) -> str:
    """Return two words of one to three letters."""
    return " ".join("".join(source.choices(LETTERS, k=source.randint(1, 3))) for _ in range(2))


def train_ctc(folder: Path) -> None:
    """Train a tiny Wav2Vec2ForCTC with transformers alone, and save it.

    Every frame has a target, three of five the letter and the others blank: learnt in seconds, unlike CTC.
    """
    model = trainable(folder)
    source = random.Random(0)
    batches = [[sentence(source) for _ in range(8)] for _ in range(60)]
    fit(model, folder, [([voice(x) for x in texts], texts) for texts in batches], letters_of_tones)


def trainable(folder: Path, symbols: list[str] = SYMBOLS) -> Any:
    """Return a tiny Wav2Vec2ForCTC without dropout, whose processor is in a folder."""
    names = ("hidden", "attention", "activation", "feat_proj", "final")
    options = dict.fromkeys([*(f"{x}_dropout" for x in names), "layerdrop"], 0.0)
    layout = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "apply_spec_augment": False}
    sizes = {"hidden_size": 32, "conv_dim": [32, 32, 32], "initializer_range": 0.02}
    return save_ctc(folder, symbols=symbols, **{**options, **layout, **sizes}).train()


def fit(
    model: Any,
    folder: Path,
    batches: list[tuple[list[NDArray[np.float32]], list[str]]],
    targets_of: Callable[[str, int], list[str]],
    learning_rate: float = 3e-3,
) -> None:
    """Train a model on a target symbol for every frame, and save it.

    Args:
        model: what `trainable` returned.
        folder: its folder.
        batches: recordings and texts of each step.
        targets_of: function of a text and a number of frames that returns the symbols.
        learning_rate: Adam's.
    """
    process = transformers.AutoProcessor.from_pretrained(folder)
    numbers = process.tokenizer.get_vocab()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for recordings, texts in batches:
        audio = process(recordings, sampling_rate=RATE, padding=True, return_tensors="pt")
        scores = model(audio.input_values).logits
        targets = torch.full(scores.shape[:2], numbers["<pad>"])
        for row, recording, text in zip(targets, recordings, texts, strict=True):
            count = int(model._get_feat_extract_output_lengths(len(recording)))
            row[:count] = torch.tensor([numbers[x] for x in targets_of(text, count)])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores.mT, targets).backward()
        optimizer.step()
    model.eval().save_pretrained(folder)


def letters_of_tones(text: str, frames: int) -> list[str]:
    """Return five symbols for each character of a `voice`, the first and last of them blanks."""
    found = ["<pad>"] * frames
    for i, character in enumerate(text.replace(" ", "|")):
        found[5 * i + 1 : 5 * i + 4] = [character] * 3
    return found[:frames]


def make_voices(folder: Path, texts: list[str], split: str = "test") -> None:
    """Write a manifest of voices beside their audio."""
    folder.mkdir(parents=True, exist_ok=True)
    cuts = []
    for i, text in enumerate(texts):
        wav = folder / f"{split}-{i}.wav"
        soundfile.write(wav, voice(text), RATE, subtype="PCM_16")
        cuts.append(make_cut(wav, text, f"{split}-{i}"))
    save_cuts(cuts, folder / f"{split}.cuts.jsonl.gz")


PIECES = ["<unk>", "▁", "▁a", "▁b", "a", "b", "c", "ab", "▁abc", "d", "e"]  # the blank, added last, is 11


def save_parakeet(folder: Path, **options: Any) -> Any:
    """Write a FastConformer with random weights and pieces, and return it in evaluation mode."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"subsampling_conv_channels": 8, "conv_kernel_size": 5}
    config = transformers.ParakeetCTCConfig(
        encoder_config=sizes | options, vocab_size=len(PIECES) + 1, pad_token_id=len(PIECES)
    )
    model = transformers.ParakeetForCTC(config).eval()
    for name, values in model.state_dict().items():  # as after training, so that positions and frames matter
        if name.endswith("running_var"):
            values.uniform_(0.5, 2.0)
        elif name.endswith("running_mean"):
            values.normal_()
        elif values.dim() > 1:
            values.mul_(6.0)
    model.save_pretrained(folder)
    pieces = Tokenizer(models.Unigram([(x, -1.0 - i / 10) for i, x in enumerate(PIECES)], unk_id=0))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=pieces, pad_token="<pad>", unk_token="<unk>")
    transformers.ParakeetProcessor(transformers.ParakeetFeatureExtractor(), tokenizer).save_pretrained(folder)
    return model
