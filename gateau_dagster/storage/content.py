"""Digests of what a table or a model holds, independent of how and when it was written."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its functions are made at import time, so that no type checker knows them


def frame_digest(frame: pl.DataFrame) -> str:
    """SHA-256 (hex) of the table's columns, types and rows, in their order.

    Of the values, not of the memory that holds them: a table that was filtered, joined or read back from a file has
    other buffers (values below nulls, shared strings) than an equal one that was just made.
    """
    digest = hashlib.sha256()
    for name, column in zip(frame.columns, frame.to_arrow().columns, strict=True):
        digest.update(f"{name}\0{frame.schema[name]}\0{frame.height}\n".encode())
        array = column.combine_chunks()
        for part in _canonical_bytes(array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)):
            digest.update(part)
    return digest.hexdigest()


def _canonical_bytes(array: Any) -> Iterator[bytes]:
    """Which values are null, then the others: lengths before the content where lengths differ."""
    yield np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes()
    values = array.drop_null()
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield pc.list_value_length(values).cast(pa.int64()).to_numpy().tobytes()
        yield from _canonical_bytes(values.flatten())
    elif pa.types.is_struct(kind):
        for field in values.flatten():
            yield from _canonical_bytes(field)
    elif _is_text(kind):
        yield from _text_bytes(values.cast(pa.large_binary()))
    elif pa.types.is_null(kind):
        return
    else:
        yield np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).tobytes()


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        )
    )


def _text_bytes(values: Any) -> Iterator[bytes]:
    """Lengths and joined content of a large_binary array without nulls."""
    yield pc.binary_length(values).cast(pa.int64()).to_numpy().tobytes()
    if len(values):
        _, offset_buffer, data = values.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
        if offsets[-1] > offsets[0]:
            yield data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()


def folder_content(folder: Path) -> str:
    """SHA-256 (hex) of a model's weights, configuration and tokenizer, without its training log, which holds times."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in {"training_log.json", "gateau.json", "README.md"}:
            with file.open("rb") as stream:
                digest.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
