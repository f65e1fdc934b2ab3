"""Show the progress of training: a bar in a terminal, elsewhere a line every 15 seconds."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from text_rows import Stage

SECONDS_BETWEEN_LINES = 15.0


class TrainingDisplay:
    """Shows one stage while it is entered."""

    def __init__(self, console: Console, stage: Stage) -> None:
        self._console, self._stage = console, stage
        self._bars = Progress(
            TextColumn(stage.name),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        # In tokens, because the steps of a stage have rows of different lengths.
        self._task = self._bars.add_task(stage.name, total=stage.tokens, note="")
        self._steps, self._started, self._said = 0, time.monotonic(), time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        del error, trace
        self._bars.stop()
        if kind is None:
            self._console.print(f"{self._stage.name}: done in {time.monotonic() - self._started:.0f} s")

    def after_step(self, tokens: int, loss: float) -> None:
        """To be called with the tokens of each batch and its loss in nats a token."""
        self._steps += 1
        note = f"step {self._steps}/{self._stage.steps}, loss {loss:.2f}"
        self._bars.update(self._task, advance=tokens, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._console.print(f"  {self._stage.name}: {note}, {now - self._started:.0f} s")
