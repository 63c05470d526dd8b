"""Exports the model as a graph for other runtimes: a torch.export program or ONNX.

The graph maps filter banks to log-probabilities; batch and time are dynamic. It includes the normalisation,
which differs between models, but not the filter banks: runtimes and devices have their own implementations
(Kaldi's compute-fbank-feats is equivalent), and long recordings need them in blocks. The graph starts from
samples for a pretrained encoder, which has its own front end, and for sherpa-onnx. Attention runs on its
reference backend, i-clustered in a form without sorting.
"""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as fx_config

from asr.attention.clustered import ClusteredAttention
from asr.attention.linear import CHUNK, LinearAttention
from asr.attention.local import LocalAttention
from asr.attention.near import NearFieldAttention
from asr.attention.table import layer_runs
from asr.config import to_dict
from asr.config.schedule import Merging
from asr.errors import UserError
from asr.files import atomic_binary, write_bytes, write_text
from asr.lengths import zero_padding
from asr.model.acoustic_model import AcousticModel
from asr.text.tokenizer import BLANK as BLANK_SYMBOL
from asr.text.tokenizer import PIECE_START, UNKNOWN, WORD_GAP, Tokenizer
from attention_ext.hashing.graph import hash_sign
from attention_ext.improved_clustered_attention.graph import products_per_query
from attention_ext.improved_clustered_attention.reference import improved_clustered_attention
from attention_ext.local_attention.reference import SMALLEST_BLOCK
from attention_ext.near_attention.reference import near_attention

FAMILY = ("full", "shared-full", "clustered", "i-clustered", "near", "local", "linear", "fastformer", "none")
OPSET = 18  # the ONNX opset that torch.onnx writes, so that no graph is converted
OUTPUTS = ("log_probs", "frames")
SHERPA_FILES = ("model.onnx", "tokens.txt")
SHERPA_RATE = 16000  # Hz


class InputToLogProbs(nn.Module):
    """The computation of the graph; its input is audio, or features from a front end without weights.

    Args:
        model: acoustic model in evaluation mode, on the reference backend.
    """

    def __init__(self, model: AcousticModel) -> None:
        super().__init__()
        self.model = model
        self.subsampling = model.config.model.subsampling
        factors = [x for x in model.encoder.factors if isinstance(x, int)]
        self.extra_frames = self.subsampling * max(factors) * _most_needed(model)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, T, F] log-mel energies or [B, samples], with [B] lengths, to [B, T', V] and [B] frames."""
        if self.model.front_end.in_graph:
            features, lengths = self.model.front_end(features, lengths)
        else:
            features = zero_padding(features, lengths)
        size = (features.shape[1] + self.subsampling - 1) // self.subsampling
        features = self.model.normalisation(features, lengths)
        # Padded to at least as many frames as clusters and top keys, because torch.export is slow with a
        # minimum of two sizes; and to more than one block of queries, because it specialises on one.
        features = nn.functional.pad(features, (0, 0, 0, self.extra_frames))
        log_probs, frames = self.model.emit(features, lengths)
        return log_probs[-1][:, :size], frames


class RecordingToLogProbs(InputToLogProbs):
    """The computation of a graph whose only input is a single recording, as run by sherpa-onnx."""

    def forward(self, samples: Tensor) -> Tensor:  # type: ignore[override]
        """Map [1, samples] to [1, T', V] log-probabilities."""
        lengths = torch.full((1,), samples.shape[1], dtype=torch.long)
        if self.model.front_end.in_graph:
            return super().forward(samples, lengths)[0]
        return super().forward(*self.model.front_end(samples, lengths))[0]


def _most_needed(model: AcousticModel) -> int:
    """Return how many frames the layers need for their clusters, top keys and more than one block."""
    sizes = [1]  # with one more, no input has a single encoder frame, for which PyTorch has other kernels
    for module in model.modules():
        match module:
            case NearFieldAttention():
                sizes += [module.grouping.clusters, module.topk, module.window, SMALLEST_BLOCK]
            case ClusteredAttention():
                sizes += [module.grouping.clusters, getattr(module, "topk", 0)]
            case LocalAttention():
                reach = max(module.window, module.right) + module.chunk - 1
                sizes += [reach, module.first, SMALLEST_BLOCK]
            case LinearAttention():
                sizes += [2 * CHUNK]  # causal attention sums over all chunks but the last
    return max(sizes)


def graph_module(
    model: AcousticModel, computation: type[InputToLogProbs] = InputToLogProbs
) -> InputToLogProbs:
    """Return a copy of the model on the CPU, in evaluation mode, made of exportable operators.

    Args:
        model: acoustic model.
        computation: computation of the graph.

    Raises:
        UserError: a mechanism or the schedule of frames can't be exported.
    """
    name, frames = model.config.attention, model.config.model.frames
    if any(isinstance(x, Merging) for x in model.encoder.factors):
        raise UserError(
            f"frames={frames}: can't be exported as a graph, because runs are chosen one after the other "
            "(format=safetensors supports it)"
        )
    if any(spec.mechanism not in FAMILY for spec, _ in layer_runs(name)):
        raise UserError(
            f"attention {name!r} can't be exported as a graph: expected one of {', '.join(FAMILY)} "
            "(format=safetensors supports any mechanism)"
        )
    model = copy.deepcopy(model).cpu().eval()
    model.set_attention(name, backend="reference")
    for mechanism in (x for x in model.modules() if isinstance(x, ClusteredAttention)):
        mechanism.operators["reference"] = replace(
            mechanism.operators["reference"],
            hash_sign=hash_sign,
            improved_clustered_attention=partial(improved_clustered_attention, products=products_per_query),
            near_attention=partial(near_attention, products=products_per_query),
        )
    return computation(model)


def export_program(model: AcousticModel) -> torch.export.ExportedProgram:
    """Trace the model with dynamic batch and time.

    Raises:
        UserError: see `graph_module`.
    """
    module = graph_module(model)
    # Sizes that don't occur in the model: torch.export specialises on 0, on 1 and on equal sizes.
    lengths, width = torch.tensor([307, 211]), [model.config.features.mel_bins]
    if model.front_end.in_graph:
        lengths = lengths * model.front_end.shift_samples + model.front_end.window_samples
        width = []
    example = torch.randn(2, int(lengths.max()), *width, generator=torch.Generator().manual_seed(0))
    dynamic = torch.export.Dim.DYNAMIC
    return _traced(module, (example, lengths), ({0: dynamic, 1: dynamic}, {0: dynamic}))


def _traced(
    module: nn.Module, example: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    # The output may have a single frame; by default torch.export specialises on more.
    with torch.no_grad(), fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return torch.export.export(module, example, dynamic_shapes=dynamic_shapes)


def write_program(model: AcousticModel, path: Path) -> None:
    """Write a torch.export program (`.pt2`), used as `torch.export.load(path).module()(features, lengths)`.

    It accepts any batch size and any length of at least one frame.
    """
    with quiet_export(), atomic_binary(path) as file:
        torch.export.save(export_program(model), file)


@contextmanager
def quiet_export() -> Iterator[None]:
    """Hide messages of PyTorch's exporter about packages that it could use, and its deprecated calls."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def write_onnx(model: AcousticModel, symbols: Sequence[str], path: Path) -> None:
    """Write ONNX with inputs `features` or `audio`, `lengths` and outputs `log_probs`, `frames`.

    The file's metadata contains the symbols in order, the label topology, and the settings of the filter
    banks as JSON.

    Raises:
        UserError: the extra `export` is not installed, or the mechanism can't be exported.
    """
    properties = {
        "symbols": json.dumps(list(symbols), ensure_ascii=False),
        "features": json.dumps(to_dict(model.config.features)),
        "attention": model.config.attention,
        "frames": model.config.model.frames,
        "frame_s": str(model.frame_s),
        "topology": model.config.topology,
    }
    inputs = ["audio" if model.front_end.in_graph else "features", "lengths"]
    _write_onnx(lambda: export_program(model), inputs, OUTPUTS, properties, path)


def write_sherpa(model: AcousticModel, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Write a model for the package sherpa-onnx, and return its files.

    The graph takes the samples of one recording, scaled by sherpa-onnx to mean 0 and variance 1, and is
    loaded by `OfflineRecognizer.from_omnilingual_asr_ctc`.

    Raises:
        UserError: see `write_onnx`; or the model has phones, the topology hmm or another sample rate than
            16 kHz, or its output depends on the level of the samples.
    """
    config = model.config
    levelled = model.front_end.normalise or config.features.normalise in ("utterance", "window")
    for right, expected, found in (
        (tokenizer.unit != "phone", "characters or pieces", "phones"),
        (config.topology == "ctc", "loss.topology=ctc", config.topology),
        (levelled, "features.normalise=utterance or window", config.features.normalise),
        (model.sample_rate == SHERPA_RATE, f"{SHERPA_RATE} Hz", f"{model.sample_rate} Hz"),
    ):
        if not right:
            raise UserError(f"format=sherpa-onnx: expected a model with {expected}, found {found}")
    module = graph_module(model, RecordingToLogProbs)
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(1, 2 * SHERPA_RATE + 321, generator=generator)

    def program() -> torch.export.ExportedProgram:
        return _traced(module, (example,), ({1: torch.export.Dim.DYNAMIC},))

    written, tokens = folder / SHERPA_FILES[0], folder / SHERPA_FILES[1]
    properties = {"attention": model.config.attention, "frame_s": str(model.frame_s)}
    _write_onnx(program, ["samples"], OUTPUTS[:1], properties, written)
    write_text(sherpa_tokens(tokenizer), tokens)
    return [written, tokens]


def sherpa_tokens(tokenizer: Tokenizer) -> str:
    """Return a vocabulary as sherpa-onnx lists it: a symbol and its number per line."""
    # As sherpa-onnx names the blank and a space, and as our texts show what the vocabulary lacks.
    names = {BLANK_SYMBOL: "<blk>", UNKNOWN: "⁇"}
    if tokenizer.gap:  # in other vocabularies, the bar is a piece like any other
        names[WORD_GAP] = PIECE_START
    lines = [f"{names.get(symbol, symbol)} {number}" for number, symbol in enumerate(tokenizer.symbols)]
    return "\n".join(lines) + "\n"


def _write_onnx(
    export: Callable[[], torch.export.ExportedProgram],
    inputs: Sequence[str],
    outputs: Sequence[str],
    properties: dict[str, str],
    path: Path,
) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401  (required by torch.onnx)
    except ImportError as error:
        raise UserError(f"ONNX export needs {error.name}: pip install 'clustered-asr[export]'") from None
    with quiet_export():
        program = torch.onnx.export(
            export(),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise UserError(f"{path}: torch.onnx returned no model")
    proto = program.model_proto  # each access builds it again
    onnx.helper.set_model_props(proto, properties)
    write_bytes(proto.SerializeToString(), path)
