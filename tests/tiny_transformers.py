"""A tiny BERT with a tokenizer of whole words and letters, saved as transformers does."""

import json
import string
from pathlib import Path
from typing import Any

import torch

WORDS = ["the", "who", "bought", "a", "boat", "violin", "in", "paris", "rome", "anna", "boris", "?", ".", ","]
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tokenizer() -> Any:
    """Return a fast tokenizer with BERT's special tokens and token types."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [*string.ascii_lowercase, *string.digits]
    pieces = [*SPECIAL, *WORDS, *(x for x in letters if x not in WORDS), *(f"##{x}" for x in letters)]
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=64, model_input_names=INPUTS, **names
    )


def save_model(folder: Path, kind: str, **options: Any) -> Path:
    """Save a random model, e.g. of kind `BertForQuestionAnswering`, with its tokenizer."""
    import transformers

    words = tokenizer()
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,  # large weights, so that attention isn't flat
    }
    config = transformers.BertConfig(vocab_size=len(words), **{**sizes, **options})
    getattr(transformers, kind)(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def write_rte(folder: Path, rows: int = 12) -> Path:
    """Write RTE's evaluation set in the public layout."""
    path = folder / "RTE" / "dev.tsv"
    path.parent.mkdir(parents=True)
    people, places = ("anna", "boris"), ("paris", "rome")
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for i in range(rows):
        first = f"{people[i % 2]} bought a boat in {places[i % 3 % 2]}." + " the boat, a boat." * (i % 4)
        label = "entailment" if i % 5 < 2 else "not_entailment"
        lines.append(f"{i}\t{first}\t{people[i % 2]} bought a boat?\t{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_squad(folder: Path, contexts: int = 3) -> Path:
    """Write two questions on each of several contexts, the longer ones longer than a window of 40 tokens."""
    path = folder / "squad" / "dev-v1.1.json"
    path.parent.mkdir(parents=True)
    paragraphs = []
    for i in range(contexts):
        context = "anna bought a boat in paris. " * (1 + 3 * i) + "boris bought a violin in rome."
        asked = [("who bought a violin?", "boris"), ("who bought a boat?", "anna")]
        questions = [
            {
                "id": f"{i}-{number}",
                "question": question,
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
            for number, (question, answer) in enumerate(asked)
        ]
        paragraphs.append({"context": context, "qas": questions})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]}))
    return path
