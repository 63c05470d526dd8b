"""The plan of a comparison in words, and how long it will take: `dry_run=true`."""

import time

import lightning
from rich.console import Console
from rich.table import Table

from asr.compare.candidates import Planned
from asr.compare.cells import Cell, is_done, read_state
from asr.compare.plan import Plan
from asr.compare.watch import clock
from asr.training.plan import parse_budget
from asr.training.run import build_task

STEPS = 4  # timed, after one to warm up


def print_plan(plan: Plan, console: Console) -> None:
    """Print every training with its state and expected time, and how many evaluations there are.

    Trainings take their budget where it is a time. Otherwise a finished one of the same candidate tells how
    long they take, or else a few steps that are made now; what is estimated how stands beside it.
    """
    table = Table("training", "state", "expected", "from", title=str(plan.folder), title_justify="left")
    left_s = 0.0
    for planned in plan.candidates:
        label = planned.candidate.label
        cells = [plan.trainings[label, seed] for seed in planned.candidate.seeds]
        waiting = [cell for cell in cells if not _there(plan, cell)]
        seconds, source = _training_s(plan, planned, cells) if waiting else (0.0, "")
        for cell in cells:
            there = _there(plan, cell)
            where = f"taken from {plan.reused[cell.name]}" if cell.name in plan.reused else "done"
            table.add_row(
                f"{label}, seed {cell.settings['options']['seed']}",
                where if there else "to do",
                "" if there else clock(seconds),
                "" if there else source,
            )
            left_s += 0.0 if there else seconds
    console.print(table)
    evaluations = list(plan.evaluations.values())
    missing = [cell for cell in evaluations if not is_done(plan.folder, cell)]
    known = [read_state(plan.folder, x.name).seconds for x in evaluations if is_done(plan.folder, x)]
    console.print(f"{len(evaluations)} evaluations, {len(missing)} of them to do")
    rest = "evaluations not counted"
    if known:
        left_s += len(missing) * sum(known) / len(known)
        rest = "evaluations as long as the finished ones"
    console.print(f"about {clock(left_s)} on this machine, one after the other ({rest})")
    for planned in plan.candidates:
        if planned.candidate.overrides:
            console.print(f"{planned.candidate.label} differs: {planned.candidate.overrides}", markup=False)


def _there(plan: Plan, cell: Cell) -> bool:
    return cell.name in plan.reused or is_done(plan.folder, cell)


def _training_s(plan: Plan, planned: Planned, cells: list[Cell]) -> tuple[float, str]:
    """Return the expected seconds of a training, and where that is known from."""
    done = [read_state(plan.folder, cell.name).seconds for cell in cells if is_done(plan.folder, cell)]
    done = [seconds for seconds in done if seconds]  # those that were taken over have none
    if done:
        return sum(done) / len(done), "finished ones"
    steps, step_s, cpu_share = _timed_steps(planned)
    budget = planned.training.trainer.budget
    if budget:
        limit = parse_budget(budget, planned.training.trainer.budget_clock)
        assert limit is not None
        seconds = limit.seconds / (max(cpu_share, 1e-3) if limit.clock == "cpu" else 1.0)
        return seconds, "the budget" + (f", {cpu_share:.1f} CPU s a second" if limit.clock == "cpu" else "")
    return steps * step_s, f"{STEPS} timed steps of {1000 * step_s:.0f} ms; validation not counted"


def _timed_steps(planned: Planned) -> tuple[int, float, float]:
    """Return the steps of a training, and the seconds and the CPU share of one, from a few on its data."""
    lightning.seed_everything(0, verbose=False)
    options = planned.training
    options.data.workers = 0
    task, data = build_task(options, resuming=False)
    task.train()
    batches = iter(data.train_dataloader())
    seconds = cpu_s = 0.0
    made = 0
    for number in range(STEPS + 1):
        batch = next(batches, None)
        if batch is None:
            break
        wall, cpu = time.perf_counter(), time.process_time()
        task.losses(batch)[0].sum().backward()
        task.zero_grad(set_to_none=True)
        if number:
            seconds += time.perf_counter() - wall
            cpu_s += time.process_time() - cpu
            made += 1
    step_s = seconds / max(made, 1)
    accumulate = options.trainer.accumulate
    return task.plan.steps, step_s * accumulate, cpu_s / max(seconds, 1e-9)
