"""Metadata that every table shows in Dagster."""

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
