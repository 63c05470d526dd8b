"""`asr advise`: recommend an attention mechanism for your data and machine."""

from pathlib import Path

from rich.console import Console

from asr.attention.table import missing_kernels
from asr.console import hours, open_console, progress
from asr.experiment import advice
from asr.experiment.advice import Lengths
from asr.experiment.options import AdviceConfig
from asr.experiment.paying import Spot
from asr.experiment.variant import mechanism_of
from asr.measure import usual_clock
from asr.report.tables import paying
from asr.training.options import TrainConfig


def main(paths: list[str], overrides: list[str]) -> None:
    """Advise on training with the recipe that prepared the folder, unless the overrides name another."""
    path = Path(paths[0])
    run(path, *advice.advice_options(advice.with_recipe(path, overrides)))


def run(path: Path, options: AdviceConfig, training: TrainConfig) -> None:
    """Print lengths, times from the map or measured here, and a recommendation."""
    lengths, console = Lengths.read(path, training), open_console()
    for number, line in enumerate(lengths.words()):
        console.print(line, style="yellow" if number else "")
    if found := advice.on_the_map(options, lengths):
        source, spot = found
        console.print(paying.table_of([spot], usual_clock(options.device)))
        _print_answer(spot, console)
        audio = hours(spot.audio_s)
        console.print(f"From {source}, inputs of {audio}; measure=true measures at your lengths.")
        return
    options.attentions = options.attentions or advice.usual_variants(options.device, training.model.frames)
    if notice := missing_kernels(map(mechanism_of, options.attentions), options.device):
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    at = advice.measured_at(options, lengths)
    with progress(counts=False) as bars:
        task = bars.add_task("measuring", total=1.0)
        measured = advice.measure(
            options,
            lengths,
            lambda what, done: bars.update(task, description=f"measuring {what}", completed=done),
        )
    console.print(paying.table_of([*measured.values()], usual_clock(options.device)))
    if lengths.positions(lengths.at(1.0)) > options.longest:
        console.print(f"not measured beyond {options.longest:,} positions")
    spot = measured[at[advice.TYPICAL]]
    _print_answer(spot, console)
    audio = hours(spot.audio_s)
    console.print(f"For inputs of {audio}, by time alone: asr compare measures what it costs in errors.")


def _print_answer(spot: Spot, console: Console) -> None:
    taken = advice.of_the_map(spot)
    console.print(advice.training_options(taken), style="bold")
    console.print(advice.reason(spot, taken))
