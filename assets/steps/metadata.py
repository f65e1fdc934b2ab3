"""Metadata that tables show in Dagster: rows, place, fingerprint, rejects, plots, and what computing a shard took."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from gateau_dagster import tables
from gateau_dagster.storage import Stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DATA_VERSION_TAG = "dagster/data_version"


def table_schema(columns: tuple[tables.Column, ...]) -> dg.TableSchema:
    """The promised columns as Dagster shows them."""
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


def table_metadata(address: str, stamp: Stamp, rejected: pl.DataFrame | None = None) -> dict[str, Any]:
    """Row count, place and fingerprint of a written table, and how many samples it rejected, with the reasons."""
    metadata: dict[str, Any] = {
        "dagster/row_count": stamp.rows,
        "dagster/uri": address,
        "fingerprint": stamp.fingerprint,
    }
    if rejected is not None:
        metadata["rejected"] = rejected.height
        if rejected.height:
            metadata["rejected_samples"] = dg.MarkdownMetadataValue(_markdown(rejected.head(20)))
    return metadata


def figures_metadata(figures: "Mapping[str, Figure]") -> dict[str, Any]:
    """Plots as Markdown metadata, which the asset page shows in place."""
    from gateau_dagster.report.plots import as_markdown_image, to_png

    return {
        name: dg.MarkdownMetadataValue(as_markdown_image(to_png(figure), alt=name)) for name, figure in figures.items()
    }


def _markdown(frame: pl.DataFrame) -> str:
    """A small table in Markdown."""
    buffer = io.StringIO()
    buffer.write("| " + " | ".join(frame.columns) + " |\n|" + " --- |" * frame.width + "\n")
    for row in frame.iter_rows():
        buffer.write("| " + " | ".join(str(value).replace("|", "\\|").replace("\n", " ") for value in row) + " |\n")
    return buffer.getvalue()


def effort_metadata(effort: Mapping[str, Any]) -> dict[str, Any]:
    """Of `Stamp.effort`: only what the computation of this shard took, without the rows that were kept.

    Of a pass that served two tables each has its part of the seconds, by FLOPs. Peak memory is torch's allocation on
    CUDA, on the CPU the resident memory of the whole process.
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
    planned = effort.get("planned", {}).get("seconds")
    return found | ({} if planned is None else {"planned_seconds": planned})


def _memory_name(effort: Mapping[str, Any]) -> str:
    if effort["device"].startswith("cuda"):
        return "peak_gpu_memory_mib"
    return "peak_process_memory_since_start_mib" if effort["peak_memory_since_start"] else "peak_process_memory_mib"


def statistics(table: pl.DataFrame) -> dict[str, float]:
    """Means of the number columns."""
    found: dict[str, float] = {}
    for name, dtype in table.schema.items():
        mean = table[name].mean() if dtype in (pl.Float64(), pl.Int32()) else None
        if isinstance(mean, float):
            found[f"mean_{name}"] = mean
    return found
