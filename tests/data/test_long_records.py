"""Records of more bytes than are held are left out unread, with a reason, and cost no memory."""

import gzip
import json
import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data import readers
from gateau_dagster.data.readers import read_plain_text, read_records, split_lines
from gateau_dagster.data.sources import Problem, Record, SourceFile, resolve_files

from .inputs import file_of, zstd

MIB = 1 << 20


@pytest.fixture
def one_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of more than 1 MiB are too long."""
    for module in ("streams", "readers"):
        monkeypatch.setattr(f"gateau_dagster.data.{module}.LONGEST_RECORD", MIB)


def endless(folder: Path, name: str, ending: bytes = b"") -> SourceFile:
    """Two records, and between them one of 16 MiB."""
    data = b'{"id": "a"}\n{"id": "' + b"x" * (16 * MIB) + b'"}\n{"id": "b"}\n' + ending
    return file_of(folder, name, gzip.compress(data, 1) if name.endswith("gz") else zstd(data))


@pytest.mark.usefixtures("one_mib")
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.jsonl.zst"])
def test_a_line_without_end_costs_itself_and_no_memory(tmp_path: Path, name: str) -> None:
    file = endless(tmp_path, name)
    tracemalloc.start()
    first, problem, last = read_records(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [first, last] == [Record(number=1, value={"id": "a"}), Record(number=3, value={"id": "b"})]
    assert problem == Problem(number=2, reason="too long: the line has more than 1 MiB")
    assert peak < 8 * MIB
    assert [item.value for item in read_records(file, wanted={3}) if isinstance(item, Record)] == [{"id": "b"}]


@pytest.mark.usefixtures("one_mib")
def test_a_long_value_costs_itself_and_no_memory(tmp_path: Path) -> None:
    data = b'[{"id": "a"},\n{"id": "' + b"x" * (16 * MIB) + b'"},{"id": "b"}]'
    tracemalloc.start()
    first, problem, last = read_records(file_of(tmp_path, "a.json.gz", gzip.compress(data, 1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [first, last] == [Record(number=1, value={"id": "a"}), Record(number=3, value={"id": "b"})]
    assert problem == Problem(number=2, reason="too long: the value has more than 1 MiB at line 2")
    assert peak < 8 * MIB


@pytest.mark.usefixtures("one_mib")
@pytest.mark.parametrize(
    ("opening", "filling", "ending"),
    [
        (b'{"id": "', b'\\"', b'"}'),
        (b'{"id": "x', b"\\\\", b'"}'),
        (b'"', b"]}", b'"'),
        (b"[", b'{"a": ["]", "}\\""]},', b"1]"),
        (b'{"a": {"b": [', b"{},[],", b"[]]}}"),
    ],
)
def test_a_long_value_ends_where_it_is_closed(tmp_path: Path, opening: bytes, filling: bytes, ending: bytes) -> None:
    value = opening + filling * (5 * MIB // 4 // len(filling)) + ending
    json.loads(value)
    first, problem, last = read_records(file_of(tmp_path, "a.json", b'[{"id": "a"}, ' + value + b', {"id": "b"}]'))
    assert [first, last] == [Record(number=1, value={"id": "a"}), Record(number=3, value={"id": "b"})]
    assert isinstance(problem, Problem) and problem.reason.startswith("too long")


@pytest.mark.usefixtures("one_mib")
@pytest.mark.parametrize("value", [b'{"id": "' + b"x" * (4 * MIB), b"1." + b"1" * (4 * MIB) + b"]"])
def test_a_value_without_end_is_the_last(tmp_path: Path, value: bytes) -> None:
    first, problem = read_records(file_of(tmp_path, "a.json", b'[{"id": "a"},\n' + value))
    assert first == Record(number=1, value={"id": "a"})
    reason = "too long: the value has more than 1 MiB at line 2; nothing after it was read"
    assert problem == Problem(number=2, reason=reason)


@pytest.mark.usefixtures("one_mib")
def test_a_text_and_a_row_may_be_too_long_as_well(tmp_path: Path) -> None:
    text = read_plain_text(file_of(tmp_path, "a.txt.gz", gzip.compress(b"x" * (16 * MIB), 1)))
    assert text == Problem(number=0, reason="too long: the text has more than 1 MiB")
    pq.write_table(pa.table({"id": ["a", "x" * (2 * MIB), "b"]}), tmp_path / "a.parquet")
    (file,) = resolve_files("a.parquet", tmp_path)
    first, problem, last = read_records(file)
    assert [first, last] == [Record(number=1, value={"id": "a"}), Record(number=3, value={"id": "b"})]
    assert problem == Problem(number=2, reason="too long: the row has more than 1 MiB")


@given(data=st.binary(max_size=40), size=st.integers(1, 9), longest=st.integers(0, 9))
def test_long_lines_are_left_out_wherever_the_pieces_end(data: bytes, size: int, longest: int) -> None:
    lines = data.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    pieces = [data[place : place + size] for place in range(0, len(data), size)]
    assert list(split_lines(pieces, longest)) == [line if len(line) <= longest else None for line in lines]


@pytest.mark.usefixtures("one_mib")
def test_rows_of_parquet_are_read_so_few_at_a_time_as_one_may_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    batches = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, batch_size: int, **options: Any) -> Any:
        sizes.append(batch_size)
        return batches(self, batch_size, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    letters = random.Random(0)
    long = ["".join(letters.choices("abcdefgh", k=MIB // 2)) for _ in range(8)]
    for name, texts in (("short", ["x"] * 64), ("long", long), ("longer", ["y" * (4 * MIB), *long])):
        pq.write_table(pa.table({"id": texts}), tmp_path / f"{name}.parquet", use_dictionary=False, compression="none")
        (file,) = resolve_files(f"{name}.parquet", tmp_path)
        assert len([each for each in read_records(file) if isinstance(each, Record)]) == len(texts) - (name == "longer")
    assert sizes == [32, 1, 1] or sizes == [32, 2, 1], sizes


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.parquet.zst"])
@pytest.mark.parametrize("beginning", [b"PAR1", b"", b"PAR"])
def test_a_packed_parquet_that_unpacks_without_end_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, beginning: bytes
) -> None:
    monkeypatch.setattr(readers, "_ALWAYS_BYTES", 2 * MIB)
    data = beginning + bytes(64 * MIB)
    file = file_of(tmp_path, name, gzip.compress(data, 1) if name.endswith("gz") else zstd(data))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: (tmp_path / "unpacked").open("w+b"))
    (problem,) = read_records(file)
    assert isinstance(problem, Problem)
    assert problem.reason.startswith("too long: " if beginning == b"PAR1" else "wrong file type: ")
    assert name in problem.reason
    assert (tmp_path / "unpacked").stat().st_size <= (max(2 * MIB, 64 * file.size) if beginning == b"PAR1" else MIB)
