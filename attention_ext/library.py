"""Loads the compiled libraries on first use, or explains why they are unavailable."""

import functools
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded on first use
    from torch import Tensor

FOLDER = Path(__file__).parent
DEVICES = ("cpu", "cuda")


@functools.cache
def why_unavailable(device: str) -> str | None:
    """Load the library for a device; return the reason if that fails, in one line, else None.

    Args:
        device: "cpu" or "cuda".
    """
    if device not in DEVICES:
        return f"there are compiled kernels for {' and '.join(DEVICES)} only, not for {device}"
    if device == "cuda":
        reason = why_unavailable("cpu")  # the CPU library defines the operators' signatures
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
    return None


def lacks(operator: str, argument: str = "") -> bool:
    """Return whether the loaded CPU library lacks an operator or argument, because it is older."""
    import torch

    if why_unavailable("cpu") is not None:
        return False
    if not hasattr(torch.ops.attention_ext, operator):
        return True
    schema = getattr(torch.ops.attention_ext, operator).default._schema
    return bool(argument) and argument not in {x.name for x in schema.arguments}


def require(device: str) -> None:
    """Load the library for a device.

    Raises:
        RuntimeError: the library is unavailable; the message gives the reason.
    """
    reason = why_unavailable(device)
    if reason is not None:
        raise RuntimeError(f"no compiled kernels for {device}: {reason}")


LARGEST_HEAD_ON_TILES = 256
INSTRUCTION_SETS = ("generic", "avx2", "avx512", "avx512_bf16", "amx")


def instruction_set(name: str = "") -> str:
    """Select the instruction set of the CPU kernels and return its name.

    Args:
        name: one of `INSTRUCTION_SETS`; the last two are AVX-512 with tiles of bfloat16, by dot products or
            by AMX. Empty for the fastest that this machine supports.

    Raises:
        RuntimeError: this machine does not support the instruction set.
    """
    require("cpu")
    import torch

    return torch.ops.attention_ext.choose_instruction_set(name)


def has_tiles() -> bool:
    """Return whether the selected instruction set has tiles of bfloat16; the library must be loaded."""
    import torch

    return torch.ops.attention_ext.instruction_set() in ("amx", "avx512_bf16")


def on_tiles(q: "Tensor", v: "Tensor") -> bool:
    """Return whether the CPU kernels compute a call on tiles, as `on_tiles` in cpu/inputs.h."""
    import torch

    fits = max(q.shape[3], v.shape[3]) <= LARGEST_HEAD_ON_TILES and q.numel() > 0
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and fits and has_tiles()


def has_wide_vectors() -> bool:
    """Return whether the selected instruction set has vectors of at least 32 bytes; see `has_tiles`."""
    import torch

    return torch.ops.attention_ext.instruction_set() != "generic"


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
    return "the kernels were never built: install this package with pip where a C++ compiler is available"
