"""The encoder as a graph for other runtimes: torch.export's program, or ONNX.

The graph begins with filter banks and ends with log-probabilities; batch and time are dynamic. Filter banks
stay outside: framing and Fourier transform are what runtimes and devices have implementations of their own
for (Kaldi's compute-fbank-feats gives the same), and an hour of audio needs them in blocks. Normalisation,
which models differ in, is inside. Attention runs on its reference backend,
i-clustered in a form without sorting.
"""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asr.attention.clustered import ClusteredAttention
from asr.config import to_dict
from asr.errors import UserError
from asr.files import atomic_binary, write_bytes
from attention_ext.hashing.graph import hash_sign
from attention_ext.improved_clustered_attention.graph import improved_clustered_attention

if TYPE_CHECKING:
    from asr.recognizer import Recognizer

FAMILY = ("full", "shared-full", "clustered", "i-clustered")
OPSET = 18
INPUTS, OUTPUTS = ("features", "lengths"), ("log_probs", "frames")


class FeaturesToLogProbs(nn.Module):
    """What the graph computes: `recognizer.filter_banks` gives its input.

    Args:
        recognizer: in evaluation mode, on the reference backend.
    """

    def __init__(self, recognizer: "Recognizer") -> None:
        super().__init__()
        self.normalisation = recognizer.normalisation
        self.encoder = recognizer.encoder
        self.head = recognizer.head
        self.subsampling = recognizer.config.model.subsampling
        self.extra_frames = self.subsampling * _most_needed(recognizer)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, T, F] log-mel energies with [B] valid frames to [B, T', V] and [B] encoder frames."""
        size = (features.shape[1] + self.subsampling - 1) // self.subsampling
        features = self.normalisation(features, lengths)
        # As many frames as there are clusters: where a size is the smaller of two, torch.export takes long.
        features = nn.functional.pad(features, (0, 0, 0, self.extra_frames))
        states, frames = self.encoder(features, lengths)
        return self.head(states[:, :size]), frames


def _most_needed(recognizer: "Recognizer") -> int:
    """Return the most clusters or chosen keys of any layer."""
    sizes = [
        max(mechanism.grouping.clusters, getattr(mechanism, "topk", 0))
        for mechanism in _clustered_mechanisms(recognizer)
    ]
    return max(sizes, default=0)


def _clustered_mechanisms(recognizer: "Recognizer") -> list[ClusteredAttention]:
    return [module for module in recognizer.modules() if isinstance(module, ClusteredAttention)]


def graph_module(recognizer: "Recognizer") -> FeaturesToLogProbs:
    """Return a copy of the model on the CPU, in evaluation mode, of operators that can be exported.

    Raises:
        UserError: a mechanism whose graph has not been tested.
    """
    name = recognizer.config.attention
    if not any(name == known or name.startswith(f"{known}-") for known in FAMILY):
        raise UserError(
            f"attention {name!r} can't be exported as a graph: expected one of {', '.join(FAMILY)} "
            "(format=safetensors takes any)"
        )
    recognizer = copy.deepcopy(recognizer).cpu().eval()
    recognizer.set_attention(name, backend="reference")
    for mechanism in _clustered_mechanisms(recognizer):
        mechanism.operators["reference"] = replace(
            mechanism.operators["reference"],
            hash_sign=hash_sign,
            improved_clustered_attention=improved_clustered_attention,
        )
    return FeaturesToLogProbs(recognizer)


def export_program(recognizer: "Recognizer") -> torch.export.ExportedProgram:
    """Trace the model with dynamic batch and time.

    Raises:
        UserError: see `graph_module`.
    """
    module = graph_module(recognizer)
    bins = recognizer.config.features.mel_bins
    # Sizes that coincide with no size of the model: torch.export takes 0 and 1, and equal sizes, for fixed.
    example = torch.randn(2, 307, bins, generator=torch.Generator().manual_seed(0))
    dynamic = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        return torch.export.export(
            module,
            (example, torch.tensor([307, 211])),
            dynamic_shapes=({0: dynamic, 1: dynamic}, {0: dynamic}),
        )


def write_program(recognizer: "Recognizer", path: Path) -> None:
    """Write `torch.export`'s program (`.pt2`): `torch.export.load(path).module()(features, lengths)`.

    It takes a batch of any size, one included, and sequences of two encoder frames or more.
    """
    program = export_program(recognizer)
    with atomic_binary(path) as file:
        torch.export.save(program, file)


def write_onnx(recognizer: "Recognizer", path: Path) -> None:
    """Write ONNX with inputs `features`, `lengths` and outputs `log_probs`, `frames`.

    The symbols, in order, and the settings of the filter banks are in the file's metadata as JSON.

    Raises:
        UserError: the extra `export` is not installed, or see `graph_module`.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  (what torch.onnx runs on)
    except ImportError as error:
        raise UserError(f"ONNX export needs {error.name}: pip install 'clustered-asr[export]'") from None
    program = torch.onnx.export(
        export_program(recognizer),
        input_names=list(INPUTS),
        output_names=list(OUTPUTS),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise UserError(f"{path}: torch.onnx gave no model")
    model = program.model_proto
    onnx.helper.set_model_props(
        model,
        {
            "symbols": json.dumps(recognizer.tokenizer.symbols, ensure_ascii=False),
            "features": json.dumps(to_dict(recognizer.config.features)),
            "attention": recognizer.config.attention,
            "frame_s": str(recognizer.frame_s),
        },
    )
    write_bytes(model.SerializeToString(), path)
