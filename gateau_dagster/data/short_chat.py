"""Read short conversations for the training mix: ShareGPT and UltraChat records in one form, and `short_chat_mix`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import ShortChatConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.data.catalogue import read_wanted, scan
from gateau_dagster.data.forms import explicit_parts, record_id, system_of, turns_of, with_system
from gateau_dagster.data.index import no_usable_sample
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.record_fields import FieldCounts, Fields, InvalidRecordError, add_counts, kind_of
from gateau_dagster.data.sample import Conversation, Reject, Turn, text_digest
from gateau_dagster.data.sources import FILE_DIGESTS, Problem, content_signature, location, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.local import recall, remember

CODE_VERSION = "4"
_MIX = tables.schema(tables.SHORT_CHAT_MIX)
_ROWS = 2000


def to_conversation(
    record: Any,
    *,
    location: str,
    stem: str,
    ignore: Collection[str] = (),
    counts: FieldCounts | None = None,
) -> Conversation | Reject:
    """Return the conversation of a record of any form that `to_samples` reads, or a Reject with the reason.

    Tools and their results reject a record. ShareGPT often splits long conversations. So assistant turns before the
    first user turn are dropped, and so is a last unanswered user turn. An empty response rejects the whole
    conversation. The record's `system` becomes the first turn. `ignore` and `counts`: see `to_samples`.
    """
    own_id: str | None = None
    fields = Fields(ignore, "short_chat")
    try:
        if not isinstance(record, Mapping):
            raise InvalidRecordError(f"wrong type: the record is {kind_of(record)}, not an object")
        record = fields.record(record)
        own_id = record_id(record, fields)
        turns = _turns(record, fields)
        if turns is None:
            raise InvalidRecordError("unknown form: conversations, messages or data with a list of turns wanted")
        turns = _normalised(with_system(turns, system_of(record, fields)), fields)
        fields.check(has_context=False)
    except InvalidRecordError as error:
        return Reject(sample_id=own_id or location, reason=fields.reason(error))
    finally:
        if counts is not None:
            add_counts(counts, fields)
    return Conversation(own_id=own_id, source=stem, turns=tuple(turns))


def _turns(record: Mapping[str, Any], fields: Fields) -> list[Turn] | None:
    """Return the turns of a chat form, else one exchange of explicit parts."""
    turns = turns_of(record, fields)
    parts = explicit_parts(record, fields) if turns is None else None
    if parts is None:
        return turns
    context, instruction, response, _ = parts
    asked = "\n\n".join(part for part in (context, instruction) if part.strip())
    return [Turn(role="user", content=asked), Turn(role="assistant", content=response)]


def _normalised(turns: list[Turn], fields: Fields) -> list[Turn]:
    system = [turn for turn in turns[:1] if turn.role == "system"]
    rest = turns[len(system) :]
    first = next((place for place, turn in enumerate(rest) if turn.role != "assistant"), len(rest))
    if first and first < len(rest):
        fields.leave_out("turns before the first question")
    rest = rest[first:]
    if rest and rest[-1].role == "user":
        rest.pop()
        fields.leave_out("last question without an answer")
    if not rest:
        raise InvalidRecordError("missing response: no user turn is answered")
    for number, turn in enumerate(rest):
        if turn.role != ("assistant" if number % 2 else "user"):
            order = ", ".join(turn.role for turn in rest[:6])
            raise InvalidRecordError(f"wrong order of turns: user and assistant must alternate, but found {order}")
        if not turn.content.strip():
            kind = "empty response: an assistant" if turn.role == "assistant" else "empty prompt: a user"
            raise InvalidRecordError(f"{kind} turn has no text")
    if not any(turn.trained for turn in rest if turn.role == "assistant"):
        raise InvalidRecordError("not to be learned: every response is flagged as one without loss")
    return [turn for turn in system if turn.content.strip()] + rest


def short_chat_mix(
    config: ShortChatConfig, folder: Path, progress: Progress = silent, counts: FieldCounts | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the first `fraction` of the usable conversations (see part_of), and the rejected ones.

    The input is read twice, so that only the returned conversations are in memory. Repeated ids are treated as in the
    long data. The use of the records' fields is added to `counts`.

    Raises:
        GateauError: a file cannot be reached or changes between the passes, or no conversation is usable.
    """
    files = resolve_files(config.path, folder)
    convert = partial(_converted, config.ignore)
    found = scan(files, convert, progress)
    if counts is not None:
        counts.update(found.fields)
    if found.accepted.is_empty():
        raise GateauError("data.no_usable_record", no_usable_sample("short_chat.path", config.path, found.rejected))
    # The first ones, not a random part: a larger `fraction` then only adds conversations.
    wanted = found.accepted.head(part_of(len(found.accepted), config.fraction))
    frames: list[pl.DataFrame] = [_MIX.to_frame()]
    rows = []
    for done, sample in enumerate(read_wanted(found.files, wanted, convert), start=1):
        rows.append(_row(cast(Conversation, sample)))
        if len(rows) == _ROWS or done == len(wanted):
            frames.append(pl.DataFrame(rows, schema=_MIX, orient="row"))
            rows = []
        progress(done, len(wanted), "conversations")
    return pl.concat(frames), found.rejected.select(tables.schema(tables.REJECTED).names())


def _converted(ignore: Collection[str], record: Any, **given: Any) -> list[Conversation | Reject]:
    return [to_conversation(record, ignore=ignore, **given)]


def first_conversations(config: ShortChatConfig, folder: Path, count: int) -> list[list[dict[str, str]]]:
    """Return the messages of the first usable conversations, at most `count`. Raise the errors of `resolve_files`."""
    found: list[list[dict[str, str]]] = []
    for file in resolve_files(config.path, folder):
        for item in read_records(file):
            if isinstance(item, Problem):
                continue
            place = location(file, item.number)
            made = to_conversation(item.value, location=place, stem=file.stem, ignore=config.ignore)
            if not isinstance(made, Reject):
                found.append(_row(made)[2])
            if len(found) == count:
                return found
    return found


def short_chat_signature(config: ShortChatConfig, folder: Path, cache_dir: Path) -> str:
    """Return a digest of the inputs of `short_chat_mix`: contents of its files, settings, and the code version.

    Contents are cached in `cache_dir`, and read again according to `config.verify`. Raises the errors of
    `resolve_files`.
    """
    as_text = ["control tokens are text"] * bool(short_chat_control_tokens(config, folder, cache_dir))
    return text_digest([*_identity(config, folder, cache_dir), *as_text])


def _identity(config: ShortChatConfig, folder: Path, cache_dir: Path) -> list[str]:
    content = content_signature(resolve_files(config.path, folder), cache_dir / FILE_DIGESTS, config.verify)
    ignored = [f"ignore {name}" for name in sorted(set(config.ignore))]
    return ["short_chat_mix", CODE_VERSION, repr(config.fraction), content, *ignored]


def short_chat_control_tokens(config: ShortChatConfig, folder: Path, cache_dir: Path) -> Counter[tuple[str, ...]]:
    """Return how many conversations of `short_chat_mix` spell these control tokens, see `spelled_control_tokens`.

    Early releases read them as control tokens, so a mix with some is made again. The files are read once for this, and
    the result is kept in `cache_dir`. Raises the errors of `resolve_files`.
    """
    cache, key = cache_dir / "control_tokens.json", text_digest(_identity(config, folder, cache_dir))
    known = recall(cache, key)
    if not isinstance(known, list):
        found = scan(resolve_files(config.path, folder), partial(_converted, config.ignore), silent).accepted
        spelled = found.head(part_of(found.height, config.fraction))["control_tokens"]
        known = [[tokens, count] for tokens, count in Counter(map(tuple, spelled)).items() if tokens]
        remember(cache, key, known)
    return Counter({tuple(tokens): count for tokens, count in known})


def _row(conversation: Conversation) -> tuple[str, str, list[dict[str, str]], str, list[bool]]:
    turns = conversation.turns
    messages: list[dict[str, str]] = [{"role": turn.role, "content": turn.content} for turn in turns]
    trained = [turn.role == "assistant" and turn.trained for turn in turns]
    return conversation.sample_id, conversation.source, messages, conversation.digest, trained
