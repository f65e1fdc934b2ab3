"""Build the page's index of all samples: ids, lengths, sources and marks at once, each ranking when it is opened."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import polars as pl

from gateau_dagster.explore.rankings import Ranking, disputed
from gateau_dagster.explore.sample_pages import Shard
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.text import printable

DIGITS = 6
"""Significant digits of a score."""

Put: TypeAlias = Callable[[str, Any], str]


def index_content(inputs: ReportInputs, found: Sequence[Ranking], shards: Sequence[Shard], put: Put) -> dict[str, Any]:
    """Return the index of a page.

    Args:
        inputs: of the report; the rows of `inputs.raw` are those of the shards, in order.
        shards: with the files that hold the samples' texts.
        put: writes a file of this kind and content, and returns its name.
    """
    samples = inputs.raw.lazy().select("sample_id", "source").collect()
    ids = samples["sample_id"].to_list()
    assert sum(shard.rows for shard in shards) == len(ids)
    rows = samples.select("sample_id").with_row_index("row")
    lengths = rows.join(_lengths(inputs), on="sample_id", how="left").sort("row")
    sources = samples["source"].unique().sort().to_list()
    spread = disputed(ids, found)
    return {
        "ids": ids,
        "sources": [printable(source) for source in sources],
        "source": samples["source"].replace_strict(sources, range(len(sources))).to_list(),
        "unit": inputs.length_unit,
        "context": lengths["context"].to_list(),
        "response": lengths["response"].to_list(),
        "selected": _rows_of(rows, inputs.selected_subset["sample_id"].to_list()),
        "reserved": _rows_of(rows, inputs.reserved),
        "far": _far(inputs, samples),
        "unseen": rows.join(inputs.unseen, on="sample_id").sort("row").select("row", "unseen").rows(),
        "rankings": [_ranking(ranking, rows, put) for ranking in found],
        "disputed": None if spread is None else put("disputed", spread.round(4).to_list()),
        "rejected": put("rejected", _rejected(rows, inputs.rejected)),
        "shards": [{"rows": shard.rows, "openings": shard.openings, "pages": list(shard.pages)} for shard in shards],
        "page_rows": shards[0].page_rows if shards else 0,
    }


def _lengths(inputs: ReportInputs) -> pl.DataFrame:
    """Return `sample_id`, `context`, `response` in `inputs.length_unit`, for the samples with known lengths."""
    counted = inputs.combined_scores if inputs.by_gateau else inputs.lengths
    if counted is not None:
        return counted.select("sample_id", context="context_tokens", response="response_tokens")
    sizes = {part: pl.col(part).str.len_bytes().cast(pl.Int64) for part in ("context", "response")}
    return inputs.raw.lazy().select("sample_id", **sizes).collect()


def _rows_of(rows: pl.DataFrame, ids: Sequence[str]) -> list[int]:
    wanted = pl.DataFrame({"sample_id": ids}, schema={"sample_id": pl.String()})
    return rows.join(wanted, on="sample_id", how="semi").sort("row")["row"].to_list()


def _far(inputs: ReportInputs, samples: pl.DataFrame) -> list[int]:
    known = samples["source"].is_in(list(inputs.config.selection.ground_truth)).fill_null(False)
    return known.arg_true().to_list()


def _ranking(ranking: Ranking, rows: pl.DataFrame, put: Put) -> dict[str, Any]:
    table = rows.join(ranking.table, on="sample_id", how="left").sort("row")
    columns = {"rank": table["rank"].fill_null(0).to_list(), "score": table["score"].round_sig_figs(DIGITS).to_list()}
    if ranking.summands is not None:
        columns |= {name: table[name].round_sig_figs(DIGITS).to_list() for name in ("first", "second")}
    return {
        "summands": None if ranking.summands is None else asdict(ranking.summands),
        "name": ranking.name,
        "title": ranking.title,
        "scored": ranking.table.height,
        "file": put("ranking", columns),
    }


def _rejected(rows: pl.DataFrame, rejected: Mapping[str, pl.DataFrame]) -> list[tuple[int, str, str]]:
    """Return row, asset and reason of samples that are in the data and were rejected later."""
    found = []
    for asset, table in rejected.items():
        known = rows.join(table, on="sample_id").sort("row").select("row", "reason")
        found += [(row, asset, printable(reason)) for row, reason in known.iter_rows()]
    return found
