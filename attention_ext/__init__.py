"""Compiled attention kernels; imports nothing from `asr`."""
