"""How the models of a comparison are decoded: options of `asr decode`, complete, and what they depend on."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asr import config
from asr.commands.decode import Options as DecodeOptions
from asr.compare.candidates import flat
from asr.compare.options import CompareConfig
from asr.config import to_dict
from asr.errors import UserError, did_you_mean
from asr.files import file_digest
from asr.search.decoder import DECODERS, WEIGHTED, BeamConfig

# Options of decoding that asr compare takes under their own names, and those that it decides.
BESIDE = ("decoder", "beam", "tune", "tune_utterances", "jobs", "device")
DECIDED = {"split": "splits=[…]", "data": "splits=[…]", "attention": "evaluate=[…]", "output": "folder=…"}
NO_OUTCOME = ("jobs", "workers")  # options that no hypothesis depends on


@dataclass(frozen=True)
class Decoding:
    """How every model is decoded.

    Attributes:
        options: but for split, data, mechanism and output. Weights of the search are those of the command
            line or the defaults, whatever a run folder may hold; or left open, where they are tuned.
        files: hashes of what the search reads, by option: `beam.lm`, `beam.lexicon`.
    """

    options: DecodeOptions
    files: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return what an evaluation depends on, as plain data."""
        usual = DecodeOptions()
        fixed = {name: getattr(usual, name) for name in NO_OUTCOME}
        return {"options": to_dict(self.options) | fixed} | ({"files": self.files} if self.files else {})

    def free(self) -> dict[str, Any]:
        """Return what a worker is told besides."""
        return {name: getattr(self.options, name) for name in NO_OUTCOME}

    def words(self) -> list[str]:
        """Return what isn't as usual, as `asr decode` takes it."""
        usual = flat(to_dict(DecodeOptions()))
        return [f"{key}={value}" for key, value in flat(to_dict(self.options)).items() if value != usual[key]]

    def system(self, attention: str) -> str:
        """Return the name of an evaluation's folder, as `asr decode` gives it: `full-beam-trigram`."""
        lm = self.options.beam.lm
        return f"{attention}-{self.options.decoder}" + (f"-{Path(lm).name.partition('.')[0]}" if lm else "")

    def described(self) -> dict[str, Any]:
        """Return what the results say of it."""
        options = self.options
        others = [word for word in self.words() if _stem(word) not in BESIDE]
        beam = {} if options.decoder == "greedy" else asdict(options.beam)
        return {
            "decoder": options.decoder,
            "beam": beam,
            "tune": options.tune,
            "files": self.files,
            "decode": others,
        }


def plan_decoding(options: CompareConfig) -> Decoding:
    """Return how every model is to be decoded.

    Raises:
        UserError: an option that can't be, or a file that isn't there.
    """
    for word in options.decode:
        key = word.partition("=")[0]
        if _stem(word) in BESIDE:
            raise UserError(f"decode=[{word}]: asr compare takes this by itself: {word}")
        if key in DECIDED:
            raise UserError(f"decode=[{word}]: asr compare decides this; use {DECIDED[key]}")
    decoder, beam, tune = options.decoder, options.beam, options.tune
    if decoder not in DECODERS:
        raise UserError(f"decoder={decoder}: no such decoder{did_you_mean(decoder, DECODERS)}")
    if decoder == "greedy" and beam != BeamConfig():
        raise UserError("decoder=greedy takes none of the options beam.*: name another, decoder=beam")
    if decoder == "cuda" and not torch.cuda.is_available():
        raise UserError("decoder=cuda: this machine has no CUDA device")
    for key, value in (("beam.lm", beam.lm), ("tune", tune)):
        if value and decoder not in WEIGHTED:
            raise UserError(f"{key}={value}: decoder={decoder} takes none, {' and '.join(WEIGHTED)} do")
    own = {name: getattr(options, name) for name in BESIDE}
    if not tune and decoder != "greedy":
        own["beam"] = beam.complete(decoder)
    return Decoding(replace(config.parse(DecodeOptions, options.decode), **own), _files(beam))


def _files(beam: BeamConfig) -> dict[str, str]:
    found = {}
    for key, path in (("beam.lm", beam.lm), ("beam.lexicon", beam.lexicon)):
        if path and not Path(path).is_file():
            raise UserError(f"{key}={path}: expected a file, found none")
        if path:
            found[key] = file_digest(Path(path))
    return found


def _stem(word: str) -> str:
    return word.partition("=")[0].partition(".")[0]
