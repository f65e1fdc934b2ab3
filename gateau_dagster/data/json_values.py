"""Read the elements of a JSON list (or of consecutive objects) one by one, without holding the file in memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gateau_dagster.data.streams import LONGEST_RECORD, too_long

_CHUNK = 1 << 18
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
            cut = _may_be_cut(error, text.buffer)
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


def _may_be_cut(error: json.JSONDecodeError, buffer: str) -> bool:
    """Return whether more text could fix the error: it is at the buffer's end, or in an unterminated string."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - 16
