"""Measure one pass of a Parakeet (FastConformer) with random weights over a long recording.

    python tools/parakeet.py onepass attentions=[full,local-64] minutes=[5,15]

The weights are random and the recording is noise: time and memory of these mechanisms depend on neither. Each
line is a process of its own with one thread. CPU seconds are those of features, encoder and head, `attention`
those of the attention layers, projections included; building the model isn't counted. Memory is the peak of
the process, `model` the peak before the recording.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from program import run_measurement
from rich.table import Table

from asr.attention.table import parse_name
from asr.config import option
from asr.console import open_console
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.pretrained_folder import CONFIG, EXTRACTOR, read_pretrained

# The encoders of nvidia/parakeet-tdt_ctc-110m and of nvidia/parakeet-ctc-0.6b.
SIZES = {
    "110m": {"num_hidden_layers": 17, "hidden_size": 512, "intermediate_size": 2048},
    "0.6b": {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096},
}
OUTPUTS = 1025
ONE = "one-pass"  # begins the arguments of this program's own processes


@dataclass
class OnePass:
    """Options of `onepass`."""

    size: str = option("110m", help=" | ".join(SIZES), affects="result", choices=tuple(SIZES))
    attentions: list[str] = option(
        ["full", "local-64", "i-clustered-100:grouping=keys"], help="mechanisms", affects="result"
    )
    minutes: list[float] = option([5.0, 15.0, 60.0], help="lengths", affects="result", minimum=0.01)
    layers: int = option(0, help="number of first layers; 0: all", affects="result", maximum=100)

    def check(self) -> None:
        """Raise UserError for an unknown mechanism."""
        for name in self.attentions:
            parse_name(name)


def build(size: str, layers: int, attention: str) -> AcousticModel:
    """Return a recogniser with random weights."""
    inner: dict[str, Any] = SIZES[size] | ({"num_hidden_layers": layers} if layers else {})
    values = {"model_type": "parakeet_ctc", "encoder_config": inner, "vocab_size": OUTPUTS}
    with tempfile.TemporaryDirectory(prefix="parakeet-") as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(values))
        (Path(folder) / EXTRACTOR).write_text("{}")
        pretrained = read_pretrained(folder)
    config = AcousticModelConfig(attention, pretrained=pretrained)
    config.model.heads, config.model.head_dim = 8, inner["hidden_size"] // 8
    return AcousticModel(config, OUTPUTS).eval()


def one_pass(size: str, layers: str, attention: str, minutes: str) -> None:
    """Encode noise; print frames, CPU seconds of all and of attention, and memory before and after in GiB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(size, int(layers), attention)
    audio = 0.1 * torch.randn(1, int(float(minutes) * 60 * model.sample_rate))
    spent = [0.0]

    def start(*_: Any) -> None:
        spent[0] -= time.process_time()

    def stop(*_: Any) -> None:
        spent[0] += time.process_time()

    for layer in model.attention_layers():
        layer.register_forward_pre_hook(start)
        layer.register_forward_hook(stop)
    with torch.inference_mode():
        model(audio[:, : 2 * model.sample_rate], torch.tensor([2 * model.sample_rate]))  # loads the kernels
        spent[0], began = 0.0, time.process_time()
        before = peak_gib()
        _, frames = model(audio, torch.tensor([audio.shape[1]]))
        print(json.dumps([int(frames[0]), time.process_time() - began, spent[0], before, peak_gib()]))


def peak_gib() -> float:
    """Return this process's peak memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_one_pass(options: OnePass) -> None:
    """Print time and memory of every mechanism and length."""
    table = Table("minutes", "attention", "frames", "CPU s", "attention CPU s", "model GiB", "peak GiB")
    for minutes in options.minutes:
        for attention in options.attentions:
            own = [sys.executable, __file__, ONE, options.size, str(options.layers), attention, str(minutes)]
            found = subprocess.run(own, stdout=subprocess.PIPE, text=True)
            if found.returncode:
                raise UserError(f"{attention}, {minutes:g} minutes: exit status {found.returncode}")
            frames, *measured = json.loads(found.stdout.splitlines()[-1])
            row = [f"{x:.1f}" for x in measured]
            print(minutes, attention, frames, *row, flush=True)
            table.add_row(f"{minutes:g}", attention, f"{frames:,}", *row)
    open_console().print(table)


MEASUREMENTS = {"onepass": (OnePass, measure_one_pass)}

if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        one_pass(*sys.argv[2:])
    else:
        sys.exit(run_measurement("parakeet", __doc__, MEASUREMENTS))
