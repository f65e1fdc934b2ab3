"""Input records of every accepted form as the one record type, Sample; what does not fit is a Reject with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateau_dagster.data.sample import Reject, Role, Sample, Turn, text_digest
from gateau_dagster.data.user_turns import Border, split_user_turn

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
TURN_KEYS = ("messages", "conversations", "data")
ID_KEYS = ("id", "sample_id", "prompt_id")
SOURCE_KEYS = ("source", "dataset")
_BLANK_LINE = "\n\n"


class InvalidRecordError(ValueError):
    """A record that cannot be used; the message is the reject's reason, its kind before the colon."""


def to_sample(record: Any, *, location: str, stem: str) -> Sample | Reject:
    """A long instruction sample from a record (design, section 4, 'Input forms').

    Explicit `context`/`instruction`/`response`, or one exchange of a user and an assistant in a chat form, whose user
    turn `user_turns` takes apart: the instruction is what follows its last blank line, the context all before it. A
    turn without a clear border is instruction only, and its `border` is none. Explicit parts may lack
    the instruction, unless there is text under another key, which may be it. A leading system message is
    put in front of the context. A record without an id is named by the digest of its content, a reject by its
    `location`; `stem` is the `source` of records that have none.
    """
    sample_id: str | None = None
    try:
        if not isinstance(record, Mapping):
            raise InvalidRecordError(f"wrong type: the record is {kind_of(record)}, not an object")
        sample_id = record_id(record)
        context, instruction, response, border = _parts(record)
        if not response.strip():
            raise InvalidRecordError("empty response: nothing to learn and nothing to score")
        if not context.strip() and not instruction.strip():
            raise InvalidRecordError("empty prompt: neither context nor instruction")
    except InvalidRecordError as error:
        return Reject(sample_id=sample_id or location, reason=str(error))
    return Sample(
        sample_id=sample_id or content_id((context, instruction, response)),
        source=record_source(record, stem),
        context=context,
        instruction=instruction,
        response=response,
        border=border if context.strip() else "none",
    )


def record_id(record: Mapping[str, Any]) -> str | None:
    """The record's own id as text, or None; raises InvalidRecordError for an id that is neither text nor an integer."""
    for key in ID_KEYS:
        value = record.get(key)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise InvalidRecordError(f"invalid id: {key} is {kind_of(value)}, not text or an integer")
        return checked_text(value, key)
    return None


def record_source(record: Mapping[str, Any], stem: str) -> str:
    """The record's `source` or `dataset`, if it is text; else `stem`, the file's name."""
    for key in SOURCE_KEYS:
        value = record.get(key)
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
    return stem


def content_id(parts: Sequence[str]) -> str:
    """The id of a record that has none: 128 bits of its content's digest."""
    return text_digest(parts)[:32]


def _parts(record: Mapping[str, Any]) -> tuple[str, str, str, Border]:
    """(context, instruction, response, border)."""
    explicit = [key for key in ("context", "instruction", "response") if record.get(key) is not None]
    if "response" in explicit:
        given = {key: checked_text(record[key], key) for key in explicit}
        if "instruction" not in given:
            _check_no_other_name(record)
        return given.get("context", ""), given.get("instruction", ""), given["response"], "given"
    turns = turns_of(record)
    if turns is not None:
        return _exchange(turns)
    if explicit:
        raise InvalidRecordError(f"missing response: the record has {' and '.join(explicit)} only")
    keys = _listed(record) or "no keys"
    raise InvalidRecordError(
        f"unknown form: messages, conversations, data, or context/instruction/response wanted, but found {keys}"
    )


def _check_no_other_name(record: Mapping[str, Any]) -> None:
    """Refuses a record with a response and no instruction whose instruction may stand under another name."""
    known = {"context", "response", *ID_KEYS, *SOURCE_KEYS}
    if others := [
        key for key, value in record.items() if key not in known and isinstance(value, str) and value.strip()
    ]:
        raise InvalidRecordError(
            f"missing instruction: found {_listed(others)}; call it instruction, or give an empty one if there is none"
        )


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(ascii(key)[1:-1] for key in keys)[:8])[:120]


def _exchange(turns: list[Turn]) -> tuple[str, str, str, Border]:
    """One optional system turn, one user turn, one assistant turn."""
    system = turns[0].content if turns[0].role == "system" else ""
    rest = turns[1:] if turns[0].role == "system" else turns
    if [turn.role for turn in rest] == ["user"]:
        raise InvalidRecordError("missing response: no assistant turn follows the user turn")
    users = sum(turn.role == "user" for turn in rest)
    if users > 1:
        raise InvalidRecordError(f"several user turns: {users}, but a long sample is one instruction and its response")
    if [turn.role for turn in rest] != ["user", "assistant"]:
        order = ", ".join(turn.role for turn in turns[:6])
        raise InvalidRecordError(f"wrong order of turns: {order}; one user turn and one assistant turn wanted")
    context, instruction, border = split_user_turn(rest[0].content)
    if system.strip():
        context = f"{system}{_BLANK_LINE}{context}" if context else system
    return context, instruction, rest[1].content, border


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
