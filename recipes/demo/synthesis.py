"""Speaks one shard with espeak-ng; a standalone program, run in a fresh process per shard.

    python synthesis.py shard.json folder

The output of espeak-ng depends on what the process has spoken before, so reproducible bytes need a fresh
process with the same utterances in the same order. The program reads the shard's description from
`shard.json` (see `_description` in prepare.py), writes `folder/<id>.wav` (16-bit mono) and prints the
number of samples of each as JSON. It imports nothing from the project, so it starts in a tenth of a second.
"""

import ctypes
import json
import math
import os
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np

RETRIEVE_SYNCHRONOUSLY = 2  # espeak_AUDIO_OUTPUT
RATE, PITCH = 1, 3  # espeak_PARAMETER
UTF8, PHONEMES = 0x001, 0x100  # flags of espeak_Synth: UTF-8 text, phonemes in `[[…]]`
SYNTH_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """The shared library; a second initialisation in the same process would yield empty audio."""

    def __init__(self, library: str, data: str):
        self._library = ctypes.CDLL(library)
        self.sample_rate = int(self._library.espeak_Initialize(RETRIEVE_SYNCHRONOUSLY, 0, data.encode(), 0))
        if self.sample_rate <= 0:
            raise RuntimeError(f"espeak-ng can't start with the data in {data}")
        self._pieces: list[np.ndarray] = []
        self._callback = SYNTH_CALLBACK(self._collect)  # kept alive here: the library has only a pointer
        self._library.espeak_SetSynthCallback(self._callback)

    def set_voice(self, name: str) -> None:
        """Select a voice such as `gmw/en-US+f4`."""
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {name}")

    def speak(self, phonemes: str, rate: int, pitch: int) -> np.ndarray:
        """Speak espeak-ng mnemonics, e.g. `h|@|l|'oU w|'3:|l|d`; return int16 samples."""
        self._library.espeak_SetParameter(RATE, rate, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        self._pieces.clear()
        text = f"[[{phonemes}]]".encode()
        status = self._library.espeak_Synth(text, len(text) + 1, 0, 0, 0, UTF8 | PHONEMES, None, None)
        if status != 0 or not self._pieces:
            raise RuntimeError(f"espeak-ng returned no audio (status {status}) for {phonemes}")
        return np.concatenate(self._pieces)

    def _collect(self, samples: Any, count: int, _events: Any) -> int:
        if count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


def resample(samples: np.ndarray, ratio: float) -> np.ndarray:
    """Resample with a band-limited Fourier transform: [n] → [about n · ratio] float64.

    The last twentieth of the kept band is faded out to avoid ringing. NumPy's transform uses the same code
    path on all machines of an architecture, unlike torch's convolution.
    """
    # Zero-pad to a length with small factors, for speed and to avoid wrap-around.
    padded = 441 * math.ceil(len(samples) / 441 + 1)
    length = 2 * round(padded * ratio / 2)
    spectrum = np.fft.rfft(samples, padded)
    kept = np.zeros(length // 2 + 1, dtype=complex)
    bins = min(len(spectrum), len(kept))
    fade = np.clip((bins - np.arange(bins)) / (0.05 * bins), 0, 1)
    kept[:bins] = spectrum[:bins] * fade
    return np.fft.irfft(kept, length)[: round(len(samples) * ratio)] * (length / padded)


def speak_shard(shard: dict[str, Any], folder: Path) -> dict[str, int]:
    """Write the wav files of a shard; return {utterance id: samples}."""
    espeak = Espeak(shard["library"], shard["data"])
    espeak.set_voice(shard["voice"])
    lengths = {}
    for utterance in shard["utterances"]:
        spoken = espeak.speak(utterance["phonemes"], utterance["rate"], utterance["pitch"])
        ratio = shard["sample_rate"] / (espeak.sample_rate * utterance["warp"])
        around = [milliseconds * shard["sample_rate"] // 1000 for milliseconds in utterance["silence_ms"]]
        clean = np.pad(resample(spoken.astype(np.float64), ratio), around)
        # A noise floor, because the logarithm of digital silence would dominate feature means and variances.
        noise = np.random.Generator(np.random.PCG64(utterance["noise_seed"]))
        floor = utterance["noise_level"]
        clean = np.rint(clean) + noise.integers(-floor, floor + 1, len(clean))
        samples = np.clip(clean, -32768, 32767).astype("<i2")
        with wave.open(str(folder / f"{utterance['id']}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(shard["sample_rate"])
            file.writeframes(samples.tobytes())
        lengths[utterance["id"]] = len(samples)
    return lengths


def end_with_parent() -> None:
    """Exit when standard input, a pipe held by the parent, is closed because the parent was killed."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    json.dump(speak_shard(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])), sys.stdout)
