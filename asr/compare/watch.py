"""Progress of a comparison: over its cells, within the running one, and the time left."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from asr.compare.cells import Cell, State, is_done, read_state
from asr.compare.plan import Plan

LINE_EVERY_S = 60.0


class Watch:
    """A bar for the comparison and one for the running cell on a terminal; lines elsewhere.

    The time left is that of the cells of each kind that are missing, as long as the ones before took.

    Args:
        plan: of the comparison.
        console: where to show it.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self.console, self.folder = console, plan.folder
        cells = list(plan.cells())
        self.total = len(cells) + len({split for _, _, split, _ in plan.evaluations})  # timings
        self.done = {cell.name for cell in cells if is_done(plan.folder, cell)}
        self.waiting = {cell.name: cell.kind for cell in cells if cell.name not in self.done}
        self.seconds: dict[str, list[float]] = {}
        for cell in cells:
            state = read_state(plan.folder, cell.name)
            if cell.name in self.done and state.seconds:
                self.seconds.setdefault(cell.kind, []).append(state.seconds)
        self.running = ""
        self.started = self.said = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self.all = self.bars.add_task("cells", total=self.total, completed=len(self.done), text="")
        self.one = self.bars.add_task("", total=1.0, text="", visible=False)

    def __enter__(self) -> "Watch":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.bars.update(self.one, visible=False)
        self.bars.stop()

    def tell(self, cell: Cell, share: float) -> None:
        """Show how far the running cell is, 0 … 1, or how it ended."""
        if cell.name in self.done:
            return
        if cell.name != self.running:
            self.running, self.started = cell.name, time.monotonic()
        state = read_state(self.folder, cell.name)
        if state.status in ("done", "failed"):
            self._settle(cell, state)
            return
        left = self._left(cell, share)
        self.bars.update(self.one, description=cell.name, completed=share, text=f"{share:.0%}", visible=True)
        self.bars.update(self.all, completed=len(self.done), text=f"{len(self.done)}/{self.total}  {left}")
        if not self.console.is_terminal and time.monotonic() - self.said > LINE_EVERY_S:
            self.said = time.monotonic()
            self._line(f"{cell.name}: {share:.0%}  {left}")

    def _settle(self, cell: Cell, state: State) -> None:
        """Say how a cell ended."""
        self.done.add(cell.name)
        self.waiting.pop(cell.name, None)
        if state.status == "done":
            self.seconds.setdefault(cell.kind, []).append(state.seconds)
        outcome = f"{state.seconds:.0f} s" if state.status == "done" else f"FAILED: {state.error}"
        self.said = time.monotonic()
        self._line(f"{cell.name}: {outcome}  {self._left(None, 0.0)}")

    def _line(self, text: str) -> None:
        self.console.print(
            f"[{len(self.done)}/{self.total}] {text}", markup=False, highlight=False, soft_wrap=True
        )

    def _left(self, running: Cell | None, share: float) -> str:
        """Return what is left in words; empty while nothing is known."""
        left_s = 0.0
        taken_s = time.monotonic() - self.started
        for name, kind in self.waiting.items():
            if running and name == running.name and share > 0.02:
                left_s += taken_s * (1 - share) / share
                continue
            known = self.seconds.get(kind)
            if known:
                left_s += sum(known) / len(known)
            elif running and kind == running.kind and share > 0.02:
                left_s += taken_s / share
            elif kind == "training":
                return ""
        return f"about {clock(left_s)} left" if left_s else ""


def clock(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> clock(59), clock(150), clock(3 * 3600 + 60)
        ('59 s', '2 min 30 s', '3 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
