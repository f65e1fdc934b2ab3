"""Put the turns of a record in order, tell an exchange from longer conversations, and hash how a conversation begins.

An exchange is one question and one answer, without tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gateau_dagster.data.record_fields import Fields, InvalidRecordError
from gateau_dagster.data.sample import Beginnings, Turn
from gateau_dagster.data.user_turns import Border

# The roles that may follow each role. Results follow results, since an answer may call several tools.
_FOLLOWS = {
    None: {"user"},
    "system": {"user", "assistant", "tool"},
    "user": {"assistant", "system"},
    "assistant": {"user", "tool", "system"},
    "tool": {"user", "tool", "assistant", "system"},
}
BETWEEN = "\n\n"
"""Stands between texts that are joined."""


class SampleParts(NamedTuple):
    """The texts of a sample.

    suffix: follows the record's id, and differs between the samples of one record.
    instructions: the characters at the context's start that are the system text and the definitions of tools.
    """

    context: str
    instruction: str
    response: str
    border: Border
    conversation: str = ""
    suffix: str = ""
    beginnings: Beginnings | None = None
    instructions: int = 0


def ordered(turns: Sequence[Turn], tools: Sequence[Any], fields: Fields) -> list[Turn]:
    """Return the turns of a record in a possible order, adjacent ones of one speaker joined where they are one.

    Args:
        turns: the record's turns.
        tools: the definitions of the tools; empty if the record has none.
        fields: the record's fields; notes the turns that are left out.

    Raises:
        InvalidRecordError: the turns are not in a possible order.
    """
    found = _joined(turns)
    return found if is_exchange(found, tools) else _named(_in_order(found or list(turns), fields))


def is_exchange(turns: Sequence[Turn], tools: Sequence[Any]) -> bool:
    """Return whether turns are one question and one answer without tools, at most after a system turn."""
    roles = [turn.role for turn in turns]
    spoken = roles[roles[:1] == ["system"] :]
    return spoken == ["user", "assistant"] and not turns[-1].tool_calls and not tools


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns without blank system turns. Join adjacent system turns, and the turns of an agent's step."""
    found = list[Turn]()
    for turn in turns:
        last = found[-1] if found else None
        if turn.role == "system" and not turn.content.strip():
            continue
        if last and last.role == turn.role and (turn.role == "system" or last.tool_calls or turn.tool_calls):
            found[-1] = _together(last, turn)
        else:
            found.append(turn)
    return found


def _together(first: Turn, second: Turn) -> Turn:
    return replace(
        first,
        content=BETWEEN.join(turn.content for turn in (first, second) if turn.content.strip()),
        tool_calls=(*first.tool_calls, *second.tool_calls),
        trained=first.trained and second.trained,
    )


def _named(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the name of the tool in each result, from the last call before it that has its id."""
    named, names = list[Turn](), dict[str, str]()
    for turn in turns:
        names.update((call["id"], call["function"]["name"]) for call in turn.tool_calls if "id" in call)
        named.append(replace(turn, name=turn.name or names.get(turn.call_id, "")))
    return named


def _in_order(turns: list[Turn], fields: Fields) -> list[Turn]:
    """Return the turns that have text, in a possible order and without an open end."""
    if [turn.role for turn in turns if turn.role != "system"] == ["user"]:
        raise InvalidRecordError("missing response: no assistant turn follows the user turn")
    while len(turns) > 1 and turns[-1].role in ("user", "system"):
        turns = turns[:-1]
        fields.leave_out("last question without an answer")
    turns = _with_text(turns, fields)
    before = speaker = None
    for turn in turns[[turn.role for turn in turns[:1]] == ["system"] :]:
        if turn.role not in _FOLLOWS[before] or (turn.role == "tool" and speaker == "user"):
            raise _wrong_order(turns)
        before, speaker = turn.role, speaker if turn.role == "system" else turn.role
    if not any(turn.role == "assistant" for turn in turns):
        raise _wrong_order(turns)
    return turns


def _with_text(turns: Sequence[Turn], fields: Fields) -> list[Turn]:
    """Return the turns with text, and the last one. Join turns of one speaker around one that is left out."""
    kept, gap = list[Turn](), False
    for place, turn in enumerate(turns, start=1):
        if is_empty(turn) and place < len(turns):
            fields.leave_out("turns without text")
            gap = True
            continue
        if gap and kept and kept[-1].role == turn.role != "tool":
            kept[-1] = _together(kept[-1], turn)
        else:
            kept.append(turn)
        gap = False
    return kept


def is_empty(turn: Turn) -> bool:
    """Return whether a turn has neither text nor calls, and is no result of a tool, which may be empty."""
    return turn.role != "tool" and not turn.content.strip() and not turn.tool_calls


def _wrong_order(turns: Sequence[Turn]) -> InvalidRecordError:
    order = ", ".join(turn.role for turn in turns[:6])
    return InvalidRecordError(
        f"wrong order of turns: {order}; a user turn, then assistant turns with tool or user turns between them wanted"
    )


def answer_digests(turns: Sequence[Turn], tools: Sequence[Any]) -> list[int]:
    """Return 64 bits of the digest of the tools and all turns up to each answer, 0 for other turns.

    The ids of calls do not count.
    """
    # Without the ids of calls, since a copy of a session may have other ones. Copies of one running digest give all
    # beginnings in a single pass over the turns.
    digest, digests = hashlib.sha256(dumped(tools).encode()), list[int]()
    for turn in turns:
        calls = [text for call in turn.tool_calls for text in call["function"].values()]
        texts = (turn.name, turn.content, *calls)
        # Lengths come before the texts, so that no other division of the same characters has this digest.
        digest.update("".join([turn.role, *map(" {}".format, map(len, texts)), " ", *texts]).encode())
        is_answer = turn.role == "assistant"
        digests.append(int.from_bytes(digest.copy().digest()[:8], "big") if is_answer else 0)
    return digests


def beginnings(turns: Sequence[Turn], digests: Sequence[int]) -> Beginnings:
    """Return the beginnings of a conversation, which ends with an answer. digests: see `answer_digests`."""
    ends, unlearned, bits, answers = list[int](), list[int](), 0, 0
    for turn, digest in zip(turns, digests, strict=True):
        if turn.role != "assistant":
            continue
        bits, answers = bits | (not turn.trained) << answers, answers + 1
        if not turn.tool_calls:
            ends.append(digest)
            unlearned.append(bits)
    return Beginnings(turns=len(turns), ends=tuple(ends), unlearned=tuple(unlearned) if bits else ())


def dumped(value: Any) -> str:
    """Return a value as JSON, with characters as they are."""
    return json.dumps(value, ensure_ascii=False)
