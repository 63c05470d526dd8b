"""Other programs that run the encoder of a Whisper folder, timed in turns with this one.

All get the same features and return states, from which the same decoder computes texts and likelihoods, so
rows differ only in the encoder.
"""

import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asr.attention.transformers_adapter import quiet
from asr.model.graph import quiet_export
from asr.model.whisper import loaded_whisper

ENGINE = "peer:"  # prefix of a row's name
PACKAGES = {  # the engine's own, and what writes its model
    "transformers": ["transformers"],
    "faster-whisper": ["ctranslate2"],
    "openvino": ["openvino"],
    "onnxruntime": ["onnxruntime", "onnx", "onnxscript"],
}
INT8, BF16 = "-int8", "-bf16"

Encode = Callable[[Tensor], Tensor]  # from features [B, T, F] to states [B, N, M]


def engine_of(name: str) -> str:
    """Return an engine's name without its precision.

    Example:
        >>> engine_of("faster-whisper-int8"), engine_of("openvino")
        ('faster-whisper', 'openvino')
    """
    return name.removesuffix(INT8).removesuffix(BF16)


def engine_version(name: str) -> str:
    """Return the version of an engine's package, e.g. `ctranslate2 4.6`."""
    package = PACKAGES[engine_of(name)][0]
    return f"{package} {version(package)}"


def unavailable(names: Sequence[str]) -> dict[str, str]:
    """Return the engines that can't run here, with the reasons."""
    reasons = {}
    for name in names:
        if missing := [x for x in PACKAGES[engine_of(name)] if not _is_installed(x)]:
            reasons[name] = f"{missing[0]} isn't installed: pip install 'clustered-asr[peers]'"
        elif name == f"openvino{BF16}" and "BF16" not in _openvino_types():
            reasons[name] = "the processor has no bfloat16"
    return reasons


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def build_encoder(name: str, folder: Path) -> Encode:
    """Return the encoder of a transformers folder in an engine, with as many threads as PyTorch has.

    Args:
        name: one of `ENGINES` in `asr.experiment.options`.
        folder: folder of a Whisper model.
    """
    build = {
        "transformers": _transformers,
        "faster-whisper": _ctranslate2,
        "openvino": _openvino,
        "onnxruntime": _onnxruntime,
    }[engine_of(name)]
    with quiet(), quiet_export():
        return build(folder, name.removeprefix(engine_of(name)))


class _Encoder(nn.Module):
    """Transformers' encoder, from features [B, F, T] to states [B, N, M]."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        model, _ = loaded_whisper(folder)
        self.encoder = model.model.encoder.eval()

    def forward(self, features: Tensor) -> Tensor:
        states: Tensor = self.encoder(features).last_hidden_state
        return states

    def example(self) -> Tensor:
        """Return zeros as features."""
        config = self.encoder.config
        return torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions)


def _transformers(folder: Path, precision: str) -> Encode:
    dtype = torch.bfloat16 if precision == BF16 else torch.float32
    encoder = _Encoder(folder).to(dtype)
    return lambda features: encoder(features.mT.to(dtype)).float()


def _ctranslate2(folder: Path, precision: str) -> Encode:
    import ctranslate2

    with tempfile.TemporaryDirectory() as converted:
        ctranslate2.converters.TransformersConverter(str(folder)).convert(converted, force=True)
        model = ctranslate2.models.Whisper(
            converted,
            compute_type="int8" if precision == INT8 else "float32",
            intra_threads=torch.get_num_threads(),
        )

    def encode(features: Tensor) -> Tensor:
        given = ctranslate2.StorageView.from_array(features.mT.contiguous().numpy())
        return torch.from_numpy(np.array(model.encode(given, to_cpu=True)))

    return encode


def _openvino_types() -> list[str]:
    import openvino

    found: list[str] = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return found


def _openvino(folder: Path, precision: str) -> Encode:
    import openvino

    encoder = _Encoder(folder)
    with torch.no_grad():
        converted = openvino.convert_model(encoder, example_input=encoder.example())
    hints = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == BF16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    model = openvino.Core().compile_model(converted, "CPU", hints)
    return lambda features: torch.from_numpy(np.array(model(features.mT.contiguous().numpy())[0]))


def _onnxruntime(folder: Path, precision: str) -> Encode:
    import onnxruntime

    encoder = _Encoder(folder)
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as place:
        file = str(Path(place, "encoder.onnx"))
        dynamic = ({0: torch.export.Dim.DYNAMIC},)
        torch.onnx.export(
            encoder, (encoder.example(),), file, dynamo=True, verbose=False, dynamic_shapes=dynamic
        )
        if precision == INT8:
            from onnxruntime.quantization import quantize_dynamic

            quantize_dynamic(file, smaller := str(Path(place, "int8.onnx")))
            file = smaller
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def encode(features: Tensor) -> Tensor:
        (states,) = session.run(None, {name: features.mT.contiguous().numpy()})
        return torch.from_numpy(states)

    return encode
