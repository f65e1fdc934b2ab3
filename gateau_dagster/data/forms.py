"""Convert input records of every accepted form to Samples; reject others with a reason."""

# Why forms are recognised, and not configured: many public data sets have one of a few forms, and need no setting. The
# price is that names can be ambiguous. An ambiguous record is rejected with the names that it has, since a wrong guess
# would be trained on unnoticed.

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from types import FunctionType
from typing import Any

from gateau_dagster.config.inputs import NonText, Turns
from gateau_dagster.data.conversation import BETWEEN, SampleParts, answer_digests, beginnings, is_exchange, ordered
from gateau_dagster.data.record_fields import (
    FieldCounts,
    Fields,
    InvalidRecordError,
    add_counts,
    checked_text,
    kind_of,
)
from gateau_dagster.data.sample import Beginnings, Reject, Role, Sample, Turn, text_digest
from gateau_dagster.data.tool_calls import call_of, calls_in, calls_of, decoded, tools_of, with_arguments
from gateau_dagster.data.user_turns import Border, split_user_turn
from gateau_dagster.registry import feature_parts

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
# These roles count only where tools are read. ShareGPT's `function_call` is an assistant turn with a call as JSON.
_TOOL_ROLES: dict[str, Role] = {
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "tool_result"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),
}
_TOOL_FIELDS: dict[Role, tuple[str, ...]] = {
    "assistant": ("tool_calls", "function_call"),
    "tool": ("tool_call_id", "name"),
}
TURN_KEYS = ("messages", "conversations", "data")
ID_KEYS = ("id", "sample_id", "prompt_id")
SOURCE_KEYS = ("source", "dataset")
SYSTEM_KEYS = ("system", "system_prompt", "system_message")
# The names of each part of a sample without turns; if several hold text, see _one_of.
CONTEXT_KEYS = ("context", "document", "passage", "article")
INSTRUCTION_KEYS = ("instruction", "query", "question", "prompt")
RESPONSE_KEYS = ("response", "output", "completion", "answer")
# Alpaca's context beside an instruction, a question beside a context, and a whole user turn if it is alone.
INPUT = "input"
_WHOLE = 2.0**53


def to_samples(
    record: Any,
    *,
    location: str,
    stem: str,
    ignore: Collection[str] = (),
    turns: Turns = "last",
    parts: NonText = "reject",
    counts: FieldCounts | None = None,
) -> Iterator[Sample | Reject]:
    """Return the long instruction samples of a record (docs/how-to/data.md), or a Reject with the reason.

    The record has explicit parts (see `explicit_parts`), or turns in a chat form. In one exchange of a user and an
    assistant, `user_turns` splits the user turn: the instruction follows its last blank line, the context precedes it.
    A turn without a clear border is instruction only, and its `border` is none. Explicit parts may lack the
    instruction, unless there is text under another key, which may be it. A leading system message, or the record's
    `system`, precedes the context. A feature reads other conversations. A record without an id is named by the digest
    of its content, a reject by its `location`. `stem` is the `source` of records that have none.

    Args:
        record: one record of a file.
        location: the record's place, for a reject.
        stem: see above.
        ignore: see `long_sft.ignore`.
        turns: see `long_sft.turns`; `each` yields several samples of a record, with ids `<id>#1`, `<id>#2` and so on.
        parts: see `long_sft.parts`.
        counts: receives the use of the record's fields.
    """
    sample_id: str | None = None
    fields = Fields(ignore, "long_sft", parts)
    made: Iterator[Sample | Reject]
    try:
        if not isinstance(record, Mapping):
            raise InvalidRecordError(f"wrong type: the record is {kind_of(record)}, not an object")
        record = fields.record(record)
        sample_id = record_id(record, fields)
        own_id, found = _parts(record, fields, turns)
        # Only the first sample is made here. One record may have thousands, each with a long context.
        first = next(found)
        if not first.response.strip():
            raise InvalidRecordError("empty response: nothing to learn and nothing to score")
        if not first.context.strip() and not first.instruction.strip():
            raise InvalidRecordError("empty prompt: neither context nor instruction")
        contexts = CONTEXT_KEYS if first.border == "conversation" else ()
        fields.check(has_context=_border(first) != "none", contexts=contexts)
    except InvalidRecordError as error:
        made = iter([Reject(sample_id=sample_id or location, reason=fields.reason(error))])
    else:
        name, source = sample_id or own_id, record_source(record, stem)
        made = (_sample(each, name, source) for each in chain([first], found))
    finally:
        if counts is not None:
            add_counts(counts, fields)
    return made


def _sample(parts: SampleParts, name: str, source: str) -> Sample:
    return Sample(
        sample_id=name + parts.suffix,
        source=source,
        context=parts.context,
        instruction=parts.instruction,
        response=parts.response,
        conversation=parts.conversation,
        border=_border(parts),
        beginnings=parts.beginnings,
        instructions=parts.instructions,
    )


def _border(parts: SampleParts) -> Border:
    # A conversation's first answer has an empty context, but a border.
    return parts.border if parts.context.strip() or parts.conversation else "none"


def record_id(record: Mapping[str, Any], fields: Fields | None = None) -> str | None:
    """Return the record's own id as text, or None; raise InvalidRecordError for neither text nor a whole number."""
    for key in ID_KEYS:
        value = record.get(key)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        (fields or Fields()).use(key)
        if isinstance(value, float):
            # pandas makes 1.0 of 1 in a column with missing values.
            if value.is_integer() and abs(value) < _WHOLE:
                return str(int(value))
            kind = "a number with a fraction" if abs(value) < _WHOLE else "a float too large to be an exact integer"
            raise InvalidRecordError(f"invalid id: {key} is {value}, {kind}, not text or an integer")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise InvalidRecordError(f"invalid id: {key} is {kind_of(value)}, not text or an integer")
        return checked_text(value, key)
    return None


def record_source(record: Mapping[str, Any], stem: str) -> str:
    """Return the record's `source` or `dataset`, if it is text; else `stem`, the file's name."""
    for key in SOURCE_KEYS:
        value = record.get(key)
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
    return stem


def content_id(parts: Sequence[str]) -> str:
    """Return the id of a record that has none: 128 bits of its content's digest."""
    return text_digest(parts)[:32]


def _parts(record: Mapping[str, Any], fields: Fields, how: Turns) -> tuple[str, Iterator[SampleParts]]:
    """Return an id from the record's content, and the texts of its samples."""
    # The form of `response` counts beside turns only if it has a context or an instruction, too.
    explicit = "response" in record and any(record.get(key) is not None for key in ("context", "instruction"))
    turns = None if explicit else turns_of(record, fields)
    if turns is not None:
        turns, tools = with_system(turns, system_of(record, fields)), tools_of(record, fields)
        turns = ordered(with_arguments(turns, tools, fields), tools, fields)
        if not is_exchange(turns, tools):
            if (read := _read_conversation()) is None:
                raise InvalidRecordError("several turns: this installation reads one question and one answer only")
            return read(turns, tools, fields, how)
        *before, user, assistant = turns
        if not assistant.trained:
            raise InvalidRecordError("not to be learned: the only response is flagged as one without loss")
        context, instruction, border = split_user_turn(user.content)
        parts = SampleParts(context, instruction, assistant.content, border, beginnings=_beginnings(turns))
        parts = _after_system(before[0].content if before else None, parts)
        return content_id(parts[:3]), iter([parts])
    named = explicit_parts(record, fields)
    if named is None:
        if others := [key for key in (*CONTEXT_KEYS, INPUT, *INSTRUCTION_KEYS) if record.get(key) is not None]:
            raise InvalidRecordError(f"missing response: the record has {' and '.join(others)} only")
        keys = _listed(record) or "no keys"
        raise InvalidRecordError(
            f"unknown form: messages, conversations, data, or context/instruction/response wanted, but found {keys}"
        )
    context, instruction, response, whole = named
    system = system_of(record, fields)
    asked = Turn(role="user", content=BETWEEN.join(text for text in (context, instruction) if text.strip()))
    exchange = with_system([asked, Turn(role="assistant", content=response)], system)
    border = "given" if context.strip() else "none"
    if whole:
        context, instruction, border = split_user_turn(instruction)
    begins = _beginnings(ordered(exchange, (), fields))
    parts = _after_system(system, SampleParts(context, instruction, response, border, beginnings=begins))
    return content_id(parts[:3]), iter([parts])


def _beginnings(turns: Sequence[Turn]) -> Beginnings:
    return beginnings(turns, answer_digests(turns, ()))


@cache
def _read_conversation() -> FunctionType | None:
    # A feature, as the kernel reads only one question and its answer. Without it such records are rejects.
    return next(feature_parts("forms", "read_conversation", FunctionType), None)


def explicit_parts(record: Mapping[str, Any], fields: Fields) -> tuple[str, str, str, bool] | None:
    """Return context, instruction, response and `whole` of a record without turns; None if it has no response.

    Accepted are `context`/`instruction`/`response`, Alpaca (`instruction`/`input`/`output`), `prompt`/`completion`, and
    a `query` or `question` with its context and `answer`. `whole`: the instruction is a whole user turn, which may
    contain the context: a `prompt` or an `input` alone.
    """
    response_key = _one_of(record, RESPONSE_KEYS, "responses", fields)
    if response_key is None:
        return None
    canonical = response_key == "response"
    instruction_key = _one_of(record, INSTRUCTION_KEYS, "instructions", fields, canonical=canonical)
    context_key = _one_of(record, CONTEXT_KEYS, "contexts", fields, canonical=canonical)

    def text(key: str | None) -> str:
        given = "" if key is None else fields.read(checked_text(record[key], key))
        return given if given.strip() or key in ("context", "instruction", "response") else ""

    context, instruction, response = text(context_key), text(instruction_key), text(response_key)
    whole = instruction_key == "prompt" and not context.strip()
    if isinstance(given := record.get(INPUT), str) and given.strip() and not (canonical and "context" in record):
        if not instruction.strip() and not (canonical and "instruction" in record):
            fields.use(INPUT)
            return context, text(INPUT), response, not context.strip()
        if not context.strip():
            fields.use(INPUT)
            return text(INPUT), instruction, response, False
        if not canonical and given not in context:
            raise InvalidRecordError(
                f"two contexts: {context_key} and {INPUT} hold different text; "
                f"name the one that is not the context in {fields.section}.ignore"
            )
    if instruction_key is None and (others := fields.unknown_texts()):  # one of them may be the instruction
        raise InvalidRecordError(
            f"missing instruction: found {_listed(others)}; call it instruction, or give an empty one if there is none"
        )
    return context, instruction, response, whole


def _one_of(
    record: Mapping[str, Any], keys: Sequence[str], what: str, fields: Fields, *, canonical: bool = False
) -> str | None:
    """Return the key of `keys` that holds a part of the sample, or None.

    The first name takes precedence, in the form of `response` even if it is empty. Of other names with text, the one
    whose text contains the others' counts.

    Raises:
        InvalidRecordError: no text contains the others.
    """
    present = [
        key
        for key in keys
        if record.get(key) is not None and (not canonical or key == keys[0] or isinstance(record[key], str))
    ]
    if not present:
        return None
    full = [key for key in present if isinstance(record[key], str) and record[key].strip()]
    if keys[0] in full or (canonical and keys[0] in present):
        chosen: str | None = keys[0]
    elif not full:
        chosen = present[0]
    else:
        chosen = next((key for key in full if all(record[other] in record[key] for other in full)), None)
    if chosen is None:
        raise InvalidRecordError(
            f"two {what}: {' and '.join(full)} hold different text; name those that are not meant in "
            f"{fields.section}.ignore"
        )
    fields.use(chosen)
    return chosen


def system_of(record: Mapping[str, Any], fields: Fields) -> str | None:
    """Return the record's own system text, or None; raise InvalidRecordError if several differ."""
    found = {key: checked_text(record[key], key) for key in SYSTEM_KEYS if record.get(key) is not None}
    fields.use(*found)
    texts = list(dict.fromkeys(text for text in found.values() if text.strip()))
    if len(texts) > 1:
        raise InvalidRecordError(f"two system texts: {' and '.join(found)} differ; keep one of them")
    return texts[0] if texts else None


def with_system(turns: list[Turn], system: str | None) -> list[Turn]:
    """Return the turns with the record's system text first; raise InvalidRecordError if they begin with another."""
    if system is None:
        return turns
    if turns[0].role != "system" or not turns[0].content.strip():
        return [Turn(role="system", content=system), *turns[turns[0].role == "system" :]]
    if turns[0].content.strip() != system.strip():
        raise InvalidRecordError("two system texts: the record's and that of turn 1 differ; keep one of them")
    return turns


def _after_system(system: str | None, parts: SampleParts) -> SampleParts:
    """Return the parts with the system text in front of the context."""
    if system is None or not system.strip():
        return parts
    context = f"{system}{BETWEEN}{parts.context}" if parts.context else system
    return parts._replace(context=context, instructions=len(system))


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(ascii(key)[1:-1] for key in keys)[:8])[:120]


def turns_of(record: Mapping[str, Any], fields: Fields | None = None) -> list[Turn] | None:
    """Return the turns of a record in one of the chat forms, in order; None if the record is in none of them.

    The arguments of tool calls are still as they are given: see `with_arguments`.

    Raises:
        InvalidRecordError: the message names the turn and what was found in it.
    """
    fields = fields or Fields()
    key = next((key for key in TURN_KEYS if record.get(key) is not None), None)
    if key is None:
        return _prompt_and_completion(record, fields)
    fields.use(key)
    items = decoded(record[key], key)
    if not _is_list(items):
        raise InvalidRecordError(f"wrong type: {key} is {kind_of(record[key])}, not a list of turns")
    if not items:
        raise InvalidRecordError(f"no turns: {key} is empty")
    return [turn for number, item in enumerate(items, start=1) for turn in _turns(item, number, key, fields)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _prompt_and_completion(record: Mapping[str, Any], fields: Fields) -> list[Turn] | None:
    """Return the turns of TRL's form whose `prompt` and `completion` are lists of messages; None for another form.

    One of the two may be text. Loss counts on the completion only, so an answer in the prompt has none.
    """
    given: dict[str, Any] = {key: record.get(key) for key in ("prompt", "completion")}
    if None in given.values() or not any(map(_is_list, given.values())):
        return None
    fields.use(*given)
    turns: list[Turn] = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        items = given[key] if _is_list(given[key]) else [{"role": role, "content": given[key]}]
        numbered = enumerate(items, start=len(turns) + 1)
        found = [turn for number, item in numbered for turn in _turns(item, number, key, fields)]
        turns += found if key == "completion" else [replace(turn, trained=False) for turn in found]
    if not turns:
        raise InvalidRecordError("no turns: prompt and completion are empty")
    return turns


def _turns(item: Any, number: int, key: str, fields: Fields) -> Iterator[Turn]:
    """Yield the turn of an item; before it, the tools' results that Anthropic's form has in a user turn."""
    if isinstance(item, str) and key == "data":
        role: Role = "user" if number % 2 else "assistant"
        yield Turn(role=role, content=fields.read(checked_text(item, f"turn {number}")))
        return
    turn = decoded(item, f"turn {number}")
    if not isinstance(turn, Mapping):
        raise InvalidRecordError(f"wrong type: turn {number} is {kind_of(item)}, not an object with role and content")
    item = fields.turn_fields(turn)
    role_key, content_key = _first(item, "role", "from"), _first(item, "content", "value")
    given = item.get(role_key)
    if not isinstance(given, str):
        raise InvalidRecordError(f"unknown role: turn {number} has {'no role' if given is None else kind_of(given)}")
    given = given.strip().lower()
    known = _ROLES.get(given) or (_TOOL_ROLES.get(given) if fields.reads_tools else None)
    if known is None:
        raise InvalidRecordError(f"unknown role: {item[role_key][:40]!r} in turn {number}")
    place = f"turn {number} ({known})"
    used = [role_key, content_key, *(_TOOL_FIELDS.get(known, ()) if fields.reads_tools else ())]
    trained = fields.turn(item, number=number, role=known, used=[each for each in used if each in item])
    other = item.get("value" if content_key == "content" else "content")
    if isinstance(other, str) and other.strip() and other != item.get(content_key):
        raise InvalidRecordError(f"two contents: content and value of {place} differ; keep one of them")
    content, parts = item.get(content_key), list[dict[str, Any]]()
    calls = [*calls_of(item, place, fields)] if known == "assistant" and fields.reads_tools else []
    if given in ("function_call", "tool_call"):
        content, calls = "", [*calls_in(content, place, fields)]
    text = fields.content(content, place, known, parts if fields.reads_tools else None)
    for part in parts:
        if part["type"] == "tool_use":
            calls.append(call_of(part, part.get("input"), place, fields))
            continue
        result = fields.content(part.get("content", ""), place)
        call_id = part.get("tool_use_id") or ""
        yield Turn(role="tool", content=fields.read(checked_text(result, place)), call_id=checked_text(call_id, place))
    if parts and known != "assistant" and not text:
        return
    of_tool = known == "tool"
    text = fields.read(checked_text("" if text is None and (calls or of_tool) else text, place))
    yield Turn(
        role=known,
        content=text,
        trained=trained,
        tool_calls=tuple(calls),
        name=checked_text(item.get("name", ""), place) if of_tool else "",
        call_id=checked_text(item.get("tool_call_id", ""), place) if of_tool else "",
    )


def _first(item: Mapping[str, Any], *keys: str) -> str:
    return next((key for key in keys if key in item), keys[0])
