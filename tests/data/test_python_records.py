"""Records of Python programs: what each value becomes, and what is said of those that cannot be read."""

import enum
import json
from collections import namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from gateau_dagster.data.python_records import python_records
from tests.kit.error_codes import refused

pd = pytest.importorskip("pandas", reason="pandas is not installed: make setup")
Color = enum.Enum("Color", {"RED": "red"})
Row = namedtuple("Row", ["id", "response"])
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    ("text", "text"),
    (True, True),
    (3, 3),
    (2**70, 2**70),
    (1.5, 1.5),
    (float("nan"), None),
    (Decimal(3), 3),
    (Decimal("3.5"), 3.5),
    (Decimal("nan"), None),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("äö".encode(), "äö"),
    (bytearray(b"ab"), "ab"),
    (Color.RED, "red"),
    (Path("a/b"), "a/b"),
    ((1, 2), [1, 2]),
    (frozenset({1}), [1]),
    (range(2), [0, 1]),
    (date(2026, 1, 2), "2026-01-02"),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    (time(1, 2), "01:02:00"),
    (timedelta(hours=1), "1:00:00"),
    (np.int64(3), 3),
    (np.float32(1.5), 1.5),
    (np.float64("nan"), None),
    (np.bool_(True), True),
    (np.str_("text"), "text"),
    (np.datetime64("2026-01-02T00:00:00.000000001"), "2026-01-02T00:00:00.000000001"),
    (np.datetime64("NaT"), None),
    (np.timedelta64(3, "s"), "3 seconds"),
    (np.array(5), 5),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array(["2026-01-02"], dtype="datetime64[D]"), ["2026-01-02"]),
    (np.array(TURNS, dtype=object), TURNS),
    (np.array([np.array(TURNS, dtype=object), None], dtype=object), [TURNS, None]),
    (pd.NaT, None),
    (pd.NA, None),
    (pd.Timestamp("2026-01-02", tz="UTC"), "2026-01-02T00:00:00+00:00"),
    (pd.Categorical(["a", None]), ["a", None]),
    (pd.Series([1, 2]), [1, 2]),
    (pd.Series(["a", None], dtype="string"), ["a", None]),
    (torch.tensor(3), 3),
    (torch.tensor([[1.0, float("nan")]], dtype=torch.bfloat16), [[1.0, None]]),
    (torch.tensor(2.0, requires_grad=True), 2.0),
    (pl.Series([1, None]), [1, None]),
    (pa.scalar([{"a": 1}]), [{"a": 1}]),
    (pa.array([1, None]), [1, None]),
    ({"a": [np.int64(1), {"b": float("nan")}]}, {"a": [1, {"b": None}]}),
]


@pytest.mark.parametrize(
    ("value", "read"), VALUES, ids=[f"{type(value).__name__}-{at}" for at, (value, _) in enumerate(VALUES)]
)
def test_a_value_becomes_what_json_holds(value: Any, read: Any) -> None:
    (record,) = python_records([{"field": value}])
    assert record == {"field": read} and type(record["field"]) is type(read)
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "no record"),
        (iter(()), "no record"),
        ("data.jsonl", "a text"),
        (Path("data.jsonl"), "a text"),
        ({"response": ["a"]}, "a mapping.*Give a list of records"),
        (3, "type int"),
        (None, "type NoneType"),
        (pd.DataFrame({"a": [1]}), r'to_dict\("records"\)'),
        (pl.DataFrame({"a": [1]}), r"iter_rows\(named=True\)"),
        (pl.LazyFrame({"a": [1]}), "collect"),
        (pa.table({"a": [1]}), "to_pylist"),
        ([{}, "text"], "record 2 of samples.*type str"),
        ([["a"]], "record 1 of samples.*type list"),
        ([{3: "a"}], "record 1.*3, the name of a field"),
        ([{"id": np.int64(7), "response": 1j}], r"record 1 of samples \(id 7\), field response: .*complex"),
        ([{"turns": [{"content": object()}]}], "field turns.content: .*object"),
        ([{"id": "x", "response": b"\xff"}], r"\(id x\), field response: .*UTF-8"),
    ],
)
def test_what_cannot_be_read_is_named(samples: Any, said: str) -> None:
    with refused("api.records", said) as found:
        list(python_records(samples))
    assert "\n" not in str(found.value)


def test_a_list_that_holds_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    with refused("api.records", "nested more than 100"):
        list(python_records([{"field": value}]))


def test_rows_of_frames_are_records() -> None:
    rows = [{"id": 1, "response": "a"}, {"id": 2, "response": None}]
    frame = pd.DataFrame(rows)
    assert list(python_records(row for _, row in frame.iterrows())) == rows
    assert list(python_records(frame.to_dict("records"))) == rows
    assert list(python_records(Row(**row) for row in rows)) == rows
    assert list(python_records(pl.DataFrame(rows).iter_rows(named=True))) == rows
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make setup")
    assert list(python_records(datasets.Dataset.from_list(rows))) == rows
