"""Read records of JSON, JSON Lines, Parquet and plain text files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice, takewhile

from gateau_dagster.data.json_values import Members, json_values
from gateau_dagster.data.parquet_rows import read_parquet
from gateau_dagster.data.sources import COMPRESSIONS, FORMATS, Problem, Record, SourceFile
from gateau_dagster.data.streams import LONGEST_RECORD, Chunks, damage_reason, open_stream, too_long, unheard


def read_plain_text(file: SourceFile, on_bytes: Callable[[int], None] = unheard) -> Record | Problem:
    """Return the whole file as record 1, a string; invalid UTF-8 or a text that is too long is a Problem. Memory: the
    text.

    Raises:
        GateauError: the file cannot be reached.
    """
    with open_stream(file, on_bytes) as stream:
        chunks = Chunks(stream)
        data = chunks.head(LONGEST_RECORD + 1)
    if len(data) > LONGEST_RECORD:
        return Problem(number=0, reason=too_long("text"))
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


_BOM = b"\xef\xbb\xbf"
_MAGIC = {
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "gzip data (its name should end in .gz)",
    b"\x28\xb5\x2f\xfd": "zstd data (its name should end in .zst)",
    b"PK\x03\x04": "a zip archive",
    b"\xff\xfe\0\0": "UTF-32 text (save it as UTF-8)",
    b"\0\0\xfe\xff": "UTF-32 text (save it as UTF-8)",
    b"\xff\xfe": "UTF-16 text (save it as UTF-8)",
    b"\xfe\xff": "UTF-16 text (save it as UTF-8)",
}
_LIST = re.compile(rb"\s*\[\s*(\{|$)")


def read_records(
    file: SourceFile, wanted: Collection[int] | None = None, on_bytes: Callable[[int], None] = unheard
) -> Iterator[Record | Problem]:
    """Stream the records of `file` in order; only those whose number is in `wanted`, if it is given.

    Memory: one record, of at most LONGEST_RECORD bytes, and a buffer (parquet: a few rows). `on_bytes` receives counts
    of stored bytes as they are read. Damaged content is a Problem.

    Raises:
        GateauError: the file cannot be reached.
    """
    if file.format is None:
        endings = ", ".join(f".{name}" for name in FORMATS)
        hint = " or ".join(f".{name}" for name in COMPRESSIONS)
        yield Problem(number=0, reason=f"wrong file type: {file.name} is none of {endings} (also with {hint})")
    elif file.size == 0:
        yield Problem(number=0, reason=f"empty file: {file.name} has no content")
    elif file.format == "parquet":
        yield from read_parquet(file, wanted, on_bytes)
    else:
        with open_stream(file, on_bytes) as stream:
            yield from _read_text(Chunks(stream), file, wanted)


def _read_text(chunks: Chunks, file: SourceFile, wanted: Collection[int] | None) -> Iterator[Record | Problem]:
    head = chunks.head(4096)
    if not head.strip() and chunks.damage is None:
        yield Problem(number=0, reason=f"empty file: {file.name} has no content")
        return
    foreign = next((what for magic, what in _MAGIC.items() if head.startswith(magic)), None)
    if foreign or head.count(b"\0") > len(head) // 20:  # a stray NUL spoils its line, not the file
        yield Problem(number=0, reason=f"wrong file type: {file.name} is {foreign or 'binary data'}")
        return
    head = head.removeprefix(_BOM)
    pieces = chain([head], chunks)
    if _LIST.match(head) or (file.format == "json" and head.lstrip()[:1] == b"["):
        yield from _read_values(pieces, chunks, file, wanted)
        return
    if file.format == "json":
        peeked, read = _peek(pieces)
        pieces = chain(read, pieces)
        if peeked and not any(_is_object(line) for line in peeked):
            yield from _read_values(pieces, chunks, file, wanted)
            return
    yield from _read_lines(split_lines(pieces, LONGEST_RECORD), chunks, file, wanted)


def _peek(pieces: Iterator[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the first two lines that are not blank, and the pieces that were read for them.

    Either line distinguishes JSON Lines from one object over many lines. There are fewer lines if one is too long.
    """
    read: list[bytes] = []

    def noted() -> Iterator[bytes]:
        for piece in pieces:
            read.append(piece)
            yield piece

    short = takewhile(lambda line: line is not None, split_lines(noted(), LONGEST_RECORD))
    return list(islice((line for line in short if line and line.strip()), 2)), read


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode("utf-8")), dict)
    except (ValueError, RecursionError):
        return False


def split_lines(pieces: Iterable[bytes], longest: int = LONGEST_RECORD) -> Iterator[bytes | None]:
    """Yield lines without their newline; a last line without newline counts.

    None replaces a line of more than `longest` bytes as soon as that is known; its rest is read, but not kept.
    """
    pending: list[bytes] = []
    room = longest  # for the line; below 0, it is too long
    for piece in pieces:
        for place, part in enumerate(piece.split(b"\n")):
            if place:  # a newline precedes it
                if room >= 0:
                    yield b"".join(pending)
                pending, room = [], longest
            if room >= 0:
                pending.append(part)
                room -= len(part)
                if room < 0:
                    pending = []
                    yield None
    if last := b"".join(pending):
        yield last


def _read_lines(
    lines: Iterable[bytes | None], chunks: Chunks, file: SourceFile, wanted: Collection[int] | None
) -> Iterator[Record | Problem]:
    number = 0
    problem: Problem | None = None
    for number, line in enumerate(lines, start=1):
        if problem is not None:
            yield problem
            problem = None
        if (wanted is not None and number not in wanted) or (line is not None and not line.strip()):
            continue
        parsed = Problem(number=number, reason=too_long("line")) if line is None else parse_line(line, number)
        # Kept back: if the compressed data end here, the line is truncated rather than wrong.
        if isinstance(parsed, Problem):
            problem = parsed
        else:
            yield parsed
    if chunks.damage is not None:
        cut = problem.number if problem is not None else number + 1
        yield Problem(number=cut, reason=damage_reason(chunks.damage, file))
    elif problem is not None:
        yield problem


def parse_line(line: bytes, number: int) -> Record | Problem:
    """Parse one line of JSON Lines."""
    members = Members()
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=members)
    except UnicodeDecodeError as error:
        byte, column = line[error.start], error.start + 1
        return Problem(number=number, reason=f"invalid UTF-8: byte 0x{byte:02x} at column {column}")
    except json.JSONDecodeError as error:
        return Problem(number=number, reason=f"malformed JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        return Problem(number=number, reason=f"malformed JSON: {error}")
    return (
        Record(number=number, value=value) if members.reason is None else Problem(number=number, reason=members.reason)
    )


def _read_values(
    pieces: Iterable[bytes], chunks: Chunks, file: SourceFile, wanted: Collection[int] | None
) -> Iterator[Record | Problem]:
    number = 0
    for number, (value, reason) in enumerate(json_values(pieces), start=1):
        if reason is not None and chunks.damage is not None and reason.startswith("malformed"):
            yield Problem(number=number, reason=damage_reason(chunks.damage, file))
        elif reason is not None:
            yield Problem(number=number, reason=reason)
        elif wanted is None or number in wanted:
            yield Record(number=number, value=value)
    if number == 0:
        yield Problem(number=0, reason=f"empty file: {file.name} is an empty list")
