"""`short_chat_mix`: the first part of the short conversations, in the data's order."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import ShortChatConfig
from gateau_dagster.data.catalogue import scan
from gateau_dagster.data.chat import to_conversation
from gateau_dagster.data.index import no_usable_sample
from gateau_dagster.data.ingest import read_wanted
from gateau_dagster.data.sample import Conversation, text_digest
from gateau_dagster.data.sources import content_signature, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent

CODE_VERSION = "1"
_MIX = tables.schema(tables.SHORT_CHAT_MIX)
_ROWS = 2000


def short_chat_mix(
    config: ShortChatConfig, folder: Path, progress: Progress = silent
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(short_chat_mix, rejected): the first `fraction` of the usable conversations (rounded, at least one).

    The input is read twice, so that only the conversations taken are in memory. Ids that occur twice are treated as in
    the long data. Raises GateauError for files that cannot be reached, that change between the two passes, or that
    hold no usable conversation.
    """
    files = resolve_files(config.path, folder)
    found = scan(files, to_conversation, progress)
    if found.accepted.is_empty():
        raise GateauError(no_usable_sample("short_chat.path", config.path, found.rejected))
    wanted = found.accepted.head(max(1, round(config.fraction * len(found.accepted))))
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

    Contents are read once and remembered in `cache_dir` by size and modification time. Raises as `resolve_files`.
    """
    content = content_signature(resolve_files(config.path, folder), cache_dir / "file-digests.json")
    return text_digest(["short_chat_mix", CODE_VERSION, repr(config.fraction), content])


def _row(conversation: Conversation) -> tuple[str, str, list[dict[str, str]], str]:
    messages: list[dict[str, str]] = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
    return conversation.sample_id, conversation.source, messages, conversation.digest
