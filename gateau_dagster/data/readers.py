"""Read records of JSON, JSON Lines, Parquet and plain text files, and the session files of coding agents."""

# Why these readers: those of Polars, Arrow and `datasets` infer one type for each column. Records of chats often break
# it, and the reader then ends. Here each record is read by itself. A bad one is a Problem with its place, and the
# others are not affected.
#
# What it costs: Python's parser reads line by line, in one process. Records are parsed once for the index and once for
# the shards, which is little beside any pass of a model.
#
# Invariants: a record keeps its number, whether others are read or not. Memory is that of a record, of at most
# LONGEST_RECORD bytes, and of a buffer. A packed file or a list that ends too early is reported, and not taken for a
# short one.
#
# When another way is better: Parquet, for large inputs. Only row groups with wanted records are read again, while lines
# are read from the start.

from __future__ import annotations

import codecs
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice, takewhile
from types import FunctionType
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.data.sources import COMPRESSIONS, FORMATS, Problem, Record, SourceFile
from gateau_dagster.data.streams import LONGEST_RECORD, Chunks, damage_reason, open_raw, open_stream, too_long, unheard
from gateau_dagster.registry import feature_parts

_CHUNK = 1 << 18
_SESSION_START = 1 << 25  # bytes; a longer first line does not begin a session
_ENTRY_BYTES = 1 << 8  # counted for a session's line of which only the place in the tree is kept
_SPACE = re.compile(r"[ \t\r\n]*")
# _MARKS: where a value may begin or end, except after a backslash. _ESCAPED_BYTES: the code points of undecodable
# bytes, which valid UTF-8 never contains.
_MARKS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")


class Members:
    """An `object_pairs_hook` that makes an object's members a dict.

    repeated: a key that an object has twice with different values; JSON does not define which one counts.
    """

    repeated: str | None = None

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the members; of several with one name, the last."""
        found = dict(pairs)
        if len(found) < len(pairs):
            self.repeated = next((key for key, value in pairs if value != found[key]), self.repeated)
        return found

    @property
    def reason(self) -> str | None:
        """Return the reason for rejecting the value, or None."""
        if self.repeated is None:
            return None
        return f"repeated key: {ascii(self.repeated)[:60]} stands twice in one object, with different values"


# json.load takes whole files only, and a list of records may be larger than the memory.
class _Text:
    """A window on decoded text: `buffer[position:]` is what has not been consumed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
        self.buffer, self.position, self.ended, self._lines = "", 0, False, 1

    def fill(self) -> bool:
        """Read more text, at least as much as is pending, so that long values cost linear time; return False at the
        end.
        """
        if self.ended:
            return False
        self._lines += self.buffer.count("\n", 0, self.position)
        parts, size = [self.buffer[self.position :]], 0
        wanted = max(_CHUNK, len(parts[0]))
        while size < wanted and not self.ended:
            piece = next(self._pieces, None)
            self.ended = piece is None
            parts.append(self._decoder.decode(piece or b"", final=self.ended))
            size += len(parts[-1])
        self.buffer, self.position = "".join(parts), 0
        return True

    def peek(self) -> str:
        """Return the next character that is not white space, or '' at the end."""
        while True:
            match = _SPACE.match(self.buffer, self.position)
            assert match is not None
            self.position = match.end()
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self.fill():
                return ""

    def skip(self) -> bool:
        """Skip the object, list or text at the position; return False if there is none, or if it has no end."""
        if self.peek() not in {"{", "[", '"'}:
            return False
        depth, quoted = 0, False
        while True:
            read = self.position
            for match in _MARKS.finditer(self.buffer, self.position):
                mark, read = match.group(), match.end()
                if mark == '"':
                    quoted = not quoted
                elif not quoted and mark in "[]{}":
                    depth += 1 if mark in "[{" else -1
                if depth == 0 and not quoted and mark in ']}"':
                    self.position = read
                    return True
            # A backslash at the end belongs to the next piece.
            self.position = len(self.buffer) - (read < len(self.buffer) and self.buffer.endswith("\\"))
            if not self.fill():
                return False

    def line(self, index: int) -> int:
        """Return the line number, from 1, of a place in the buffer."""
        return self._lines + self.buffer.count("\n", 0, index)


def json_values(pieces: Iterable[bytes]) -> Iterator[tuple[Any, str | None]]:
    """Yield (value, None) for each value, or (None, reason) for one that is invalid UTF-8 or too long.

    Malformed JSON cannot be skipped: the reason names its line, and is the last item.
    """
    text = _Text(pieces)
    in_list = text.peek() == "["
    if in_list:
        text.position += 1
    first = True
    while True:
        character = text.peek()
        if in_list and (character == "]" and first):
            break
        if not character:
            if in_list:
                yield None, f"malformed JSON: the list is not closed at line {text.line(text.position)}; truncated?"
            return
        value, reason, fatal = _decode(text)
        yield value, reason
        if fatal:
            return
        first = False
        if in_list:
            separator = text.peek()
            if separator == "]":
                break
            if separator != ",":
                found = f"expected , or ] but found {separator!r}" if separator else "the list is not closed"
                yield None, f"malformed JSON: {found} at line {text.line(text.position)}; nothing after it was read"
                return
            text.position += 1
    if in_list:
        text.position += 1
        if text.peek():
            yield None, f"malformed JSON: text after the end of the list at line {text.line(text.position)}"


def _decode(text: _Text) -> tuple[Any, str | None, bool]:
    """Return the value at the position, the reason for rejecting it, and whether nothing more can be read."""
    while True:
        start, members = text.position, Members()
        decoder = json.JSONDecoder(object_pairs_hook=members)
        try:
            value, end = decoder.raw_decode(text.buffer, start)
        except json.JSONDecodeError as error:
            # More text could fix an error at the buffer's end, or in an unterminated string.
            cut = error.msg.startswith("Unterminated string") or error.pos >= len(text.buffer) - 16
            if cut and len(text.buffer) - start > LONGEST_RECORD:
                return _too_long(text)
            if cut and text.fill():
                continue
            return None, f"malformed JSON: {error.msg} at line {text.line(error.pos)}; nothing after it was read", True
        except (ValueError, RecursionError) as error:
            return None, f"malformed JSON: {error} at line {text.line(start)}; nothing after it was read", True
        if end - start > LONGEST_RECORD:
            return _too_long(text)
        if end == len(text.buffer) and text.fill():
            continue  # a number may continue in the next piece
        text.position = end
        reason = "invalid UTF-8:" if _ESCAPED_BYTES.search(text.buffer, start, end) else members.reason
        return (value, None, False) if reason is None else (None, f"{reason} at line {text.line(start)}", False)


def _too_long(text: _Text) -> tuple[Any, str, bool]:
    reason = f"{too_long('value')} at line {text.line(text.position)}"
    skipped = text.skip()
    return None, reason if skipped else f"{reason}; nothing after it was read", not skipped


_ROWS = 32
_MAGIC = b"PAR1"
# A packed file may hold this multiple of its size, and in any case these bytes: parquet is already packed.
_MOST_TIMES, _ALWAYS_BYTES = 64, 1 << 30


def read_parquet(
    file: SourceFile, wanted: Collection[int] | None, on_bytes: Callable[[int], None]
) -> Iterator[Record | Problem]:
    """Stream the rows (numbers from 1); a damaged row group is one Problem and affects no other group."""
    with _seekable(file, on_bytes) as raw:
        if isinstance(raw, Problem):
            yield raw
            return
        try:
            # Without threads: a thread that held `raw`, a Python object, at the end of the process would abort it.
            parquet = pq.ParquetFile(raw, pre_buffer=False)
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            found = f"{file.name} is no (complete) parquet file: {_first(error)}"
            yield Problem(number=0, reason=f"wrong file type: {found}")
            return
        if repeated := [name for name, count in Counter(parquet.schema_arrow.names).items() if count > 1]:
            yield Problem(number=0, reason=f"repeated column: {file.name} has several that are called {repeated[0]!r}")
            return
        if parquet.metadata.num_rows == 0 and not file.is_made:
            yield Problem(number=0, reason=f"empty file: {file.name} has no rows")
        start = 1
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            if wanted is None or any(start <= number < end for number in wanted):
                yield from _read_group(parquet, group, start, wanted)
            start = end


def _read_group(
    parquet: pq.ParquetFile, group: int, start: int, wanted: Collection[int] | None
) -> Iterator[Record | Problem]:
    number, facts = start, parquet.metadata.row_group(group)
    # The batch is small enough that rows of usual length need no more memory than the longest one.
    rows = min(_ROWS, max(1, LONGEST_RECORD * facts.num_rows // max(1, facts.total_byte_size)))
    try:
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
            for index in range(batch.num_rows):
                if wanted is None or number in wanted:
                    yield _row(batch, index, number)
                number += 1
    except (pa.ArrowException, OSError) as error:
        yield Problem(number=number, reason=f"damaged parquet: row group {group}: {_first(error)}")


def _row(batch: pa.RecordBatch, index: int, number: int) -> Record | Problem:
    row = batch.slice(index, 1)
    if row.nbytes > LONGEST_RECORD:
        return Problem(number=number, reason=too_long("row"))
    try:
        return Record(number=number, value={name: _value(row.column(name)) for name in row.schema.names})
    except UnicodeDecodeError as error:
        return Problem(number=number, reason=f"invalid UTF-8: byte 0x{error.object[error.start]:02x} in a text column")


def _value(column: pa.Array) -> Any:
    """Return a row's value of one column: Python's, or Arrow's if Python has none, as for dates after the year 9999.

    Arrow's maps are objects; one with a key twice has no value in Python.

    Such values are neither text nor ids, and other columns of a row need not be understood.
    """
    try:
        return column.to_pylist(maps_as_pydicts="strict")[0]
    except UnicodeDecodeError:
        raise
    except (ValueError, ArithmeticError, LookupError):  # parts of a second, sizes, unknown time zones
        return column[0]


@contextmanager
def _seekable(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[IO[bytes] | Problem | Any]:
    """Yield the file, or a temporary file with its decompressed content: parquet is read from its end."""
    if file.compression is None:
        with open_raw(file, on_bytes) as raw:
            yield raw
        return
    with tempfile.TemporaryFile() as spooled:
        problem = _unpack(file, spooled, on_bytes)
        spooled.seek(0)
        yield problem or spooled


def _unpack(file: SourceFile, target: IO[bytes], on_bytes: Callable[[int], None]) -> Problem | None:
    """Write the content of a packed file to `target`; if it is no parquet, only its beginning."""
    room = most = max(_ALWAYS_BYTES, _MOST_TIMES * file.size)
    with open_stream(file, on_bytes) as stream:
        chunks = Chunks(stream)
        head = chunks.head(len(_MAGIC))
        for piece in chain([head], chunks if head.startswith(_MAGIC) else ()):
            room -= len(piece)
            if room < 0:
                text = f"{file.name} holds more than {most >> 20:,} MiB, {most // file.size:,} times its size or more"
                return Problem(number=0, reason=f"too long: {text}: unpack it, if that is meant")
            target.write(piece)
    return None if chunks.damage is None else Problem(number=0, reason=damage_reason(chunks.damage, file))


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


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
_FOREIGN = {
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
    foreign = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)
    if foreign or head.count(b"\0") > len(head) // 20:  # a stray NUL spoils its line, not the file
        yield Problem(number=0, reason=f"wrong file type: {file.name} is {foreign or 'binary data'}")
        return
    head = head.removeprefix(_BOM)
    pieces = chain([head], chunks)
    if _LIST.match(head) or (file.format == "json" and head.lstrip()[:1] == b"["):
        yield from _read_values(pieces, chunks, file, wanted)
        return
    # The first two lines distinguish JSON Lines from one object over many lines, the first one a session.
    count, longest = (2, LONGEST_RECORD) if file.format == "json" else (1, _SESSION_START)
    peeked, read = _peek(pieces, count, longest)
    pieces = chain(iter(read), pieces)  # a list would keep the pieces to the end
    values = [_parsed(line) for line in peeked]
    if file.format == "json" and values and not any(isinstance(value, dict) for value in values):
        yield from _read_values(pieces, chunks, file, wanted)
        return
    lines, session = split_lines(pieces, LONGEST_RECORD), _whole_record(next(iter(values), None))
    del values, peeked, read, pieces  # the first record, which this generator would keep to the end
    if session is None:
        yield from _read_lines(lines, chunks, file, wanted)
    elif wanted is None or 1 in wanted:
        yield _read_session(session, lines, chunks, file)


class _WholeRecord(Protocol):
    """A file of JSON Lines that is one record. A feature finds it by the first line, see `Feature`."""

    def add(self, line: Mapping[str, Any]) -> bool:
        """Read a line; return whether its content is kept."""
        ...

    def record(self, name: str) -> dict[str, Any]:
        """Return the record with this id."""
        ...


@cache
def _forms_of_files() -> tuple[Callable[[Any], _WholeRecord | None], ...]:
    return tuple(feature_parts("forms", "open_file", FunctionType))


def _whole_record(first: Any) -> _WholeRecord | None:
    opened = (open_file(first) for open_file in _forms_of_files())
    return next((each for each in opened if each is not None), None)


def _peek(pieces: Iterator[bytes], count: int, longest: int) -> tuple[list[bytes], list[bytes]]:
    """Return the first lines that are not blank, and the pieces that were read for them; fewer if one is too long."""
    read: list[bytes] = []

    def noted() -> Iterator[bytes]:
        for piece in pieces:
            read.append(piece)
            yield piece

    short = takewhile(lambda line: line is not None, split_lines(noted(), longest))
    return list(islice((line for line in short if line and line.strip()), count)), read


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def split_lines(pieces: Iterable[bytes], longest: int = LONGEST_RECORD) -> Iterator[bytes | None]:
    """Yield lines without their newline; a last line without newline counts.

    None replaces a line of more than `longest` bytes as soon as that is known; its rest is read, but not kept.
    """
    # At newlines only: `str.splitlines` would also cut at U+2028, which a JSON string may hold as it is.
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


def _read_session(
    session: _WholeRecord, lines: Iterable[bytes | None], chunks: Chunks, file: SourceFile
) -> Record | Problem:
    """Return a session file as record 1. Keep its turns, at most LONGEST_RECORD bytes, and one line in memory."""
    room, problem = LONGEST_RECORD, None
    for number, line in enumerate(lines, start=1):
        if line is not None and not line.strip():
            continue
        if problem is not None:
            return problem
        if line is None:
            return Problem(number=number, reason=too_long("line"))
        parsed = parse_line(line, number)
        if isinstance(parsed, Problem):
            problem = parsed
        elif not isinstance(parsed.value, Mapping):
            problem = Problem(number=number, reason="malformed session: the line is not an object")
        else:
            room -= len(line) if session.add(parsed.value) else _ENTRY_BYTES
        if room < 0:
            return Problem(number=number, reason=too_long("session"))
    if chunks.damage is not None:
        return Problem(number=1, reason=damage_reason(chunks.damage, file))
    if problem is not None:
        why = f"incomplete trace: the last line is cut off ({problem.reason}); remove it, or fetch the session again"
        return Problem(number=problem.number, reason=why)
    return Record(number=1, value=session.record(file.session_id or file.stem), is_session=True)


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
