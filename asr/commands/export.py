"""`asr export`: export a run's model in a portable format or as a graph for other runtimes."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asr.errors import UserError
from asr.files import check_writable
from asr.model.graph import SHERPA_FILES, write_onnx, write_program, write_sherpa
from asr.model.hub import on_the_hub
from asr.model.options import EXPORTS, ExportOptions
from asr.model.portable import check_replaceable, write_portable
from asr.model.published_export import check_target, write_published
from asr.recognizer import Recognizer

ROUNDING = (
    "in minutes of audio, the graph's best labels may differ from PyTorch's in a few percent of the frames: "
    "queries between two clusters go to either with the last bit"
)


def run(paths: Sequence[str | Path], options: ExportOptions) -> list[Path]:
    """Export one model and return the written files.

    Raises:
        UserError: there is no model, or the format is unknown or doesn't support the mechanism.
    """
    source = Path(paths[0])
    by_suffix = {suffix: name for name, suffix in EXPORTS.items() if suffix}
    ending = Path(options.out).suffix
    if not options.format and ending[1:].isalpha() and ending not in by_suffix:
        raise UserError(
            f"out={options.out}: expected a folder, or a file that ends in {' or '.join(by_suffix)}, found "
            f"{ending}; format=safetensors makes a folder of this name"
        )
    form = options.format or by_suffix.get(ending, "safetensors")
    suffix = EXPORTS[form]
    if not options.out and on_the_hub(source):
        raise UserError(
            f"{source}: expected out=<folder or file> to export a model of the Hub to, found none"
        )
    folder = source if source.is_dir() else source.parent
    name = form if form in ("transformers", "sherpa-onnx") else f"model{suffix}"
    out = Path(options.out) if options.out else folder / name
    if suffix:
        if out.is_dir() or not out.suffix:
            out = out / f"model{suffix}"
        if out.suffix != suffix:
            raise UserError(f"out={out}: expected a file that ends in {suffix}")
        check_writable(out)
    elif out.suffix in by_suffix:
        raise UserError(f"out={out}: expected a folder for format={form}, found the name of a file")
    elif form == "transformers":
        check_target(out)
    elif form == "sherpa-onnx":
        check_replaceable(out, SHERPA_FILES)
    else:
        check_replaceable(out)
    recognizer = Recognizer.load(
        source, checkpoint=options.checkpoint, attention=options.attention, frames=options.frames
    )
    console = Console(stderr=True)
    with console.status(f"exporting {source} as {form}"):
        match form:
            case "safetensors":
                files = write_portable(recognizer.state(), out)
            case "transformers":
                files = write_published(recognizer.model, recognizer.tokenizer, out)
            case "sherpa-onnx":
                files = write_sherpa(recognizer.model, recognizer.tokenizer, out)
            case "onnx":
                write_onnx(recognizer.model, recognizer.tokenizer.symbols, out)
                files = [out]
            case _:
                write_program(recognizer.model, out)
                files = [out]
    if form in ("sherpa-onnx", *by_suffix.values()) and any(
        hasattr(x, "grouping") for x in recognizer.model.modules()
    ):
        console.print(ROUNDING, soft_wrap=True, markup=False)
    for file in files:
        size = file.stat().st_size
        print(f"{file}  {size / 1e6:.1f} MB" if size >= 1e5 else f"{file}  {size / 1e3:.1f} kB")
    return files
