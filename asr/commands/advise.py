"""`asr advise`: recommend an attention mechanism for your data and machine."""

from pathlib import Path

from asr.attention.table import missing_kernels
from asr.console import open_console, progress
from asr.errors import UserError
from asr.experiment import advice
from asr.experiment.advice import Lengths
from asr.experiment.options import AdviceConfig
from asr.experiment.variant import mechanism_of
from asr.measure import usual_clock
from asr.report.tables import paying
from asr.training.options import TrainConfig


def main(paths: list[str], overrides: list[str]) -> None:
    """Advise on training with the recipe that prepared the folder, unless the overrides name another."""
    given = advice.with_recipe(Path(paths[0]), overrides) if len(paths) == 1 else overrides
    run([Path(path) for path in paths], advice.advice_options(given))


def run(paths: list[Path], asked: tuple[AdviceConfig, TrainConfig]) -> None:
    """Print lengths, costs from the map or measured here, and a recommendation."""
    options, training = asked
    if len(paths) != 1:
        raise UserError(f"asr advise takes one manifest or prepared folder, found {len(paths)}")
    lengths, console = Lengths.read(paths[0], training), open_console()
    for number, line in enumerate(lengths.words()):
        console.print(line, style="yellow" if number else "")
    if found := advice.on_the_map(options, lengths):
        path, spot = found
        console.print(paying.table_of([spot], usual_clock(options.device)))
        console.print(advice.training_options(advice.of_the_map(spot)), style="bold")
        audio = paying.audio_words(spot.audio_s)
        console.print(f"From {path}, inputs of {audio}; measure=true measures at your lengths.")
        return
    positions = lengths.positions(lengths.at(0.95))
    options.attentions = options.attentions or advice.usual_variants(positions, options.device)
    if notice := missing_kernels(map(mechanism_of, options.attentions), options.device):
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    with progress() as bars:
        steps = len(advice.measured_at(options, lengths)) + options.memory * len(options.attentions)
        task = bars.add_task("measuring", total=steps)
        rows = advice.measure(
            options, lengths, lambda x: bars.update(task, description=f"measuring {x}", advance=1)
        )
    expected = advice.expect(rows, lengths, usual_clock(options.device))
    taken = advice.recommend(expected)
    console.print(advice.table(expected, options, lengths))
    console.print(advice.training_options(taken.name), style="bold")
    console.print(advice.reason(expected, taken, lengths, options.device))
