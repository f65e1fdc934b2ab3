"""Compute digests of the content of tables and models, independent of how and when they were written."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

Rows = TypeVar("Rows", pl.DataFrame, pl.Series)
GROUP_BYTES, GROUP_ROWS = 64 * 2**20, 2**20
_READERS = 8


def frame_digest(frame: pl.DataFrame) -> str:
    """Return the SHA-256 (hex) of the table's columns, types and rows, in their order.

    It depends on the values, not on their buffers. A table that was filtered, joined or read back from a file has other
    buffers (values below nulls, shared strings) than an equal new one. Texts are not copied as a whole.
    """
    # By values and not by the file's bytes: these change with the version of the Parquet writer, and with the sizes of
    # its groups. Then an equal table would count as another one.
    digest = hashlib.sha256()
    for name, kind in frame.schema.items():
        digest.update(f"{name}\0{kind}\0{frame.height}\n".encode())
        column = frame.get_column(name)
        chunks = [part.to_arrow() for part in row_groups(column)] if kind != pl.String else []
        for part in _canonical_bytes(chunks) if chunks else _text_column(column):
            digest.update(part)
    return digest.hexdigest()


def row_groups(rows: Rows) -> Iterator[Rows]:
    """Yield the rows in pieces of about GROUP_BYTES in memory; one piece for an empty table."""
    each = int(np.clip(GROUP_BYTES * len(rows) // max(1, int(rows.estimated_size())), 1, GROUP_ROWS))
    for first in range(0, max(1, len(rows)), each):
        yield rows.slice(first, each)


def _text_column(column: pl.Series) -> Iterator[Any]:
    """Yield the bytes of `_canonical_bytes` for texts, which are copied group by group."""
    yield np.packbits(column.is_not_null().to_numpy())
    values = column.drop_nulls()
    yield values.str.len_bytes().cast(pl.Int64).to_numpy()
    for part in row_groups(values):
        yield from _joined(part.to_arrow().cast(pa.large_binary()))


def _canonical_bytes(chunks: Sequence[Any]) -> Iterator[Any]:
    """Yield the null mask of an array in chunks, then its other values; lengths first if they differ."""
    yield np.packbits(np.concatenate([chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks]))
    values = [chunk.drop_null() if chunk.null_count else chunk for chunk in chunks]
    kind = values[0].type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        for part in values:
            yield _compute().list_value_length(part).cast(pa.int64()).to_numpy()
        yield from _canonical_bytes([part.flatten() for part in values])
    elif pa.types.is_struct(kind):
        for fields in zip(*(part.flatten() for part in values), strict=True):
            yield from _canonical_bytes(fields)
    elif _is_text(kind):
        texts = [part.cast(pa.large_binary()) for part in values]
        for part in texts:
            yield _compute().binary_length(part).cast(pa.int64()).to_numpy()
        for part in texts:
            yield from _joined(part)
    elif not pa.types.is_null(kind):
        for part in values:
            yield np.ascontiguousarray(part.to_numpy(zero_copy_only=False))


@cache
def _compute() -> Any:
    """Return pyarrow's functions, whose import most commands do not need; type checkers do not know them."""
    import pyarrow.compute

    return pyarrow.compute


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        )
    )


def _joined(values: Any) -> Iterator[Any]:
    """Yield the content of a large_binary array without nulls, without copying."""
    if len(values):
        _, offset_buffer, data = values.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
        if offsets[-1] > offsets[0]:
            yield data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def rows_digest(frame: pl.DataFrame) -> str:
    """Return the `text_digest` of all values of a table of texts without nulls, row by row."""
    digest = hashlib.sha256()
    for group in row_groups(frame):
        parts: list[Any] = []
        for column in group.get_columns():
            values = column.to_arrow().cast(pa.large_binary())
            lengths = _compute().binary_length(values).to_numpy().astype(">u8")
            parts += [pa.Array.from_buffers(pa.binary(8), len(values), [None, pa.py_buffer(lengths)]), values]
        texts = [part.cast(pa.large_binary()) for part in parts]
        for part in _joined(_compute().binary_join_element_wise(*texts, pa.scalar(b"", pa.large_binary()))):
            digest.update(part)
    return digest.hexdigest()


RECORDS = frozenset({"training_log.json", "README.md"})
"""Files of a model's folder that hold times, or are written for people; the model's content excludes them."""
_STAMP = "gateau.json"


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 (hex) of each file of a model's folder but its stamp, by name, sorted."""
    digests = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name != _STAMP:
            with file.open("rb") as stream:
                digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def model_content(files: Mapping[str, str]) -> str:
    """Return one digest (SHA-256, hex) of a model's weights, configuration and tokenizer, from its `file_digests`."""
    return folder_content({name: digest for name, digest in files.items() if name not in RECORDS})


def tree_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 (hex) of each file in a folder and below it, by its path in there; read side by side."""

    def digest(name: str) -> str:
        with (folder / name).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def folder_content(files: Mapping[str, str]) -> str:
    """Return one digest (SHA-256, hex) of files, from their digests by name."""
    lines = (f"{name}:{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
