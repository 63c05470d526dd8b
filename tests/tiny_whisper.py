"""A tiny random Whisper with inputs of three seconds, saved as transformers does."""

from pathlib import Path
from typing import Any

import torch

SPECIAL = [
    "endoftext",
    "startoftranscript",
    "en",
    "de",
    "transcribe",
    "translate",
    "startofprev",
    "notimestamps",
]
SECONDS = 3


def tokenizer() -> Any:
    """Return Whisper's tokenizer with bytes as tokens."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import WhisperTokenizer

    bytes_ = sorted(ByteLevel.alphabet())
    made = WhisperTokenizer(vocab={x: i for i, x in enumerate(bytes_)}, merges=[], pad_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in SPECIAL]})
    return made


def save_whisper(folder: Path, multilingual: bool = False, **options: Any) -> Path:
    """Save a random model with its processor."""
    import transformers

    words = tokenizer()
    token = {name: words.convert_tokens_to_ids(f"<|{name}|>") for name in SPECIAL}
    ends = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), token["endoftext"])
    ends["decoder_start_token_id"] = token["startoftranscript"]
    sizes = {
        "vocab_size": len(words),
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "num_mel_bins": 20,
        "max_source_positions": 50 * SECONDS,
        "max_target_positions": 60,
        "init_std": 0.4,  # large weights, so that attention isn't flat
        "begin_suppress_tokens": None,
    }
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**{**sizes, **ends, **options})
    )
    settings = {"no_timestamps_token_id": token["notimestamps"], "is_multilingual": multilingual}
    if multilingual:
        settings["lang_to_id"] = {f"<|{name}|>": token[name] for name in ("en", "de")}
        settings["task_to_id"] = {name: token[name] for name in ("transcribe", "translate")}
    model.generation_config = transformers.GenerationConfig(**ends, **settings)
    model.save_pretrained(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=SECONDS)
    transformers.WhisperProcessor(extractor, words).save_pretrained(folder)
    return folder
