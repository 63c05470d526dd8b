"""The environment of a result: commit, versions, hardware; choice of device and precision."""

import functools
import logging
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from asr.config import user_code
from asr.errors import UserError
from asr.files import contents_digest

log = logging.getLogger(__name__)

# Instructions with which oneDNN multiplies matrices in bfloat16 two to four times as fast as in float32.
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")  # the last on ARM

PACKAGES = (
    "clustered-asr",
    "torch",
    "torchaudio",
    "lightning",
    "lhotse",
    "numpy",
    "sentencepiece",
)


def describe_environment() -> dict[str, Any]:
    """Return the command line, commit, digests of the user's own code, package versions and hardware."""
    import torch

    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],  # as typed
        "commit": git_commit(),
        "python": platform.python_version(),
        "code": user_code.all_digests(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "processor": processor(),
        "bf16": bf16_support("cpu")[1],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def device_words(environment: dict[str, Any]) -> str:
    """Return the device of a run with its name: `cuda (NVIDIA H200)`, `cpu (2 threads)`."""
    threads = environment.get("threads")
    names = environment.get("gpus") or [] if environment["device"] == "cuda" else []
    names = list(dict.fromkeys(names)) or [f"{threads} thread{'s' if threads != 1 else ''}"]
    return f"{environment['device']} ({', '.join(names)})"


def pick_device(name: str, option: str = "device") -> str:
    """Return the name of the device to compute on.

    Args:
        name: cpu | cuda | cuda:<number>, or auto: CUDA if available, else the CPU.
        option: name of the option, for errors.

    Raises:
        UserError: an unknown name, or a CUDA device that doesn't exist.
    """
    import torch

    name = str(name)  # may be a torch.device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    if not found:
        raise UserError(f"{option}={name}: expected auto | cpu | cuda | cuda:<number>")
    if name != "cpu" and int(found[1] or 0) >= (count := torch.cuda.device_count()):
        raise UserError(f"{option}={name}: expected a CUDA device, this machine has {count or 'none'}")
    return name


@dataclass(frozen=True)
class Precision:
    """Precision of matrix products, `fp32`, `bf16` or `fp16`, and the reason for it."""

    name: str = "fp32"
    reason: str = "as asked"


def pick_precision(
    name: str, device: str, option: str = "precision", *, recognising: bool = False
) -> Precision:
    """Return the precision to compute with; warn if it is slower than fp32.

    Args:
        name: fp32 | bf16 | fp16, or auto: bf16 if the device has instructions for it, else fp32.
        device: device, as returned by `pick_device`.
        option: name of the option, for messages.
        recognising: whether a trained model runs; then auto is fp32: bf16 cost 0.3 points of CER in decoding
            (recipes/stamps/RESULTS.md), and no measurable accuracy in training.

    Raises:
        UserError: fp16 on a CPU.
    """
    if name == "fp16" and device == "cpu":
        raise UserError(f"{option}=fp16 needs a CUDA device: use bf16 or fp32")
    if name not in ("auto", "bf16"):
        return Precision(name)
    if name == "auto" and recognising:
        return Precision("fp32", "decoding in bf16 can cost accuracy")
    has, reason = bf16_support(device)
    if name == "auto":
        return Precision("bf16" if has else "fp32", reason)
    if not has:
        log.warning("%s=bf16 is slower than fp32 here: %s", option, reason)
    return Precision("bf16")


def bf16_support(device: str) -> tuple[bool, str]:
    """Return whether a device has instructions for products in bfloat16, and the reason in words."""
    if device != "cpu":
        import torch

        has = torch.cuda.is_bf16_supported(including_emulation=False)
        return has, f"the GPU has {'instructions' if has else 'no instructions'} for bf16"
    found = next((name for name in BF16_INSTRUCTIONS if name in _processor_flags()), None)
    return found is not None, f"the processor has {found or 'no instructions for bf16'}"


def _processor_flags() -> list[str]:
    """Return the names of the processor's instruction sets; empty if the system doesn't list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    # "flags" on Intel and AMD, "Features" on ARM.
    return next((x.partition(":")[2].split() for x in lines if x.startswith(("flags", "Features"))), [])


def git_commit() -> str | None:
    """Return the commit that this package runs from, with `+` if files are modified; None outside a clone."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    # `describe` marks changed files; excluding tags, it prints the hash.
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def source_digest() -> str:
    """Return the digest of this program's source, kernels included."""
    # Not the commit: uncommitted changes count, and commits to documentation or tests invalidate nothing.
    root = Path(__file__).resolve().parent
    files = [path for folder in (root, root.parent / "attention_ext") for path in folder.rglob("*")]
    return contents_digest(sorted(path for path in files if path.suffix in (".py", ".h", ".cpp", ".cu")), 12)


def processor() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
