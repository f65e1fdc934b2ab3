"""Short conversations for the training mix: ShareGPT and UltraChat records under one form."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from typing import Any

from gateau_dagster.data.forms import record_id
from gateau_dagster.data.sample import Conversation, Reject, Turn
from gateau_dagster.data.turns import InvalidRecordError, kind_of, turns_of


def to_conversation(record: Any, *, location: str, stem: str) -> Conversation | Reject:
    """A conversation from a ShareGPT or UltraChat record, or why it is none.

    As is usual with ShareGPT, whose long conversations come in pieces: assistant turns before the first user turn are
    dropped, and so is a last user turn that nobody answered. An empty response rejects the whole conversation.
    """
    own_id: str | None = None
    try:
        if not isinstance(record, Mapping):
            raise InvalidRecordError(f"wrong type: the record is {kind_of(record)}, not an object")
        own_id = record_id(record)
        turns = turns_of(record)
        if turns is None:
            raise InvalidRecordError("unknown form: conversations, messages or data with a list of turns wanted")
        return Conversation(own_id=own_id, source=stem, turns=tuple(_normalised(turns)))
    except InvalidRecordError as error:
        return Reject(sample_id=own_id or location, reason=str(error))


def _normalised(turns: list[Turn]) -> list[Turn]:
    system = [turn for turn in turns[:1] if turn.role == "system"]
    rest = list(dropwhile(lambda turn: turn.role == "assistant", turns[len(system) :]))
    if rest and rest[-1].role == "user":
        rest.pop()
    if not rest:
        raise InvalidRecordError("missing response: no user turn is answered")
    for number, turn in enumerate(rest):
        if turn.role != ("assistant" if number % 2 else "user"):
            order = ", ".join(turn.role for turn in rest[:6])
            raise InvalidRecordError(f"wrong order of turns: user and assistant must alternate, but found {order}")
        if not turn.content.strip():
            kind = "empty response: an assistant" if turn.role == "assistant" else "empty prompt: a user"
            raise InvalidRecordError(f"{kind} turn has no text")
    return [turn for turn in system if turn.content.strip()] + rest
