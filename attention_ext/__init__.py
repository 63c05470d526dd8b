"""Compiled attention kernels; imports nothing from `asr`."""

from attention_ext.library import why_unavailable

__all__ = ["why_unavailable"]
