"""Short conversations for the training mix: ShareGPT and UltraChat records under one form, and `short_chat_mix`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, cast

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import ShortChatConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.data.catalogue import scan
from gateau_dagster.data.forms import InvalidRecordError, kind_of, record_id, turns_of
from gateau_dagster.data.index import no_usable_sample
from gateau_dagster.data.ingest import read_wanted
from gateau_dagster.data.sample import Conversation, Reject, Turn, text_digest
from gateau_dagster.data.sources import FILE_DIGESTS, content_signature, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent

CODE_VERSION = "3"
_MIX = tables.schema(tables.SHORT_CHAT_MIX)
_ROWS = 2000


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


def short_chat_mix(
    config: ShortChatConfig, folder: Path, progress: Progress = silent
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(short_chat_mix, rejected): the first `fraction` of the usable conversations (see part_of).

    The input is read twice, so that only the conversations taken are in memory. Ids that occur twice are treated as in
    the long data. Raises GateauError for files that cannot be reached, that change between the two passes, or that
    hold no usable conversation.
    """
    files = resolve_files(config.path, folder)
    found = scan(files, to_conversation, progress)
    if found.accepted.is_empty():
        raise GateauError(no_usable_sample("short_chat.path", config.path, found.rejected))
    wanted = found.accepted.head(part_of(len(found.accepted), config.fraction))
    frames: list[pl.DataFrame] = [_MIX.to_frame()]
    rows = []
    for done, sample in enumerate(read_wanted(files, wanted, to_conversation), start=1):
        rows.append(_row(cast(Conversation, sample)))
        if len(rows) == _ROWS or done == len(wanted):
            frames.append(pl.DataFrame(rows, schema=_MIX, orient="row"))
            rows = []
        progress(done, len(wanted), "conversations")
    return pl.concat(frames), found.rejected.select(tables.schema(tables.REJECTED).names())


def short_chat_signature(config: ShortChatConfig, folder: Path, cache_dir: Path) -> str:
    """Changes when `short_chat_mix` would: names and contents of its files, the fraction, and the code version.

    Contents are remembered in `cache_dir`, and read again as `config.verify` says. Raises as `resolve_files`.
    """
    content = content_signature(resolve_files(config.path, folder), cache_dir / FILE_DIGESTS, config.verify)
    return text_digest(["short_chat_mix", CODE_VERSION, repr(config.fraction), content])


def _row(conversation: Conversation) -> tuple[str, str, list[dict[str, str]], str]:
    messages: list[dict[str, str]] = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
    return conversation.sample_id, conversation.source, messages, conversation.digest
