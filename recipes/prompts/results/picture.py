"""Draw figures/whisper.png from eleven rows of whisper-sizes.json.gz."""

from dataclasses import replace
from pathlib import Path

from asr.experiment.results import read_results
from asr.files import write_bytes
from asr.report.figure import export
from asr.report.figures import accuracy

HERE = Path(__file__).resolve().parent
SHOWN: tuple[str, ...] = (
    "full",
    "i-clustered-100",
    "i-clustered-100:grouping=keys",
    "i-clustered-200:grouping=keys",
)
SHOWN += ("near-10", "near-25", "near-100", "local-16", "local-64", "local-128", "full frames=2")
WIDTH = 420  # of a phone, on which its labels are still legible

results = read_results(HERE / "whisper-sizes.json.gz")
figure = accuracy.divergence(
    replace(results, evaluations=[x for x in results.evaluations if x.variant in SHOWN])
)
assert figure
figure = replace(figure, key="whisper", panels=[replace(x, width=WIDTH) for x in figure.panels])
png, _, _ = export(figure, Path("exp", "whisper"))
write_bytes(png.read_bytes(), HERE.parent / "figures" / "whisper.png")
