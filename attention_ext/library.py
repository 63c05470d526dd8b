"""Loads the compiled operators on first use, and says why they are not there."""

import functools
import json
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent
DEVICES = ("cpu", "cuda")


@functools.cache
def why_unavailable(device: str) -> str | None:
    """Return why the compiled kernels cannot serve a device, in one line; None if they can.

    The first call loads the library.

    Args:
        device: "cpu" or "cuda".
    """
    if device not in DEVICES:
        return f"there are compiled kernels for {' and '.join(DEVICES)} only, not for {device}"
    if device == "cuda":
        reason = why_unavailable("cpu")  # it holds the operators' signatures
        if reason is not None:
            return reason
    library = FOLDER / f"kernels_{device}.so"
    if not library.is_file():
        return _why_not_built(device)
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if device == "cuda":
        reason = _why_no_gpu()
        if reason is not None:
            return reason
    try:
        torch.ops.load_library(library)
    except OSError as error:
        return f"{library.name} cannot be loaded: {str(error).splitlines()[0]}"
    if device == "cpu":
        _register()
    return None


def require(device: str) -> None:
    """Load the kernels for a device.

    Raises:
        RuntimeError: they are not there; the message says why.
    """
    reason = why_unavailable(device)
    if reason is not None:
        raise RuntimeError(f"no compiled kernels for {device}: {reason}")


def instruction_set(name: str = "") -> str:
    """Choose the CPU kernels of one instruction set and return its name; the fastest without a name.

    Args:
        name: "generic", "avx2" or "avx512".

    Raises:
        RuntimeError: this machine lacks it.
    """
    require("cpu")
    import torch

    return torch.ops.attention_ext.choose_instruction_set(name)


@functools.cache  # PyTorch refuses a second registration
def _register() -> None:
    from attention_ext.clustered_attention import native as clustered
    from attention_ext.hashing import native as hashing
    from attention_ext.improved_clustered_attention import native as improved
    from attention_ext.kmeans import native as kmeans
    from attention_ext.lsh_attention import native as lsh

    for operator in (hashing, kmeans, clustered, improved, lsh):
        operator.register()


def _why_no_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA GPU"
    capabilities = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    if min(capabilities) < (8, 0):
        major, minor = min(capabilities)
        return f"the kernels need compute capability 8.0 or above on every GPU, found {major}.{minor}"
    return None


def _why_not_built(device: str) -> str:
    record = FOLDER / "build.json"
    reason = json.loads(record.read_text()).get(device) if record.is_file() else None
    if reason is not None:
        return reason
    return "the kernels were never built: install this package with pip, from a place with a C++ compiler"
