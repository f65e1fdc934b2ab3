"""Records of files of every kind, whole, cut, damaged or too long; files that are one text."""

import gzip
import io
import json
import math
import random
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateau_dagster.data import readers, streams
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.readers import json_values, read_plain_text, read_records, split_lines
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Sample
from gateau_dagster.data.sources import Problem, Record, location, resolve_files
from gateau_dagster.data.streams import Chunks, GuardedFile, damage_reason, open_raw, open_stream, unheard
from gateau_dagster.features.traces.sessions import session_of
from tests.kit.error_codes import refused

from .inputs import PATH, SESSIONS, explicit, file_of, jsonl, packed, parquet, put, read, zstd

THREE = [explicit("a"), explicit("b", "né 北京"), explicit("c")]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(), ANY_JSON, max_size=4), min_size=1, max_size=8)
RANDOM = random.Random(0)


def zipped(data: bytes) -> bytes:
    """Gzip without the time, which would give the test another name in every process."""
    return gzip.compress(data, mtime=0)


def noise() -> str:
    """Text that does not compress."""
    return str(RANDOM.getrandbits(2000))


SAME_FOLDER = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", ["jsonl", "json", "parquet"])
def test_reads_every_format(tmp_path: Path, form: str, ending: str) -> None:
    data = {"jsonl": jsonl(*THREE), "json": json.dumps(THREE, indent=2).encode(), "parquet": parquet(THREE)}[form]
    name = f"x.{form}{ending}"
    records, problems = read(tmp_path / name, packed(data, name))
    assert list(records.values()) == THREE
    assert list(records) == [1, 2, 3]
    assert problems == {}


@SAME_FOLDER
@given(
    objects=OBJECTS,
    name=st.sampled_from(["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "y.json", "y.json.gz"]),
    indent=st.sampled_from(["lines", None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_lines_and_lists_round_trip(
    tmp_path: Path, objects: list[dict[str, Any]], name: str, indent: Any, ascii_only: bool
) -> None:
    texts = [json.dumps(value, ensure_ascii=ascii_only) + "\n" for value in objects]
    text = "".join(texts) if indent == "lines" else json.dumps(objects, indent=indent, ensure_ascii=ascii_only)
    data = text.encode("utf-8", errors="replace")
    expected = [json.loads(line) for line in data.splitlines()] if indent == "lines" else json.loads(data)
    records, problems = read(tmp_path / name, packed(data, name))
    assert (list(records.values()), problems) == (expected, {})


@SAME_FOLDER
@given(data=st.data(), name=st.sampled_from(["x.jsonl", "x.json", "x.json.gz", "x.jsonl.zst", "x.parquet"]))
def test_any_damage_is_told_and_never_raised(tmp_path: Path, data: st.DataObject, name: str) -> None:
    good = packed(parquet(THREE) if "parquet" in name else jsonl(*THREE), name)
    place = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:place] + data.draw(st.binary(max_size=4)) + good[place + data.draw(st.integers(0, 20)) :]
    for item in read_records(put(tmp_path / name, damaged)):
        assert item.number >= 0
        assert isinstance(item, Record) or item.reason.partition(":")[1] == ":"


def test_bad_lines_cost_no_good_ones(tmp_path: Path) -> None:
    a, b, c = (jsonl(record) for record in THREE)
    data = (
        b"\xef\xbb\xbf"
        + a
        + b"\r\n\n"
        + b'{"id": "x", "resp\n'
        + b'{"id": "\xff"}\n'
        + b.strip()
        + b"\r\n"
        + b"[" * 9999
    )
    records, problems = read(tmp_path / "x.jsonl", data + b"\n" + c.strip())
    assert records == {1: THREE[0], 6: THREE[1], 8: THREE[2]}
    assert problems[4].startswith("malformed JSON: Unterminated string")
    assert problems[5] == "invalid UTF-8: byte 0xff at column 9"
    assert problems[7].startswith("malformed JSON: ")
    assert set(problems) == {4, 5, 7}


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.json.gz"])
def test_truncated_compression_keeps_what_came_before(tmp_path: Path, name: str) -> None:
    records = [explicit(f"s{i}", response=noise()) for i in range(3000)]
    whole = packed(jsonl(*records) if "jsonl" in name else json.dumps(records).encode(), name)
    found, problems = read(tmp_path / name, whole[: len(whole) // 2])
    assert 1000 < len(found) < 2000
    assert list(found.values()) == records[: len(found)]
    assert list(problems) == [len(found) + 1]
    assert problems[len(found) + 1].startswith("truncated zstd" if "zst" in name else "truncated gzip")


WHOLE = zipped(jsonl(*THREE).rstrip())


@pytest.mark.parametrize(
    ("name", "damaged", "given", "why"),
    [
        ("x.jsonl.gz", WHOLE[:-4], THREE, "truncated gzip"),
        ("x.jsonl.gz", WHOLE[:-8] + b"0000" + WHOLE[-4:], THREE, "damaged gzip: CRC"),
        ("x.jsonl.gz", jsonl(*THREE), [], "damaged gzip: Not a gzipped file"),
        ("x.json", json.dumps(THREE).encode()[:-30], THREE[:2], "malformed JSON: Unterminated string"),
        ("x.json", json.dumps(THREE).encode()[:-1], THREE, "malformed JSON: the list is not closed"),
        ("x.json", json.dumps(THREE).encode()[:-1] + b",", THREE, "malformed JSON: the list is not closed"),
    ],
)
def test_damage_at_the_end_costs_the_rest(
    tmp_path: Path, name: str, damaged: bytes, given: list[Any], why: str
) -> None:
    records, problems = read(tmp_path / name, damaged)
    assert list(records.values()) == given
    assert [(number, reason[: len(why)]) for number, reason in problems.items()] == [(len(given) + 1, why)]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.jsonl", b"", "empty file"),
        ("x.jsonl", b" \n\n", "empty file"),
        ("x.json", b"[]", "empty file"),
        ("x.jsonl.gz", zipped(b""), "empty file"),
        ("x.parquet", parquet(THREE)[:0], "empty file"),
        ("x.txt", b"hello", "wrong file type: x.txt is none of .jsonl, .json, .parquet"),
        ("x.csv.gz", b"a,b", "wrong file type"),
        ("x.jsonl", parquet(THREE), "wrong file type: x.jsonl is a parquet file"),
        ("x.jsonl", zipped(jsonl(*THREE)), "wrong file type: x.jsonl is gzip data"),
        ("x.json", zstd(jsonl(*THREE)), "wrong file type: x.json is zstd data"),
        ("x.jsonl", jsonl(*THREE).decode().encode("utf-16"), "wrong file type: x.jsonl is UTF-16 text"),
        ("x.jsonl", jsonl(*THREE).decode().encode("utf-32"), "wrong file type: x.jsonl is UTF-32 text"),
        ("x.jsonl", b"\0\0\xfe\xff" + "[1]".encode("utf-32-be"), "wrong file type: x.jsonl is UTF-32 text"),
        ("x.jsonl", b"abc\0\1", "wrong file type: x.jsonl is binary data"),
        ("x.parquet", jsonl(*THREE), "wrong file type: x.parquet is no (complete) parquet file"),
        ("x.parquet.gz", zipped(jsonl(*THREE)), "wrong file type: x.parquet.gz is no (complete)"),
        ("x.parquet.gz", zipped(parquet(THREE))[:-20], "truncated gzip"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    records, problems = read(tmp_path / name, data)
    assert records == {}
    assert list(problems) == [0]
    assert problems[0].startswith(reason)


EITHER, NAN = ("json", "jsonl"), pytest.approx(math.nan, nan_ok=True)


@pytest.mark.parametrize(
    ("endings", "data", "given", "told"),
    [
        (EITHER, jsonl(*THREE), THREE, {}),
        (EITHER, json.dumps(THREE).encode(), THREE, {}),
        (EITHER, json.dumps(THREE, indent=1).encode(), THREE, {}),
        (["json"], json.dumps(THREE[0], indent=2).encode(), THREE[:1], {}),  # an object over many lines
        (["json"], b'{"id": "x", "re\n' + jsonl(*THREE), THREE, {1}),  # lines, with a bad one in front
        (["jsonl"], b"[INFO] export\n" + jsonl(*THREE), THREE, {1}),
        (["jsonl"], b'{"other": -Infinity, "score": NaN}\n', [{"other": -math.inf, "score": NAN}], {}),
    ],
)
def test_content_decides_between_list_and_lines(
    tmp_path: Path, endings: Sequence[str], data: bytes, given: list[Any], told: Any
) -> None:
    for ending in endings:
        records, problems = read(tmp_path / f"x.{ending}", data)
        assert (list(records.values()), set(problems)) == (given, set(told))


def test_wanted_records_only(tmp_path: Path) -> None:
    for name, data in (
        ("x.jsonl", jsonl(*THREE)),
        ("x.json", json.dumps(THREE).encode()),
        ("x.parquet", parquet(THREE, 1)),
    ):
        items = list(read_records(put(tmp_path / name, data), wanted={2}))
        assert [(item.number, item.value) for item in items if isinstance(item, Record)] == [(2, THREE[1])]
        assert len(items) == 1


def test_counts_the_stored_bytes(tmp_path: Path) -> None:
    file = put(tmp_path / "x.jsonl.gz", gzip.compress(jsonl(*THREE)))
    counts: list[int] = []
    assert len(list(read_records(file, on_bytes=counts.append))) == 3
    assert sum(counts) == file.size
    assert (location(file, 3), location(file, 0)) == ("x.jsonl.gz:3", "x.jsonl.gz")


@pytest.mark.parametrize("name", ["book.txt", "main.py", "LICENSE"])
def test_any_file_is_a_text(name: str, tmp_path: Path) -> None:
    text = "Ünß\r\n  indented\n"
    assert read_plain_text(file_of(tmp_path, name, text.encode())) == Record(number=1, value=text)
    packed = file_of(tmp_path, f"{name}.gz", gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert read_plain_text(packed) == Record(number=1, value=text)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b" \n", "empty file: a.txt has no content"),
        ("a.bin", b"ab\0c", "wrong file type: a.bin is binary data"),
        ("a.txt", b"abc\xff", "invalid UTF-8: byte 0xff at offset 3"),
        ("a.txt.gz", gzip.compress(b"many words " * 999, mtime=0)[:40], "truncated gzip: "),
    ],
)
def test_what_is_no_text_is_a_problem(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    found = read_plain_text(file_of(tmp_path, name, content))
    assert isinstance(found, Problem) and found.reason.startswith(reason) and found.number == 0


def test_of_a_folder_texts_are_taken_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.zst", "c.jsonl", "d.py"):
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in resolve_files(".", tmp_path)] == ["c.jsonl"]
    assert [file.name for file in resolve_files(".", tmp_path, plain_texts=True)] == ["a.txt", "b.txt.zst", "c.jsonl"]
    assert [file.name for file in resolve_files("*.py", tmp_path)] == ["d.py"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_a_key_that_stands_twice_with_two_values_is_told(tmp_path: Path, name: str) -> None:
    """Which of them is meant nobody knows; with one value it does not matter."""
    lines = ['{"id": 1, "id": 1}', '{"id": 2, "a": {"k\\ud800": [1], "k\\ud800": [2]}}', '{"id": 3}']
    text = "\n".join(lines) if name == "x.jsonl" else "[" + ",\n".join(lines) + "]"
    records, problems = read(tmp_path / name, text.encode())
    assert records == {1: {"id": 1}, 3: {"id": 3}}
    place = "" if name == "x.jsonl" else " at line 2"
    assert problems == {2: f"repeated key: 'k\\ud800' stands twice in one object, with different values{place}"}


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


OBJECTS = st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.floats(allow_nan=False))
VALUES = st.lists(st.integers() | OBJECTS)


@example(values=[123456, 78], size=1, chunk=1)  # a number at the end of a piece may go on in the next one
@given(values=VALUES, size=st.integers(1, 9), chunk=st.integers(1, 40))
def test_any_cutting_gives_the_values(values: list[Any], size: int, chunk: int) -> None:
    original = readers._CHUNK
    readers._CHUNK = chunk
    try:
        text = json.dumps(values).encode()
        assert list(json_values(cut(text, size))) == [(value, None) for value in values]
    finally:
        readers._CHUNK = original


REST = "; nothing after it was read"
MALFORMED = b'[{"a": 1},\n{"a" 2},\n{"a": 3}]' + b" " * 100


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"[123456, 78]", [123456, 78]),
        (b'{"a": 1}\n{"a":\n 2}\n', [{"a": 1}, {"a": 2}]),
        (MALFORMED, [{"a": 1}, f"malformed JSON: Expecting ':' delimiter at line 2{REST}"]),
        (b"[1\n2]", [1, f"malformed JSON: expected , or ] but found '2' at line 2{REST}"]),
        (b"[1]\n\nx", [1, "malformed JSON: text after the end of the list at line 3"]),
        (b'[{"a": "x"},\n{"a": "\xff"},{"a": "y"}]', [{"a": "x"}, "invalid UTF-8: at line 2", {"a": "y"}]),
    ],
)
def test_values_and_what_is_wrong_with_them(data: bytes, found: list[Any]) -> None:
    """A fault costs its value, or the rest."""
    assert [fault if fault is not None else value for value, fault in json_values([data])] == found


def test_long_values_cost_linear_time() -> None:
    text = json.dumps([{"a": "x" * 3_000_000}] * 2).encode()
    reads = 0

    def pieces() -> Any:
        nonlocal reads
        for piece in cut(text, 4096):
            reads += 1
            yield piece

    assert [len(value["a"]) for value, _ in json_values(pieces())] == [3_000_000] * 2
    assert reads == len(cut(text, 4096))


ROWS = [explicit("a"), explicit("b"), explicit("c")]


def with_columns(folder: Path, **columns: Any) -> bytes:
    table = pa.Table.from_pylist(ROWS)
    for name, values in columns.items():
        table = table.append_column(name, values)
    pq.write_table(table, folder / "made.parquet")
    return (folder / "made.parquet").read_bytes()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("ns"), 1_700_000_000_123_456_789),  # as pandas writes times: parts of a microsecond
        (pa.date32(), 2**31 - 1),
        (pa.timestamp("us", "Mars/Phobos"), 0),
        (pa.duration("s"), 2**62),
        (pa.list_(pa.timestamp("ns")), [2**63 - 1]),
    ],
)
def test_a_value_that_python_lacks_costs_no_row(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    records, problems = read(tmp_path / "x.parquet", with_columns(tmp_path, when=pa.array([value, None, value], kind)))
    assert problems == {}
    whens = [record.pop("when") for record in records.values()]
    assert [*records.values()] == ROWS
    assert whens[0] is not None and whens[1] is None  # where pandas is installed, PyArrow returns some as its types


def test_text_that_is_no_utf8_costs_its_row(tmp_path: Path) -> None:
    damaged = pa.array([b"\xff", b"x", b"y"], pa.binary()).view(pa.string())
    records, problems = read(tmp_path / "x.parquet", with_columns(tmp_path, note=damaged))
    assert [*records] == [2, 3]
    assert problems == {1: "invalid UTF-8: byte 0xff in a text column"}


def test_two_columns_of_one_name_are_told(tmp_path: Path) -> None:
    """One of them would be taken."""
    data = with_columns(tmp_path, response=pa.array(["other"] * 3))
    assert read(tmp_path / "x.parquet", data) == (
        {},
        {0: "repeated column: x.parquet has several that are called 'response'"},
    )
    assert read(tmp_path / "x.parquet", parquet(ROWS))[1] == {}


MIB = 1 << 20


@pytest.fixture
def one_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of more than 1 MiB are too long."""
    for module in ("streams", "readers"):
        monkeypatch.setattr(f"gateau_dagster.data.{module}.LONGEST_RECORD", MIB)


LINES = b'{"id": "a"}\n{"id": "' + b"x" * (16 * MIB) + b'"}\n{"id": "b"}\n'
VALUES_OF_LIST = b'[{"id": "a"},\n{"id": "' + b"x" * (16 * MIB) + b'"},{"id": "b"}]'
ROWS_OF_TABLE = parquet([{"id": text} for text in ("a", "x" * (2 * MIB), "b")])


@pytest.mark.usefixtures("one_mib")
@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        *(
            (name, LINES, "too long: the line has more than 1 MiB")
            for name in ("a.jsonl.gz", "a.json.gz", "a.jsonl.zst")
        ),
        ("a.json.gz", VALUES_OF_LIST, "too long: the value has more than 1 MiB at line 2"),
        ("a.parquet", ROWS_OF_TABLE, "too long: the row has more than 1 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_long_record_costs_itself_and_no_memory(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    file = file_of(tmp_path, name, gzip.compress(data, 1) if name.endswith("gz") else packed(data, name))
    tracemalloc.start()
    first, problem, last = read_records(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [first, last] == [Record(number=1, value={"id": "a"}), Record(number=3, value={"id": "b"})]
    assert problem == Problem(number=2, reason=reason)
    assert peak < 8 * MIB
    assert [item.value for item in read_records(file, wanted={3}) if isinstance(item, Record)] == [{"id": "b"}]


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
def test_a_text_may_be_too_long_as_well(tmp_path: Path) -> None:
    text = read_plain_text(file_of(tmp_path, "a.txt.gz", gzip.compress(b"x" * (16 * MIB), 1)))
    assert text == Problem(number=0, reason="too long: the text has more than 1 MiB")


@given(pieces=st.lists(st.binary(max_size=6)), longest=st.integers(0, 40))
def test_long_lines_are_left_out_wherever_the_pieces_end(pieces: list[bytes], longest: int) -> None:
    lines = b"".join(pieces).split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
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


class Failing(io.BytesIO):
    """A disk that fails after its first read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 0:
            raise OSError(5, "Input/output error")
        return super().read(size)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_a_stream_is_the_content_of_all_its_members(tmp_path: Path, name: str) -> None:
    data = bytes(range(256)) * 2000
    file = put(tmp_path / name, packed(data, name) + packed(b"two\n", name))
    with open_stream(file, unheard) as stream:
        assert b"".join(Chunks(stream)) == data + b"two\n"


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_a_failing_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    noise = bytes((i * i * 7919 >> 3) & 255 for i in range(600_000))
    file = put(tmp_path / name, packed(noise, name))
    monkeypatch.setattr(streams, "_opened", lambda address: Failing(Path(address).read_bytes()))
    with refused("storage.disk", "Input/output"), open_stream(file, unheard) as stream:
        for _ in Chunks(stream):
            pass


def test_raw_file_seeks(tmp_path: Path) -> None:
    counts: list[int] = []
    with open_raw(put(tmp_path / "x.parquet", b"0123456789"), counts.append) as raw:
        assert raw.seekable()
        raw.seek(-3, io.SEEK_END)
        assert raw.tell() == 7
        assert raw.read() == b"789"
    assert sum(counts) == 3
    counts.clear()
    file = GuardedFile(io.BytesIO(b"abc"), "/d/x", counts.append)
    buffer = bytearray(5)
    assert (file.readable(), file.readinto(buffer), buffer, counts) == (True, 3, bytearray(b"abc\0\0"), [3])


def test_damage_has_a_kind(tmp_path: Path) -> None:
    gz, zst = put(tmp_path / "x.jsonl.gz", b"x"), put(tmp_path / "x.jsonl.zst", b"x")
    assert damage_reason(EOFError(), gz) == "truncated gzip: EOFError"
    assert damage_reason(gzip.BadGzipFile("CRC check failed"), gz) == "damaged gzip: CRC check failed"
    assert damage_reason(OSError("Truncated compressed stream"), zst).startswith("truncated zstd")
    assert damage_reason(pa.ArrowInvalid("ZSTD decompress failed"), zst).startswith("damaged zstd")


def session(folder: Path, *lines: dict[str, Any] | bytes, name: str = "s.jsonl") -> Record | Problem:
    data = b"".join(line if isinstance(line, bytes) else jsonl(line) for line in lines)
    (item,) = read_records(put(folder / name, packed(data, name)))
    return item


LEFT_OUT = {
    "claude-code": {"turns of an abandoned branch", "turns of subagents", "answers that failed"},
    "codex": {"items of the type web_search_call"},
    "pi": {"answers that failed"},
    "my-agent": set(),
}


@pytest.mark.parametrize("name", ["s.jsonl", "s.json", "s.jsonl.gz"])
@pytest.mark.parametrize("agent", SESSIONS)
def test_a_session_is_one_record_with_what_the_model_saw(tmp_path: Path, agent: str, name: str) -> None:
    found = session(tmp_path, *SESSIONS[agent], name=name)
    assert isinstance(found, Record) and found.number == 1
    counts: FieldCounts = {}
    (made,) = to_samples(found.value, location="", stem="", counts=counts)
    assert isinstance(made, Sample), made
    assert (made.sample_id, made.source, made.response) == ("s", agent, "Fixed.")
    assert {name for name, uses in counts.items() if "ignored" in uses} == LEFT_OUT[agent]
    turns = json.loads(made.conversation)["messages"]
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": json.dumps(PATH)}}
    assert turns == [
        {"role": "user", "content": "Fix all of it."},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "content": "x = 1\n\ny = 2", "tool_call_id": "c1", "name": "read"},
        {"role": "assistant", "content": "Fixed."},
    ]


def test_an_older_session_of_codex_has_an_item_on_each_line(tmp_path: Path) -> None:
    items = [line["payload"] for line in SESSIONS["codex"] if line["type"] == "response_item"]
    header = {"id": "s", "timestamp": "2025-08-01T00:00:00Z", "instructions": "Be brief.", "git": {}}
    found = session(tmp_path, header, items[0], {"record_type": "state"}, *items[1:])
    assert isinstance(found, Record)
    (made,) = to_samples(found.value, location="", stem="")
    assert isinstance(made, Sample) and (made.source, made.response) == ("codex", "Fixed.")
    roles = [turn["role"] for turn in json.loads(made.conversation)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    "record",
    [
        {"type": "session", "text": "x", "cwd": "/"},
        {"type": "session", "body": "x"},
        {"type": "user", "sessionId": "s", "messages": []},
        {"type": "summary", "summary": "x", "document": "y"},
        {"type": "event_msg", "payload": "x"},
        {"payload": {}, "sessionId": "s"},
    ],
)
def test_records_with_such_fields_are_no_session(tmp_path: Path, record: dict[str, Any]) -> None:
    assert read(tmp_path / "x.jsonl", jsonl(record, record))[0] == {1: record, 2: record}


def test_a_subagent_s_file_is_whole(tmp_path: Path) -> None:
    lines = [line for line in SESSIONS["claude-code"] if not line.get("isSidechain")]
    main, aside = (session(tmp_path, *({**line, "isSidechain": way} for line in lines)) for way in (False, True))
    assert isinstance(main, Record) and isinstance(aside, Record)
    assert aside.value["messages"] == main.value["messages"]


def test_binary_output_and_halves_of_characters_are_kept_as_text(tmp_path: Path) -> None:
    binary = "".join(map(chr, range(256)))
    cut = "\ud83d"  # the first half of an emoji, as an agent leaves it that counts in UTF-16
    for agent, lines in SESSIONS.items():
        text = "".join(json.dumps(line) + "\n" for line in lines).replace('"a.py"', json.dumps("a.py" + cut))
        found = session(tmp_path, text.replace('"x = 1', f'"{json.dumps(binary + cut)[1:-1]}x = 1').encode())
        assert isinstance(found, Record) and "halves of characters, replaced by U+FFFD" in found.value["(left out)"]
        (made,) = to_samples(found.value, location="", stem="")
        assert isinstance(made, Sample) and f"{binary}\ufffdx = 1" in made.context, agent
        if agent in ("claude-code", "pi"):  # the others have arguments as JSON text
            assert '{"path": "a.py\ufffd"}' in made.context
    deep = cut
    for _ in range(5000):
        deep = [deep]
    made = session_of(SESSIONS["pi"][0])
    assert made is not None and made.add({"type": "message", "message": {"role": "user", "content": [deep]}})
    (message,) = made.record("s")["messages"]
    assert message["content"] == [deep] and not made.left_out, "forms rejects it"


def test_what_codex_rolled_back_is_an_abandoned_branch(tmp_path: Path) -> None:
    def said(role: str, text: str) -> dict[str, Any]:
        payload = {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        return {"type": "response_item", "payload": payload}

    again = [said("user", "No."), said("assistant", "Sorry."), said("user", "<turn_aborted> </turn_aborted>")]
    back = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    empty = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": ""}}
    found = session(tmp_path, *SESSIONS["codex"], *again, back, empty, said("user", "More."), said("assistant", "Ok."))
    assert isinstance(found, Record)
    assert {"turns of an abandoned branch", "turns without text"} <= {*found.value["(left out)"]}
    texts = str(found.value["messages"])
    assert [text in texts for text in ("Fix all", "No.", "Sorry.", "aborted", "More.")] == [True, *[False] * 3, True]


def test_a_session_may_begin_with_progress_and_have_turns_without_content(tmp_path: Path) -> None:
    progress = {"type": "progress", "data": {"type": "hook_progress"}, "uuid": "p", "sessionId": "s"}
    null = {"type": "user", "message": {"role": "user", "content": None}, "sessionId": "s"}
    found = session(tmp_path, progress, null, *SESSIONS["claude-code"])
    assert isinstance(found, Record) and found.value["source"] == "claude-code"
    assert "turns without text" in found.value["(left out)"]
    (made,) = to_samples(found.value, location="", stem="")
    assert isinstance(made, Sample), made


def test_the_first_record_is_not_kept(tmp_path: Path) -> None:
    file = put(tmp_path / "x.jsonl", jsonl({"text": "x" * 5_000_000}, *[{"text": "y" * 600_000}] * 3))
    records = read_records(file)
    tracemalloc.start()
    try:
        assert [next(records).number for _ in range(3)] == [1, 2, 3]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4_000_000


@pytest.mark.parametrize("agent", SESSIONS)
def test_a_damaged_session_is_one_reject(tmp_path: Path, agent: str) -> None:
    lines = [jsonl(line) for line in SESSIONS[agent]]
    cut = session(tmp_path, *lines[:-1], lines[-1][:-9])
    assert isinstance(cut, Problem) and cut.reason.startswith("incomplete trace: the last line is cut off")
    assert cut.number == len(lines)
    inside = session(tmp_path, *lines[:2], lines[2][:-9] + b"\n", *lines[3:])
    assert isinstance(inside, Problem) and (inside.number, inside.reason[:14]) == (3, "malformed JSON")
    other = session(tmp_path, *lines, b"[1]\n", b"\n")
    assert isinstance(other, Problem) and other.reason.startswith("incomplete trace: the last line is cut off")


@pytest.mark.usefixtures("one_mib")
def test_a_session_without_end_costs_no_memory(tmp_path: Path) -> None:
    head, *_, event, last = SESSIONS["codex"]
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 10_000}
    outputs = [{"timestamp": number, "type": "response_item", "payload": output} for number in range(1000)]
    noise = {"type": "event_msg", "payload": {"type": "token_count", "info": "x" * 10_000}}
    events = put(tmp_path / "events.jsonl", jsonl(head, *[noise] * 1000, *SESSIONS["codex"][1:]))
    turns = put(tmp_path / "turns.jsonl", jsonl(head, *outputs, event, last))
    tracemalloc.start()
    (whole,), (long,) = read_records(events), read_records(turns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(whole, Record) and len(whole.value["messages"]) == 4
    assert isinstance(long, Problem) and long.reason.startswith("too long: the session has more than 1 MiB")
    assert peak < 8 * MIB, "each file has 10 MiB"


@SAME_FOLDER
@given(st.sampled_from([*SESSIONS]), st.lists(st.tuples(st.integers(0, 11), st.text(), ANY_JSON), max_size=4))
@example(agent="claude-code", changes=[(4, "000", [])])  # a type that is no text
@example(agent="codex", changes=[(1, "000", {})])
@example(agent="pi", changes=[(2, "000", [[]])])
def test_no_session_crashes(tmp_path: Path, agent: str, changes: list[tuple[int, str, Any]]) -> None:
    lines = json.loads(json.dumps(SESSIONS[agent]))
    for place, key, value in changes:
        line = lines[place % len(lines)]
        inner = next((line[name] for name in ("message", "payload") if isinstance(line.get(name), dict)), line)
        names = sorted(inner)
        inner[names[len(key) % len(names)]] = value
    for item in read_records(put(tmp_path / "s.jsonl", jsonl(*lines))):
        for made in to_samples(item.value, location="p", stem="s") if isinstance(item, Record) else ():
            assert made.sample_id
