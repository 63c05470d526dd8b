"""Recordings whose audio starts late or has a gap."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

RATE = 16000


def write_at(
    path: Path, codec: str, parts: list[tuple[float, NDArray[np.int16]]], video: bool = True
) -> Path:
    """Write parts of audio at 16 kHz at their times, perhaps beside a video from 0 s on."""
    with av.open(str(path), "w", format="ogg" if path.suffix == ".opus" else None) as container:
        packets = []
        if video:
            pictures = container.add_stream("libvpx" if path.suffix == ".webm" else "mpeg4", rate=10)
            pictures.width = pictures.height = 32
        sound = container.add_stream(codec, rate=RATE, layout="mono")
        for i in range(int(10 * max(time + len(samples) / RATE for time, samples in parts)) * video):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), i % 255, np.uint8), format="rgb24")
            frame.pts = i
            packets += pictures.encode(frame)
        packets += pictures.encode(None) if video else []
        for time, samples in parts:
            for first in range(0, len(samples), 960):
                frame = av.AudioFrame.from_ndarray(samples[None, first : first + 960], "s16", "mono")
                frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
                frame.pts = round(time * RATE) + first
                packets += sound.encode(frame)
        packets += sound.encode(None)
        packets.sort(key=lambda x: float((x.pts if x.dts is None else x.dts) * x.time_base))
        for packet in packets:
            container.mux(packet)
    return path
