"""Build the metadata of tables in Dagster: rows, place, first rows, rejects, charts, and the effort per shard."""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg
import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.record_fields import FieldCounts, Use
from gateau_dagster.data.secret_scan import masked
from gateau_dagster.readable import PageChart
from gateau_dagster.storage import Stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIRST_ROWS = "first_rows"
DATA_VERSION_TAG = "dagster/data_version"
# The tags of Dagster's own records of what an output was made from.
CODE_VERSION_TAG = "dagster/code_version"
INPUT_VERSION_TAGS, INPUT_EVENT_TAGS = "dagster/input_data_version/", "dagster/input_event_pointer/"
_MOST_COLUMNS, _MOST_LETTERS = 9, 60  # limits of a preview: columns, and letters of a text
_MOST_MASKED = 20_000
_MOST_REJECTED, _LETTERS_OF_A_REASON = 20, 300
_LETTERS_OF_A_SENTENCE = 600
_MOST_FIELDS = 40


def table_schema(columns: tuple[tables.Column, ...]) -> dg.TableSchema:
    """Return the promised columns as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=str(column.dtype),
                description=column.description,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )


def table_metadata(
    address: str, stamp: Stamp, rejected: pl.DataFrame | None = None, *, whole: bool = True
) -> dict[str, Any]:
    """Return row count, place and fingerprint of a written table, and the number of rejected samples with reasons.

    whole: whether the table is the whole asset rather than one partition.
    """
    metadata: dict[str, Any] = {
        "dagster/row_count" if whole else "dagster/partition_row_count": stamp.rows,
        "dagster/uri": address,
        "fingerprint": stamp.fingerprint,
    }
    if "://" not in address:
        metadata["path"] = dg.MetadataValue.path(address)
    if rejected is not None:
        metadata["rejected"] = rejected.height
        if rejected.height:
            metadata["rejected_samples"] = _rows(rejected.head(_MOST_REJECTED), letters=_LETTERS_OF_A_REASON)
    return metadata


def preview(table: pl.DataFrame, *, rows: int = 5) -> dict[str, Any]:
    """Return the first rows as a table; long texts are truncated, and lists appear as their lengths."""
    shown = table.head(rows)
    if shown.is_empty():
        return {}
    return {FIRST_ROWS: _rows(shown.select(pl.exclude("digest")), letters=_MOST_LETTERS)}


def _rows(frame: pl.DataFrame, *, letters: int) -> dg.TableMetadataValue:
    # A table and never Markdown, which would interpret the texts of the data as markup.
    types = {name: str(frame.schema[name]) for name in frame.columns[:_MOST_COLUMNS]}
    rows = [{name: _cell(row[name], letters) for name in types} for row in frame.iter_rows(named=True)]
    return rows_table(rows, types)


def rows_table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> dg.TableMetadataValue:
    """Return rows as Dagster's table; `types`: of its columns."""
    schema = dg.TableSchema(columns=[dg.TableColumn(name=name, type=kind) for name, kind in types.items()])
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)


def page_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries as an asset's page shows them: measured values rounded, secrets masked, the first rows last.

    The page keeps the order of the entries, and rows fill a screen.
    """
    ordered = sorted(metadata.items(), key=lambda entry: entry[0] == FIRST_ROWS)
    return {name: shown_value(value) for name, value in ordered}


def shown_value(value: Any) -> Any:
    """Return a value for Dagster's database: a measured value is rounded, and secrets in texts are masked."""
    return _masked(rounded(value))


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {_masked(name): _masked(part) for name, part in value.items()}
    if isinstance(value, dg.JsonMetadataValue):
        return dg.MetadataValue.json(_masked(value.data))
    if isinstance(value, dg.TableMetadataValue):
        return dg.MetadataValue.table([dg.TableRecord(_masked(row.data)) for row in value.records], schema=value.schema)
    return [_masked(part) for part in value] if isinstance(value, list) else value


def rounded(value: Any) -> Any:
    """Return a measured value with three significant digits; counts and everything else unchanged."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _cell(value: Any, letters: int) -> str | int | float | bool | None:
    if isinstance(value, str):
        # Masked first: a part of a key has no shape.
        value = masked(value[:_MOST_MASKED])
        text = " ".join(value[: letters + 1].split())
        return text if len(value) <= letters else f"{text[:letters]} …"
    if isinstance(value, float):
        return rounded(value) if isfinite(value) else str(value)  # JSON has no infinity or NaN
    if value is None or isinstance(value, int):
        return value
    return f"[{len(value)} values]" if isinstance(value, list) else str(value)[:letters]


def fields_metadata(counts: FieldCounts) -> dg.TableMetadataValue:
    """Return how the fields of the input's records were used: a row per field, the most frequent first."""
    uses = get_args(Use)
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))[:_MOST_FIELDS]
    rows = [{"field": name, **{use: found.get(use, 0) for use in uses}} for name, found in ordered]
    return rows_table(rows, {"field": "string", **dict.fromkeys(uses, "int")})


def chart(markdown: str) -> dg.MarkdownMetadataValue:
    """Return a chart of small_charts, which the asset's page shows in place."""
    return dg.MarkdownMetadataValue(markdown)


def as_table(lines: Sequence[tuple[str, str]]) -> dg.TableMetadataValue:
    """Return sentences with their labels as a table, which the asset's page shows in place."""
    return _rows(pl.DataFrame(lines, schema=["line", "content"], orient="row"), letters=_LETTERS_OF_A_SENTENCE)


def first_histogram(table: pl.DataFrame) -> dict[str, Any]:
    """Return a histogram of the score, or of the first column of fractions without one."""
    from gateau_dagster.small_charts import histogram

    fractions = [name for name, dtype in table.schema.items() if dtype == pl.Float64()]
    name = "score" if "score" in fractions else next(iter(fractions), None)
    if name is None or not table.height:
        return {}
    values = table[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return {f"{name}_histogram": chart(histogram(values, name=name))}


def amounts_chart(amounts: PageChart) -> dict[str, Any]:
    """Return the amounts as bars, under their name."""
    from gateau_dagster.small_charts import bars

    return {name_of(amounts.name): chart(bars(amounts))}


def source_chart(sources: pl.Series, what: str) -> dg.MarkdownMetadataValue:
    """Return a chart of the share of each source among `what`."""
    from gateau_dagster.small_charts import shares

    counts = sources.value_counts(sort=True)
    return chart(shares([(_masked(source), count) for source, count in counts.iter_rows()], name=what))


def figures_metadata(figures: "Mapping[str, Figure]") -> dict[str, Any]:
    """Return plots as Markdown metadata by name; the asset's page opens them with a click, since they are large."""
    from gateau_dagster.plotting import as_markdown_image, to_svg

    return {
        name_of(title): dg.MarkdownMetadataValue(as_markdown_image(to_svg(figure), alt=title))
        for title, figure in figures.items()
    }


def name_of(title: str) -> str:
    """Return a key for a title: `score_distributions` for `Score distributions`."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def effort_metadata(effort: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effort of computing this shard, from `Stamp.effort`, without the kept rows.

    The seconds of a pass for two tables are divided between them by FLOPs. Peak memory is torch's allocation on CUDA,
    and the resident memory of the whole process on the CPU.
    """
    if not effort:
        return {}
    seconds, flops = effort["seconds"], effort["flops"]
    found: dict[str, Any] = {
        "scoring_seconds": seconds,
        "tokens_scored": effort["tokens"],
        "flops": flops,
        _memory_name(effort): effort["peak_memory"] / 2**20,
        "device": effort["device"],
    }
    if seconds > 0:
        found |= {
            "samples_per_second": effort["samples"] / seconds,
            "tokens_per_second": effort["tokens"] / seconds,
            "flops_per_second": flops / seconds,
        }
        if effort["matrix_product_speed"] is not None:
            found["share_of_matrix_product_peak"] = flops / seconds / effort["matrix_product_speed"]
    return found


def _memory_name(effort: Mapping[str, Any]) -> str:
    if effort["device"].startswith("cuda"):
        return "peak_gpu_memory_mib"
    return "peak_process_memory_since_start_mib" if effort["peak_memory_since_start"] else "peak_process_memory_mib"


def token_totals(table: pl.DataFrame) -> dict[str, int]:
    """Return sums of the columns that count tokens."""
    counted = [name for name in ("context_tokens", "response_tokens", "truncated_tokens") if name in table.columns]
    return {name: int(table[name].cast(pl.Int64).sum()) for name in counted}


def statistics(table: pl.DataFrame) -> dict[str, float]:
    """Return means of the number columns."""
    found: dict[str, float] = {}
    for name, dtype in table.schema.items():
        mean = table[name].mean() if dtype in (pl.Float64(), pl.Int32()) else None
        if isinstance(mean, float):
            found[f"mean_{name}"] = mean
    return found
