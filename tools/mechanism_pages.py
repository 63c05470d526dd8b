"""Write tables, an example and pictures of mechanisms into docs, and names for completion."""

import io
import json
import re
import textwrap
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from asr.attention import MECHANISMS, build_mechanism, build_self_attention
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.spec import number
from asr.attention.table import default_names, mechanism_table, option_table, option_words
from asr.files import write_bytes, write_text

ROOT = Path(__file__).resolve().parent.parent
MAPS = ROOT / "docs" / "figures" / "mechanisms"
POSITIONS, HEADS, SIZE = 64, 1, 16  # of the pictures
COLOURS = ((255, 255, 255), (63, 81, 181), (10, 10, 40))  # weight 0, half, the largest


def insert(table: str, name: str, path: Path) -> None:
    """Replace the table between the marks `<!-- name: … -->` and `<!-- /name -->` of a file."""
    marks = rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->)"
    text = re.sub(marks, lambda match: f"{match[1]}{table}\n{match[2]}", path.read_text(), flags=re.S)
    write_text(text, path)


def shown_names() -> dict[str, str]:
    """Return the mechanism to draw by key, with a size that suits the few positions of a picture."""
    sizes = {"lsh": 2, "oracle-top": 8, "local": 9}
    return {
        key: f"{key}-{sizes.get(key, 4)}" if number(MECHANISMS[key].options) else key for key in MECHANISMS
    }


def weights(name: str) -> Tensor:
    """Return how much each position takes from each other one, [N, S], the largest 1.

    The weights of a softmax mechanism. Of another, the size of the derivative of each output with respect to
    each input, for random parameters.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors
    steps = torch.randn(POSITIONS, SIZE).cumsum(0)  # neighbours are alike, as in speech
    x_NM = 3 * (steps - steps.mean(0)) / steps.std(0)
    if issubclass(MECHANISMS[name.rpartition("-")[0] if name not in MECHANISMS else name], SoftmaxMechanism):
        q = x_NM.view(1, 1, POSITIONS, SIZE)
        k = q if name == "shared-full" or name.startswith("lsh") else q + 0.3 * torch.randn_like(q)
        weights_NN = build_mechanism(name, backend="reference").weights(q, k)[0, 0]
    else:
        layer = build_self_attention(name, SIZE, HEADS, backend="reference").eval()
        lengths = torch.tensor([POSITIONS])
        jacobian = torch.autograd.functional.jacobian(lambda x: layer(x[None], lengths)[0], x_NM)
        weights_NN = jacobian.transpose(1, 2).flatten(2).norm(dim=2)
    return weights_NN / weights_NN.max().clamp_min(1e-9)


def picture(weights_NS: Tensor) -> bytes:
    """Return weights as a PNG, queries downwards."""
    level = weights_NS.sqrt().unsqueeze(-1)  # small weights show
    low, middle, high = (torch.tensor(colour, dtype=torch.float) for colour in COLOURS)
    upper = middle + (high - middle) * (2 * level - 1)
    pixels = torch.where(level < 0.5, low + (middle - low) * 2 * level, upper).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    """Write all of them."""
    attention = ROOT / "docs" / "attention.md"
    insert(mechanism_table(), "mechanisms", attention)
    insert(option_table(), "options", attention)
    example = (ROOT / "docs" / "examples" / "nystrom.py").read_text()
    insert(f"```python\n{example}```", "example", attention)
    names = ROOT / "asr" / "config" / "names.py"
    quoted = "".join(f'    "{name}",\n' for name in default_names())
    text = re.sub(r"(?<=MECHANISMS = \(\n).*?(?=\)\n)", quoted, names.read_text(), flags=re.S)
    text = re.sub(r"(?<=MECHANISM_OPTIONS = \{\n).+?(?=^\}\n)", option_lines(), text, flags=re.S | re.M)
    write_text(text, names)
    for key, name in shown_names().items():
        write_bytes(picture(weights(name)), MAPS / f"{key}.png")
    write_text(f"{json.dumps(described(), indent=1)}\n", MAPS / "mechanisms.json")


def option_lines() -> str:
    """Return the options after the colon of each mechanism's names as lines of Python."""
    entries = []
    for key, words in option_words().items():
        lines = textwrap.wrap(" ".join(words), 95)
        if len(lines) == 1:
            entries.append(f'    "{key}": "{lines[0]}",\n')
        elif lines:
            text = "".join(f'        "{line} "\n' for line in lines)
            entries.append(f'    "{key}": (\n{text}    ),\n')
    return "".join(entries)


def described() -> dict[str, object]:
    """Return the number of positions in a picture, and the name drawn and the class of each mechanism."""
    classes = {key: f"{kind.__module__}.{kind.__qualname__}" for key, kind in MECHANISMS.items()}
    drawn = {key: (name, classes[key]) for key, name in shown_names().items()}
    return {"positions": POSITIONS, "mechanisms": drawn}


if __name__ == "__main__":
    main()
