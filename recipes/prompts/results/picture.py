"""Draw figures/whisper.png from rows of whisper-bf16-tiny-again.json.gz."""

from dataclasses import replace
from pathlib import Path

from asr.experiment.results import read_results
from asr.files import write_bytes
from asr.report.figure import export
from asr.report.figures import accuracy

HERE = Path(__file__).resolve().parent
HIDDEN = (  # what others stand for
    "i-clustered-100:grouping=keys",
    "full frames=2 precision=bf16",
    "near-25*2,full*2",
    "near-25*2,full*2 frames=1,2*3",
    "peer:faster-whisper",
    "peer:onnxruntime",
)
WIDTH = 560

if __name__ == "__main__":  # doctest imports the module
    results = read_results(HERE / "whisper-bf16-tiny-again.json.gz")
    figure = accuracy.divergence(
        replace(results, evaluations=[x for x in results.evaluations if x.variant not in HIDDEN])
    )
    assert figure
    figure = replace(figure, key="whisper", panels=[replace(x, width=WIDTH) for x in figure.panels])
    png, _, _ = export(figure, Path("exp", "whisper"))
    write_bytes(png.read_bytes(), HERE.parent / "figures" / "whisper.png")
