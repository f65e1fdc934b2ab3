"""Small inputs for the tests of this folder."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import Problem, Record, SourceFile, resolve_files


def explicit(sample_id: str | int | None, response: str = "yes", **more: Any) -> dict[str, Any]:
    record = {"context": f"a document for {sample_id}", "instruction": "Read it.", "response": response, **more}
    return record if sample_id is None else {"id": sample_id, **record}


def jsonl(*records: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(records: list[dict[str, Any]], row_group_size: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink, row_group_size=row_group_size, compression="none")
    return sink.getvalue().to_pybytes()


def packed(data: bytes, name: str) -> bytes:
    """`data` compressed as the file's name says."""
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstd(data) if name.endswith(".zst") else data


def put(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return resolve_files(str(path), path.parent)[0]


def read(path: Path, data: bytes) -> tuple[dict[int, Any], dict[int, str]]:
    """Records and problems of a file with this content, by number."""
    items = list(read_records(put(path, data)))
    numbers = [(type(item), item.number) for item in items]
    assert len(set(numbers)) == len(numbers)
    records = {item.number: item.value for item in items if isinstance(item, Record)}
    return records, {item.number: item.reason for item in items if isinstance(item, Problem)}


def file_of(folder: Path, name: str, content: bytes) -> SourceFile:
    (folder / name).write_bytes(content)
    (found,) = resolve_files(name, folder, plain_texts=True)
    return found
