"""Digests of what a table or a model holds, independent of how and when it was written."""

import hashlib
import io
from pathlib import Path

import polars as pl


def frame_digest(frame: pl.DataFrame) -> str:
    """SHA-256 (hex) of the table's columns, types and rows, in their order."""
    buffer = io.BytesIO()
    frame.rechunk().write_ipc(buffer, compression="uncompressed")
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def folder_content(folder: Path) -> str:
    """SHA-256 (hex) of a model's weights, configuration and tokenizer, without its training log, which holds times."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in {"training_log.json", "gateau.json", "README.md"}:
            with file.open("rb") as stream:
                digest.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
