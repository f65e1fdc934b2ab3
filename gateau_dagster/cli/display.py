"""Print to the terminal: one console for all commands, and the progress bars of a run."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gateau_dagster.config import Config
from gateau_dagster.config.inputs import StorageConfig
from gateau_dagster.data.secret_scan import masked
from gateau_dagster.errors import DEMO_FOLDER, ENVIRONMENT_VARIABLE, GateauError, demo_place, shown_configuration
from gateau_dagster.execution.interruption import at_end
from gateau_dagster.pipeline.checks import out_of_date
from gateau_dagster.pipeline.feature import is_built_in, planted_values
from gateau_dagster.pipeline.losses import DataLoss
from gateau_dagster.pipeline.project import earlier_demo_note
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import UNKNOWN, Entry, ProgressBoard
from gateau_dagster.readable import escaped_controls

_WIDEST = 10_000


class WholeTable(Table):
    """A table that may be wider than its console but is never cut, because a cut figure is a wrong figure."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table at its full width."""
        return super().__rich_console__(console, options.update(max_width=_WIDEST))


_SECOND_COLUMN = 24


def left_table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without lines. Its first column is never broken; the second is, between words, at 24 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(left):
        width = _SECOND_COLUMN if position == 1 else None  # leaves the last column readable in 80 characters
        table.add_column(column, overflow="fold", no_wrap=position == 0, max_width=width)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def time_range(low: float, high: float) -> str:
    """Return `12 s`, `2 to 8 min` or `50 s to 5 min`."""
    first, last = _duration(low), _duration(high)
    if first == last:
        return last
    unit = f" {last.split()[-1]}"
    return f"{first.removesuffix(unit)} to {last}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} days"


_NARROWEST, _USUAL_WIDTH = 20, 80
_NAMES = len("method_scores/gateau_unnormalised")
_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_BETWEEN_LINES = 15.0


class _Terminal(Console):
    """A console that escapes every control character in what it prints; its own are those of colours and bars.

    Every command may print texts of users: ids, sources, file names, replies of servers.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the markup as Rich renders it, escaped before the columns of a table are measured."""
        return super().render_str(escaped_controls(text, lines=True), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the objects that Rich renders; text that was not a string is escaped here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped_controls(segment.text, lines=True), segment.style)


def console() -> Console:
    """Return a console with a separate descriptor: Dagster captures descriptors 1 and 2 while a step runs."""
    found = _Terminal(file=os.fdopen(os.dup(1), "w", errors="backslashreplace"), highlight=False, soft_wrap=True)
    if found.width < _NARROWEST:  # such as COLUMNS=0, where Rich prints nothing, or 1, where it leaves out tables
        found.width = _USUAL_WIDTH
    return found


def configuration_in_words() -> str:
    """Return the name of this command's configuration: its file relative to this folder, or the embedded demo."""
    name = os.environ.get(ENVIRONMENT_VARIABLE, "")
    return "the embedded demo" if demo_place(name) else shown_configuration(name)


def show_earlier_demo(out: Console, config: Config) -> None:
    """Print a line if the store, or the demo's store of earlier versions, holds the embedded demo's tables."""
    if planted_values(config) is not None:  # only facts of the demo are planted
        earlier = config.folder.parent / StorageConfig().root
        if config.folder.name == DEMO_FOLDER and is_built_in(earlier):
            out.print(escape(earlier_demo_note(earlier)), soft_wrap=False)
    elif "://" not in config.located_root and is_built_in(Path(config.located_root)):
        out.print(
            f"[yellow]![/yellow] {escape(config.located_root)} contains the tables of the embedded demo. A run "
            "replaces the tables that this configuration computes and keeps the others. For an empty store, remove "
            "the folder or name another one in storage.root.",
            soft_wrap=False,
        )


def as_line(text: str) -> str:
    """Return a one-line text for Rich's markup: control characters and line feeds escaped, secrets masked."""
    return escape(escaped_controls(masked(text)))


def say_if_out_of_date(out: Console, state: State, assets: Iterable[str], *, require_current: bool) -> None:
    """Print a line for each asset that is out of date, or of which that is not known.

    Raises:
        GateauError: there is one, and `require_current` is set.
    """
    with out.status("Comparing the store with the configuration"):
        sentences = [sentence for asset in assets if (sentence := out_of_date(state, asset))]
    if sentences and require_current:
        raise GateauError("storage.out_of_date", sentences[0])
    for sentence in sentences:
        out.print(f"[yellow]![/yellow] {as_line(sentence)}", soft_wrap=False)


def explain_in_grey(out: Console, lines: Iterable[str]) -> None:
    """Print explanations of a table, a line each."""
    for line in lines:
        out.print(f"[dim]{as_line(line)}[/dim]", soft_wrap=False)


def show_losses(out: Console, lost: Iterable[DataLoss]) -> None:
    """Print rejects and truncation, one line for all tables with the same loss; `!` marks notable losses."""
    assets: dict[tuple[str, bool], list[str]] = {}
    for loss in lost:
        assets.setdefault((loss.sentence, loss.notable), []).append(loss.asset)
    for (sentence, notable), names in assets.items():
        mark = "[yellow]![/yellow] " if notable else ""
        out.print(f"{mark}{as_line(', '.join(names))}: {as_line(sentence)}")


class _Left(ProgressColumn):
    """The time left as the step reports it, else as Rich derives it from the speed so far."""

    def __init__(self) -> None:
        super().__init__()
        self._guess = TimeRemainingColumn()

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        if left is None:
            return self._guess.render(task)
        if left == UNKNOWN:
            return Text("-:--:--", style="progress.remaining")
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02d}:{seconds:02d}", style="progress.remaining")


class RunDisplay:
    """Shows the steps that start from now on in the runs below a folder of progress boards, until it is closed.

    A terminal shows bars. Elsewhere (a log file, CI) it prints a line every 15 seconds and one per finished step.
    """

    def __init__(self, out: Console, folder: Path) -> None:
        self._out, self._folder = out, folder
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("left"),
            TextColumn("[dim]{task.fields[note]}"),
            console=out,
            disable=not out.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._finished: set[tuple[str, float]] = set()
        self._said = time.monotonic()
        self._opened = time.time()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Follow the run in a thread while the block runs it."""
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(_SECONDS_BETWEEN_LOOKS):
                self.look()

        thread = threading.Thread(target=follow, daemon=True, name="run-display")
        with self._bars, at_end(self._bars.stop):  # otherwise an interrupt would leave the terminal's cursor hidden
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
                self.look()

    def look(self) -> None:
        """Read the boards once and redraw."""
        entries = [entry for board in self._boards() for entry in board.entries() if entry.started >= self._opened]
        for entry in entries:
            if entry.ended:
                self._finish(entry)
            else:
                self._show(entry)
        running = [entry for entry in entries if not entry.ended]
        if not self._out.is_terminal and running and time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            for entry in running:
                self._out.print(f"  {as_line(_line(entry))}")

    def _boards(self) -> list[ProgressBoard]:
        return [ProgressBoard(folder) for folder in sorted(self._folder.glob("*")) if folder.is_dir()]

    def _show(self, entry: Entry) -> None:
        if not self._out.is_terminal:
            return
        if entry.step not in self._tasks:
            self._tasks[entry.step] = self._bars.add_task(as_line(entry.step), total=None, unit="", note="", left=None)
        total = entry.total if entry.total else None
        self._bars.update(
            self._tasks[entry.step],
            completed=entry.done,
            total=total,
            unit=as_line(entry.unit),
            note=as_line(entry.note),
            left=entry.left_now,
        )

    def _finish(self, entry: Entry) -> None:
        if (entry.step, entry.started) in self._finished:
            return
        self._finished.add((entry.step, entry.started))
        if entry.step in self._tasks:
            self._bars.remove_task(self._tasks.pop(entry.step))
        self._out.print(f"  [green]✓[/green] {as_line(entry.step):<{_NAMES}} {entry.ended - entry.started:6.1f} s")


def _line(entry: Entry) -> str:
    """Return `perplexity/long: 12/200 samples, 4 s, 63 s left, shard 2`; only the time before the first report."""
    seconds = f"{time.time() - entry.started:.0f} s"
    if not entry.unit:
        return f"{entry.step}: {seconds}"
    total = f"/{entry.total:,.0f}" if entry.total else ""
    known = entry.left_now
    left = f", {known:,.0f} s left" if known is not None and known != UNKNOWN else ""
    note = f", {entry.note}" if entry.note else ""
    return f"{entry.step}: {entry.done:,.0f}{total} {entry.unit}, {seconds}{left}{note}"
