"""Compiled attention kernels and their references; imports nothing from `asr`."""

from attention_ext import library

__all__ = ["why_unavailable"]


def why_unavailable(device: str) -> str | None:
    """Return the reason why the compiled kernels cannot run on a device, in one line; None if they can.

    The first successful call loads the library and registers its operators with PyTorch.

    Args:
        device: "cpu" or "cuda".
    """
    reason = library.why_unavailable(device)
    if reason is None:
        from attention_ext import operators  # here, because it imports torch

        operators.register()
    return reason
