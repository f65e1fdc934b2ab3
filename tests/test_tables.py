"""The promised tables against the design's own list (section 4), written down a second time."""

import polars as pl
import pytest

from gateau_dagster import tables

STR, F64, I32 = pl.String(), pl.Float64(), pl.Int32()
RAW = {"sample_id": STR, "source": STR, "context": STR, "instruction": STR, "response": STR, "digest": STR}
PROMISED = {
    "RAW_LONG_SFT": RAW,
    "PERPLEXITY": {
        "sample_id": STR,
        "digest": STR,
        "perplexity": F64,
        "mean_nll": F64,
        "context_tokens": I32,
        "response_tokens": I32,
        "truncated_tokens": I32,
    },
    "CAM": {
        "sample_id": STR,
        "digest": STR,
        "segments": I32,
        "segment_perplexity": pl.List(F64),
        "segment_attention": pl.List(F64),
        "cas": F64,
    },
    "COMBINED_SCORES": {
        "sample_id": STR,
        "perplexity_short": F64,
        "perplexity_long": F64,
        "hmp": F64,
        "cas": F64,
        "score": F64,
        "rank": I32,
    },
    "SELECTED_SUBSET": {**RAW, "score": F64, "rank": I32},
    "REJECTED": {"sample_id": STR, "reason": STR},
}


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_column_is_there_with_its_type(name: str) -> None:
    schema = dict(tables.schema(getattr(tables, name)))
    assert {column: schema.get(column) for column in PROMISED[name]} == PROMISED[name]


def test_only_a_cas_may_be_null_among_the_promised_columns() -> None:
    nullable = {(name, column.name) for name in PROMISED for column in getattr(tables, name) if column.nullable}
    assert ("CAM", "cas") in nullable and ("COMBINED_SCORES", "cas") in nullable
    assert {column for _, column in nullable if column in {"sample_id", "score", "rank", "perplexity"}} == set()


def test_every_column_says_what_it_holds() -> None:
    listed = [value for value in vars(tables).values() if isinstance(value, tuple) and value]
    columns = [column for value in listed for column in value if isinstance(column, tables.Column)]
    assert len(columns) > 30
    assert all(column.description.endswith((".", "?")) for column in columns)
    for value in listed:
        names = [column.name for column in value if isinstance(column, tables.Column)]
        assert len(names) == len(set(names))
