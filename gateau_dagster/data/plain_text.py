"""A file that is one text, whatever its ending: a book, a source file."""

from __future__ import annotations

from collections.abc import Callable

from gateau_dagster.data.records import Problem, Record
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.streams import Chunks, damage_reason, open_stream, unheard


def read_plain_text(file: SourceFile, on_bytes: Callable[[int], None] = unheard) -> Record | Problem:
    """The whole file as record 1, a string; what is no UTF-8 text is a Problem. Memory: the text.

    Raises GateauError when the file cannot be reached.
    """
    with open_stream(file, on_bytes) as stream:
        chunks = Chunks(stream)
        data = b"".join(chunks)
    if chunks.damage is not None:
        return Problem(number=0, reason=damage_reason(chunks.damage, file))
    if not data.strip():
        return Problem(number=0, reason=f"empty file: {file.name} has no content")
    if b"\0" in data:
        return Problem(number=0, reason=f"wrong file type: {file.name} is binary data")
    try:
        return Record(number=1, value=data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Problem(number=0, reason=f"invalid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}")
