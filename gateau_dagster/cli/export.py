"""`gateau export`: the chosen samples as a file that a trainer reads."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from rich.progress import track

from gateau_dagster.cli.display import as_line, console
from gateau_dagster.config import Config
from gateau_dagster.data.trainer_records import check_form, trainer_records
from gateau_dagster.demo.prepare import ensure_demo_pair
from gateau_dagster.errors import GateauError, UnscorableSampleError, gateau_command
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.local import replace_local

_ENDINGS = {".jsonl": "write_ndjson", ".parquet": "write_parquet"}


def export_selection(config: Config, form: str, file: Path, *, max_tokens: int | None = None) -> None:
    """Write `selected_subset` in a form of RECORDS; the file is replaced in one step.

    Warns if the selection is not the one that the configuration describes now.

    Args:
        max_tokens: cut longer samples at the start of the context, and leave out those whose other parts are too long.

    Raises:
        GateauError: there is no such form or ending, nothing is selected yet, the file cannot be written, or the
            configuration has no model that counts `max_tokens`.
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
    if max_tokens is not None:
        selected = _fitted(config, selected, max_tokens)
    records = trainer_records(selected, form)
    with readable_failures(f"write {file}"):
        replace_local(file, getattr(records, _ENDINGS[file.suffix]))
    out.print(f"[green]Wrote[/green] {plural(records.height, 'sample')} to [bold]{as_line(str(file))}[/bold]")


def _fitted(config: Config, selected: pl.DataFrame, max_tokens: int) -> pl.DataFrame:
    """Return the samples with at most `max_tokens` tokens of models.long, and print what was cut or left out."""
    from gateau_dagster.models.loading import load_tokenizer
    from gateau_dagster.models.prompt import fitted_context

    if "long" not in config.models:
        raise GateauError("export.model", "--max-tokens counts tokens of models.long, which is not configured.")
    ensure_demo_pair(config)
    tokenizer = load_tokenizer(config.models[config.origin("long")], folder=config.folder)
    out, contexts = console(), list[str | None]()
    for sample in track(samples_of(selected), "Fitting samples", selected.height, console=out, transient=True):
        try:
            contexts.append(fitted_context(tokenizer, sample, max_tokens=max_tokens))
        except UnscorableSampleError as error:
            contexts.append(None)
            out.print(f"[yellow]![/yellow] Left out {as_line(sample.sample_id)}: {as_line(str(error))}")
    fitted = pl.Series("context", contexts, dtype=pl.String)
    if shortened := selected.filter(fitted != selected["context"]).height:
        out.print(f"Cut the start of the context of {plural(shortened, 'sample')} to fit {max_tokens:,} tokens.")
    return selected.with_columns(fitted).drop_nulls("context")


def _out_of_date(state: State) -> str:
    """Return a sentence if the selection should be made again, or if that cannot be found out; else an empty text."""
    try:
        plan = state.plan_until(CHOSEN)
    except GateauError as error:
        return f"Whether this selection is up to date is not known: {error}"
    if not plan:
        return ""
    return f"The data or the configuration changed after this selection. `{gateau_command('run')}` selects again."
