"""Chat turns under one naming: LongAlign and UltraChat `messages`, ShareGPT `conversations`, UltraChat `data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateau_dagster.data.sample import Role, Turn

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
TURN_KEYS = ("messages", "conversations", "data")


class InvalidRecordError(ValueError):
    """A record that cannot be used; the message is the reject's reason, its kind before the colon."""


def turns_of(record: Mapping[str, Any]) -> list[Turn] | None:
    """The conversation of a record in one of the chat forms, in order; None if the record is in none of them.

    Raises InvalidRecordError naming the turn and what was found in it.
    """
    key = next((key for key in TURN_KEYS if record.get(key) is not None), None)
    if key is None:
        return None
    items = record[key]
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise InvalidRecordError(f"wrong type: {key} is {kind_of(items)}, not a list of turns")
    if not items:
        raise InvalidRecordError(f"no turns: {key} is empty")
    return [_turn(item, number, key) for number, item in enumerate(items, start=1)]


def _turn(item: Any, number: int, key: str) -> Turn:
    if isinstance(item, str) and key == "data":
        return Turn(role="user" if number % 2 else "assistant", content=checked_text(item, f"turn {number}"))
    if not isinstance(item, Mapping):
        raise InvalidRecordError(f"wrong type: turn {number} is {kind_of(item)}, not an object with role and content")
    role = _first(item, "role", "from")
    if not isinstance(role, str):
        raise InvalidRecordError(f"unknown role: turn {number} has {'no role' if role is None else kind_of(role)}")
    known = _ROLES.get(role.strip().lower())
    if known is None:
        raise InvalidRecordError(f"unknown role: {role[:40]!r} in turn {number}")
    content = _first(item, "content", "value")
    return Turn(role=known, content=checked_text(content, f"turn {number} ({known})"))


def checked_text(value: Any, place: str) -> str:
    """`value` if it is text that can be stored as UTF-8; raises InvalidRecordError naming `place` otherwise."""
    if not isinstance(value, str):
        raise InvalidRecordError(f"non-string content: {place} is {kind_of(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise InvalidRecordError(f"invalid text: lone surrogate U+{code:04X} in {place}") from None
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is called."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "text", bytes: "bytes"}
    if isinstance(value, Mapping):
        return "an object"
    return names.get(type(value), "a list" if isinstance(value, Sequence) else type(value).__name__)


def _first(item: Mapping[str, Any], *keys: str) -> Any:
    return next((item[key] for key in keys if item.get(key) is not None), None)
