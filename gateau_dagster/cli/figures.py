"""Format tables and times for printing."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

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
