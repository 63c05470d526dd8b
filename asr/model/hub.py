"""Models by name: a local folder, or a repository on the Hugging Face Hub."""

import re
import textwrap
from os import PathLike
from pathlib import Path

from asr.attention.transformers_adapter import import_transformers
from asr.errors import UserError
from asr.files import as_path

# Only these files are downloaded: repositories also contain pickles, graphs and adapters for many languages.
FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "normalizer.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)


def on_the_hub(name: str | PathLike[str]) -> bool:
    """Return whether a name is a repository's: owner/model, if no such path or folder exists.

    Example:
        >>> on_the_hub("facebook/wav2vec2-base-960h"), on_the_hub("exp/demo/full")
        (True, False)
    """
    path = Path(name)
    named = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", str(name))
    return named is not None and not path.exists() and not path.parent.exists()


def local_folder(name: str | PathLike[str]) -> Path:
    """Return the path itself, or the cache folder with the files of a repository.

    Files are downloaded on first use, and taken from the cache if the Hub can't be reached or
    HF_HUB_OFFLINE=1 is set.

    Raises:
        UserError: the repository isn't in the cache and can't be downloaded, transformers is missing, or the
            folder contains a Whisper model of CTranslate2.
    """
    path = as_path(name, "model")
    if not on_the_hub(name):
        return _of_transformers(path)
    import_transformers()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(FILES)))
    except Exception as error:  # from huggingface_hub, its HTTP client or the file system
        reason = textwrap.shorten(str(error), 200, placeholder=" …")
        raise UserError(
            f"{name}: expected a local path or a model of the Hugging Face Hub, found no such path; the "
            f"model can't be downloaded and isn't in the Hub's cache ({type(error).__name__}: {reason})"
        ) from None


def _of_transformers(folder: Path) -> Path:
    """Return the folder; raise UserError if it contains a Whisper model of CTranslate2."""
    if (file := folder / "model.bin").is_file():
        with file.open("rb") as content:
            if b"WhisperSpec" in content.read(32):
                raise UserError(
                    f"{folder}: expected a model of transformers, found one of CTranslate2: convert it with "
                    f"python tools/whisper_folder.py {folder} <new folder>"
                )
    return folder
