"""A fine-tuned text encoder from a local folder of transformers, run with any mechanism."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from asr_recipes.questions.spans import Window
from torch import Tensor

from asr.attention.transformers_adapter import (
    ReplacedAttention,
    import_transformers,
    quiet,
    refuse_adapter,
    register_attention,
)
from asr.errors import UserError, in_words
from asr.experiment.options import FULL
from asr.files import file_digest

LOCAL = {"local_files_only": True, "trust_remote_code": False}  # code in the folder isn't run


class TextModel:
    """A model with its tokenizer.

    Args:
        folder: folder written by `save_pretrained`: model (in safetensors) and tokenizer.
        model_class: class of transformers that loads the model, e.g. `AutoModelForQuestionAnswering`.
        device: device to compute on.

    Raises:
        UserError: transformers is missing, the folder can't be read, the model lacks weights of its class, or
            its attention can't be exchanged.
    """

    def __init__(self, folder: Path, model_class: str, device: str) -> None:
        require_model(folder)
        transformers = import_transformers()
        self.folder, self.device = folder, device
        with quiet():
            try:
                self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
                self.model, report = getattr(transformers, model_class).from_pretrained(
                    folder, output_loading_info=True, dtype=torch.float32, use_safetensors=True, **LOCAL
                )
            except (
                Exception
            ) as error:  # from transformers, safetensors, json and PyTorch: a folder may contain anything
                raise UserError(f"model={folder}: {in_words(error)}") from error
        if missing := sorted(report["missing_keys"]):
            kind = model_class.removeprefix("AutoModelFor")
            raise UserError(
                f"model={folder}: expected a model fine-tuned for {kind}, found no weights "
                f"{', '.join(missing)[:80]}"
            )
        if not self.model._can_set_attn_implementation():
            raise UserError(f"model={folder}: {type(self.model).__name__} doesn't take attention functions")
        self._check_tokenizer()
        # Padding must be on the right, whatever the tokenizer's setting: see the adapter.
        self.tokenizer.padding_side = "right"
        self.model.eval().to(device)
        self._used: dict[str, ReplacedAttention] = {}
        self._attention = FULL

    def _check_tokenizer(self) -> None:
        """Raise UserError for a tokenizer that can't prepare the model's input."""
        tokenizer = self.tokenizer
        # Without files, transformers makes a tokenizer that knows no text.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            raise UserError(f"model={self.folder}: expected a tokenizer (tokenizer.json), found none")
        if not tokenizer.is_fast:
            raise UserError(
                f"model={self.folder}: expected a fast tokenizer (tokenizer.json), found a slow one"
            )
        names = tokenizer.model_input_names
        listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not listed or "input_ids" not in names:
            raise UserError(
                f"model={self.folder}: expected a list with input_ids as the tokenizer's model_input_names, "
                f"found {str(names)[:60]}"
            )
        if tokenizer.pad_token is None:
            raise UserError(f"model={self.folder}: expected a tokenizer with a padding token, found none")

    def check_length(self, longest: int) -> None:
        """Raise UserError if inputs of this length have no position embeddings."""
        limit = min(
            getattr(self.model.config, "max_position_embeddings", None) or longest,
            self.tokenizer.model_max_length,  # RoBERTa's positions start at 2
        )
        if longest > limit:
            raise UserError(
                f"recipe.max_length={longest}: expected at most {limit} tokens, the longest input of "
                f"{self.folder}"
            )

    def digest(self) -> list[str]:
        """Return hashes of all files that affect the output."""
        files = sorted(file for file in self.folder.iterdir() if file.is_file())
        return [f"{file.name} {file_digest(file)}" for file in files]

    def use(self, attention: str, backend: str) -> None:
        """Exchange the attention."""
        from transformers import AttentionInterface

        if attention not in self._used:
            name = register_attention(attention, backend)
            self._used[attention] = AttentionInterface()[name]
        self._attention, mechanism = attention, self._used[attention]
        AttentionInterface.register(mechanism.name, mechanism)  # another model may have registered its own
        self.model.set_attn_implementation(mechanism.name)

    def batch(self, windows: Sequence[Window]) -> dict[str, Tensor]:
        """Return the padded inputs of a batch, [B, N] each."""
        rows = [window.inputs for window in windows]
        batch = {name: [row[name] for row in rows] for name in rows[0]}
        return dict(self.tokenizer.pad(batch, return_tensors="pt").to(self.device))

    @torch.inference_mode()
    def run(self, inputs: dict[str, Tensor]) -> Any:
        """Return the model's output.

        Raises:
            UserError: no layer called the mechanism, so the score would be another one's.
        """
        output = self.model(**inputs)
        if not self._used[self._attention].mechanisms:
            raise UserError(
                f"model={self.folder}: no layer of {type(self.model).__name__} used attention "
                f"{self._attention!r}; expected an encoder without causal attention"
            )
        return output


def require_model(folder: Path) -> None:
    """Raise UserError if a folder has no transformers model, or one to which peft adds weights."""
    refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"model={folder}: expected a folder with a transformers model, found no config.json")
