"""From wav to text with a model of characters or pieces by `asr export format=onnx`: onnxruntime and NumPy.

python onnx_transcribe.py model.onnx recording.wav another.wav
"""

import json
import sys
import wave

import numpy as np
import onnxruntime


def filter_banks(samples, rate, options):
    """Return Kaldi's log-mel energies of [samples] in −1 … 1, at least one window: [T, F]."""
    window, shift = (int(rate * options[f"frame_{x}_ms"] / 1000) for x in ("length", "shift"))
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::shift]
    frames = frames - frames.mean(axis=1, keepdims=True)
    frames = frames - 0.97 * np.roll(frames, 1, axis=1)  # pre-emphasis; the window is 0 at the first sample
    size = 2 ** int(np.ceil(np.log2(window)))
    power = np.abs(np.fft.rfft(frames * np.hanning(window) ** 0.85, size)) ** 2
    highest = options["high_freq_hz"] + (rate / 2 if options["high_freq_hz"] <= 0 else 0)
    mel = 1127 * np.log(1 + np.arange(size // 2 + 1) * rate / size / 700)
    low, high = 1127 * np.log(1 + np.array([options["low_freq_hz"], highest]) / 700)
    edges = np.linspace(low, high, options["mel_bins"] + 2)[:, None]
    rise, fall = (mel - edges[:-2]) / (high - low), (edges[2:] - mel) / (high - low)
    banks = np.maximum(0, np.minimum(rise, fall)) * (options["mel_bins"] + 1)
    return np.log(np.maximum(power @ banks.T, options["floor"])).astype(np.float32)


def transcribe(session, paths):
    """Return the texts of mono 16-bit wav files, encoded in one batch."""
    about = session.get_modelmeta().custom_metadata_map
    options, symbols = json.loads(about["features"]), json.loads(about["symbols"])
    features = []
    for path in paths:
        with wave.open(path) as file:
            assert (file.getnchannels(), file.getsampwidth()) == (1, 2), f"{path}: expected mono, 16 bits"
            assert file.getframerate() == options["sample_rate"], (
                f"{path}: expected {options['sample_rate']} Hz"
            )
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        features.append(filter_banks(samples, options["sample_rate"], options))
    lengths = np.array([len(x) for x in features])
    batch = np.stack([np.pad(x, ((0, max(lengths) - len(x)), (0, 0))) for x in features])
    log_probs, frames = session.run(None, {"features": batch, "lengths": lengths})
    texts = []
    for own, count in zip(log_probs, frames, strict=True):
        best = own[:count].argmax(axis=1)
        labels = best[np.diff(best, prepend=0) != 0]  # a label in several frames is one, 0 is the blank
        text = "".join(symbols[x] for x in labels if x != 0)
        texts.append(" ".join(text.replace("|", " ").replace("▁", " ").replace("<unk>", "⁇").split()))
    return texts


if __name__ == "__main__":
    model, *recordings = sys.argv[1:]
    print(*transcribe(onnxruntime.InferenceSession(model), recordings), sep="\n")
