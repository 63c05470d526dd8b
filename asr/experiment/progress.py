"""Progress of a comparison, and estimates of the time that it or a training takes."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from asr.config import as_overrides, nested
from asr.console import Table, counted, draws_bars, duration
from asr.experiment.candidates import plan_candidates
from asr.experiment.cell import Cell
from asr.experiment.grids import NONE, Paper
from asr.experiment.plan import Plan
from asr.experiment.records import Candidate
from asr.experiment.request import Request
from asr.measure import Seconds
from asr.training.budget import parse_budget
from asr.training.config import run_folder, train_options_from
from asr.training.options import TrainConfig, TrainerConfig
from asr.training.sizes import reasons, settled

if TYPE_CHECKING:  # loads Lightning
    from asr.experiment.costs import StepTimer

LINE_EVERY_S = 60.0  # interval between lines outside a terminal, where they accumulate in a log
STEPS = 4  # number of steps timed for the estimate, after a warm-up step
ENOUGH_S = 2.0  # timing ends after this time, so fewer long steps are timed


@dataclass
class Running:
    """Progress of a running cell since its first known fraction, above 0 for a resumed training.

    Attributes:
        kind: kind of the cell.
        started: time of the first known fraction.
        first: first known fraction.
        fraction: completed fraction, 0 to 1.
    """

    kind: str
    started: float
    first: float
    fraction: float

    def whole_s(self) -> float | None:
        """Return the expected duration of the whole cell in seconds; None while it is unknown."""
        done = self.fraction - self.first
        return (time.monotonic() - self.started) / done if done > 0.02 else None


class CellProgress:
    """Shows a bar for the comparison and one for the running cell on a terminal, lines elsewhere.

    The remaining time assumes that a missing cell takes as long as the finished ones of its kind, and a
    training, in proportion to its budget. It isn't shown with a launcher, which runs several cells at once.

    Args:
        plan: plan of the comparison.
        console: console to print to.
        later: number of similar trainings that follow the plan.
    """

    def __init__(self, plan: Plan, console: Console, later: int = 0) -> None:
        self.console, self.folder, self.parallel = console, plan.folder, bool(plan.options.launcher)
        cells = list(plan.cells())
        self.total = len(cells) + len({split for _, _, split, _ in plan.evaluations})  # one timing per split
        self.done = {cell.name for cell in cells if cell.is_done(plan.folder)}
        self.waiting = {cell.name: cell for cell in cells if cell.name not in self.done}
        self.running: dict[str, Running] = {}
        self.later, self.budgets_s = later, _budgets_s(plan)
        self.spent: dict[str, list[tuple[float, float]]] = {}  # by kind: seconds and size of finished cells
        for cell in cells:
            if cell.name in self.done and (seconds := cell.state(plan.folder).seconds):
                self._spend(cell, seconds)
        self.printed = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self.bars = Progress(*columns, console=console, disable=not draws_bars(console))
        self.all = self.bars.add_task("cells", total=self.total, completed=len(self.done), text="")
        self.one = self.bars.add_task("", total=1.0, text="", visible=False)

    def update(self, cell: Cell, fraction: float) -> None:
        """Show the completed fraction of a running cell, 0 to 1, or its outcome."""
        if cell.name in self.done:
            return
        state = cell.state(self.folder)
        if state.status in ("done", "failed"):
            self.done.add(cell.name)
            self.waiting.pop(cell.name, None)
            self.running.pop(cell.name, None)
            if state.status == "done":
                self._spend(cell, state.seconds)
            else:
                self._drop_dependants(cell.name)
            outcome = duration(state.seconds) if state.status == "done" else f"FAILED: {state.error}"
            self._line(f"{cell.name}: {outcome}  {self._left()}")
            self.bars.update(self.one, visible=False)
            return
        if fraction:
            new = Running(cell.kind, time.monotonic(), fraction, fraction)
            self.running.setdefault(cell.name, new).fraction = fraction
        left, shown = self._left(), f"{fraction:.0%}"
        self.bars.update(self.one, description=cell.name, completed=fraction, text=shown, visible=True)
        self.bars.update(self.all, completed=len(self.done), text=f"{len(self.done)}/{self.total}  {left}")
        if not draws_bars(self.console) and time.monotonic() - self.printed > LINE_EVERY_S:
            self._line(f"{cell.name}: {shown}  {left}")

    def _drop_dependants(self, failed: str) -> None:
        """Forget the cells that need a failed cell, because they won't run."""
        for name in [name for name, cell in self.waiting.items() if cell.needs == failed]:
            del self.waiting[name]
            self._drop_dependants(name)

    def _line(self, text: str) -> None:
        self.printed = time.monotonic()
        self.console.print(
            f"[{len(self.done)}/{self.total}] {text}", markup=False, highlight=False, soft_wrap=True
        )

    def _left(self) -> str:
        """Return the remaining time in words; empty while it is unknown."""
        if self.parallel:
            return ""
        # Seconds per second of budget, or per cell. Before a training has finished, its budget is used.
        rates = {"training": 1.0} if self.budgets_s else {}
        left_s = 0.0
        waiting = dict(self.waiting)
        for name, running in self.running.items():
            if whole_s := running.whole_s():
                left_s += whole_s * (1 - running.fraction)
                rates[running.kind] = whole_s / self.budgets_s.get(name, 1.0)
                waiting.pop(name, None)  # timings aren't cells of the plan
        for kind, spent in self.spent.items():
            rates[kind] = sum(seconds for seconds, _ in spent) / sum(size for _, size in spent)
        for cell in waiting.values():
            if cell.kind in rates:
                left_s += rates[cell.kind] * self._size(cell)
            elif cell.kind == "training":
                return ""
        if self.later and "training" in rates:
            left_s += self.later * rates["training"] * max(self.budgets_s.values(), default=1.0)
        return f"about {duration(left_s)} left" if left_s else ""

    def _size(self, cell: Cell) -> float:
        return self.budgets_s.get(cell.name, 1.0)

    def _spend(self, cell: Cell, seconds: float) -> None:
        self.spent.setdefault(cell.kind, []).append((seconds, self._size(cell)))


def _budgets_s(plan: Plan) -> dict[str, float]:
    """Return the time budgets of trainings by cell, including budgets in measured steps."""
    seconds: dict[str, float] = {}
    for candidate in plan.candidates:
        given = plan.options.budget[0] if plan.options.budget else ""
        text = candidate.budget or str(candidate.overrides.get("trainer.budget") or given)
        if budget := parse_budget(text):
            seconds |= {plan.trainings[candidate.label, x].name: budget.seconds for x in candidate.seeds}
    return seconds


def print_grid(request: Request, console: Console) -> None:
    """Print how candidates differ, if they have options of their own, and the paper's figures.

    No data are needed.

    Raises:
        UserError: invalid candidates.
    """
    if not request.options.candidates:
        return
    plan = f"plan={request.options.plan}" if request.options.plan else "candidates"
    rows = []
    for candidate in plan_candidates(request)[0]:
        start = [f"init_from={candidate.finetuned_from}"] if candidate.finetuned_from else []
        overrides = "\n".join([*as_overrides(candidate.overrides), *start])
        rows.append((candidate.label, candidate.attention, overrides))
    console.print(Table.of(plan, ("candidate", "attention", "own options"), rows, numbers=False))
    if request.paper and request.paper.rows:
        console.print(_paper_table(request.paper))


def print_plan(plan: Plan, console: Console) -> None:
    """Print state and expected time of every training, similar ones in a row, and the number of evaluations.

    The expected time of a training is its time budget; without one, the time of a finished training of the
    same candidate; or else extrapolated from a few steps, which run now. A training until convergence is
    assumed to need as many epochs as in the paper. The table names the source.
    """
    columns = ("training", "state", "steps per epoch", "epoch", "time per training", "based on")
    rows: list[tuple[str, ...]] = []
    left_s, at_most = 0.0, False
    for candidate in plan.candidates:
        label = candidate.label
        cells = [plan.trainings[label, seed] for seed in candidate.seeds]
        missing = [cell for cell in cells if cell.name not in plan.reused and not cell.is_done(plan.folder)]
        with console.status(escape(f"timing steps of {label}")):
            expected = _expected(plan, candidate, cells) if missing else TrainingTime(0, 0.0, 0.0, "")
        seeds: dict[tuple[str, str, str, str, str], list[str]] = {}  # by row
        for seed, cell in zip(candidate.seeds, cells, strict=True):
            state = f"reuses {plan.reused[cell.name]}" if cell.name in plan.reused else "done"
            row = ("to do", *expected.columns()) if cell in missing else (state, "", "", "", "")
            seeds.setdefault(row, []).append(str(seed))
        for row, alike in seeds.items():
            word = "seed" if len(alike) == 1 else "seeds"
            rows.append((f"{label}, {word} {', '.join(alike)}", *row))
        left_s += len(missing) * expected.seconds
        at_most |= expected.at_most
    console.print(Table.of(str(plan.folder), columns, rows, numbers=False))
    evaluations = list(plan.evaluations.values())
    missing = [cell for cell in evaluations if not cell.is_done(plan.folder)]
    known = [x.state(plan.folder).seconds for x in evaluations if x.is_done(plan.folder)]
    if evaluations:
        console.print(f"{counted(len(evaluations), 'evaluation')}, {len(missing)} of them to do")
    note = "without evaluations"
    if known:
        left_s += len(missing) * sum(known) / len(known)
        note = "assuming that evaluations take as long as the finished ones"
    if not left_s > 0:  # nothing to do, or trainings on a GPU
        return
    how_long = "at most" if at_most else "about"
    console.print(f"{how_long} {duration(left_s)} in sequence on this machine ({note})")


@dataclass(frozen=True)
class TrainingTime:
    """The expected cost of a training.

    Attributes:
        epoch_steps: optimiser steps per epoch.
        epoch_s: duration of an epoch in seconds.
        seconds: duration of the training.
        source: basis of the durations, in words.
        at_most: whether the training may stop earlier, when it has converged.
    """

    epoch_steps: int
    epoch_s: float
    seconds: float
    source: str
    at_most: bool = False

    def columns(self) -> tuple[str, str, str, str]:
        """Return the columns of the table."""
        whole = ("at most " if self.at_most else "") + duration(self.seconds)
        return f"{self.epoch_steps:,}", duration(self.epoch_s), whole, self.source


def _expected(plan: Plan, candidate: Candidate, cells: list[Cell]) -> TrainingTime:
    """Return the expected cost of each training of a candidate."""
    states = [cell.state(plan.folder) for cell in cells]
    done = [x.seconds for x in states if x.status == "done" and x.seconds]  # reused runs have no duration
    values = cells[0].settings["options"] | {"init_from": cells[0].needs}
    options = train_options_from(nested(values), cells[0].name)
    options.init_from = ""  # not trained yet; steps from random weights take as long
    expected = _timed(options)[1]
    if done:
        return replace(expected, seconds=sum(done) / len(done), source="finished seeds", at_most=False)
    paper = plan.request.paper
    epochs = paper.epochs_of(candidate) if paper and expected.at_most else None
    if epochs and epochs * expected.epoch_s < expected.seconds:
        source = f"the paper's {epochs:g} epochs and {expected.source}"
        return replace(expected, seconds=epochs * expected.epoch_s, source=source, at_most=False)
    return expected


def _timed(options: TrainConfig) -> tuple["StepTimer", TrainingTime]:
    """Return the timer of a few steps, and the expected cost of a training, extrapolated from them."""
    from asr.experiment.costs import StepTimer  # loads Lightning

    timer, trainer = StepTimer(options), options.trainer
    training = timer.task.plan
    epoch_steps = timer.data.epoch_batches(0) // (trainer.accumulate * trainer.devices * trainer.nodes)
    count, step_s, cpu_share = _timed_steps(timer, trainer)
    epoch_s = epoch_steps * step_s
    if training.budget and training.budget.clock == "wall":
        return timer, TrainingTime(epoch_steps, epoch_s, training.budget.seconds, "the budget")
    if not count:
        return timer, TrainingTime(epoch_steps, epoch_s, math.nan, "not timed: trains on a GPU")
    if training.budget:
        seconds = training.budget.seconds / max(cpu_share, 1e-3)
        source = f"the budget at {cpu_share:.1f} CPUs in use"
        return timer, TrainingTime(epoch_steps, epoch_s, seconds, source)
    cpu = f"CPU {1000 * step_s * cpu_share:.0f} ms"  # much less on a busy machine
    source = f"{counted(count, 'timed step')} of {1000 * step_s:.0f} ms ({cpu}), without validation"
    at_most = any(training.stopping_rules)
    return timer, TrainingTime(epoch_steps, epoch_s, training.steps * step_s, source, at_most)


def print_training(options: TrainConfig) -> None:
    """Print what would be trained and the expected time.

    Raises:
        UserError: invalid options or data.
    """
    from asr.training.run import check_training, described, machine
    from asr.training.start import starts

    check_training(options)
    asked, options = options, settled(options)
    folder = run_folder(options)
    timer, expected = _timed(options)
    print(f"{folder}: {described(options, timer.task, timer.data, machine(options))}")
    for line in [*reasons(asked, options), *starts(options, folder, timer.data)]:
        print(f"  {line}")
    _, epoch, whole, source = expected.columns()
    print(f"  expected time: {whole}, {epoch} per epoch, based on {source}")


def _paper_table(paper: Paper) -> Table:
    rows = [
        (label, *("–" if figure == NONE else figure for figure in figures))
        for label, figures in paper.rows.items()
    ]
    return Table.of(paper.title, ("candidate", *paper.columns), rows)


def _timed_steps(timer: "StepTimer", trainer: TrainerConfig) -> tuple[int, float, float]:
    """Time a few steps; return their number, and a step's seconds and CPU share.

    For training on a GPU, none is timed, and both are NaN.
    """
    if trainer.accelerator == "cuda" or (trainer.accelerator == "auto" and torch.cuda.is_available()):
        return 0, math.nan, math.nan
    first = timer.step()
    count, total = 0, Seconds()
    while count < STEPS and total.wall_s <= ENOUGH_S and (taken := timer.step()):
        count, total = count + 1, total + taken
    if not count and first:  # the only step of the training
        count, total = 1, first
    return count, total.wall_s / max(count, 1), total.cpu_s / max(total.wall_s, 1e-9)
