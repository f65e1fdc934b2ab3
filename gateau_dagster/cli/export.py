"""`gateau export`: the chosen samples as a file that a trainer reads."""

from __future__ import annotations

from pathlib import Path

from gateau_dagster.cli.display import as_line, console
from gateau_dagster.config import Config
from gateau_dagster.data.trainer_records import check_form, trainer_records
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.local import replace_local

_ENDINGS = {".jsonl": "write_ndjson", ".parquet": "write_parquet"}


def export_selection(config: Config, form: str, file: Path) -> None:
    """Write `selected_subset` in a form of RECORDS; the file is replaced in one step.

    Warns if the selection is not the one that the configuration describes now.

    Raises:
        GateauError: there is no such form or ending, nothing is selected yet, or the file cannot be written.
    """
    check_form(form)
    if file.suffix not in _ENDINGS:
        raise GateauError(
            "export.ending", f"{file} must end in {' or '.join(_ENDINGS)}, which decides how it is written."
        )
    out, state = console(), State(config=config)
    selected = state.read(CHOSEN)
    with out.status("Comparing the selection with the configuration"):
        if note := _out_of_date(state):
            out.print(f"[yellow]![/yellow] {as_line(note)}")
    records = trainer_records(selected, form)
    with readable_failures(f"write {file}"):
        replace_local(file, getattr(records, _ENDINGS[file.suffix]))
    out.print(f"[green]Wrote[/green] {plural(records.height, 'sample')} to [bold]{as_line(str(file))}[/bold]")


def _out_of_date(state: State) -> str:
    """Return a sentence if the selection should be made again, or if that cannot be found out; else an empty text."""
    try:
        plan = state.plan_until(CHOSEN)
    except GateauError as error:
        return f"Whether this selection is up to date is not known: {error}"
    if not plan:
        return ""
    return f"The data or the configuration changed after this selection. `{gateau_command('run')}` selects again."
