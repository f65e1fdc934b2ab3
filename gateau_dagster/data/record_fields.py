"""Record the use of every field of a record, of its turns and of their parts.

A field is *used* if a form reads it, and *irrelevant* if its name says that it holds no training text (ids, scores,
languages, dates). It is *ignored* if the configuration names it, *rejected* if it cannot be used, else *unknown*.
"""

# Why every field is accounted for: public data have text under many names. A reader of known fields only may drop a
# document, a tool call or a flag against loss, and nobody would notice. So a field that might change what is learned
# rejects its record, or is named to the user.
#
# What it costs: lists of names, which grow with each new kind of data set. `ignore` is for what they do not know. A
# field that is named as harmless and holds long text is still checked.

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gateau_dagster.config.inputs import NonText

Use = Literal["used", "ignored", "irrelevant", "unknown", "rejected"]
"""The use of a field; of several turns of one record, the strongest counts (see _STRENGTH)."""
FieldCounts: TypeAlias = dict[str, dict[str, int]]
"""The number of records by field and use; of text that is no field of its record, such as turns, the amount of it.

Fields of turns begin with `turn.`, those of parts of a turn's content with `turn.content.`.
"""

LONG_TEXT = 300
"""Longest text in characters under an unknown key of a sample without context; a longer one may be the context."""
TURN, PART = "turn.", "turn.content."
LEFT_OUT = "(left out)"
"""The field of a session's record with the amount of what the reader has left out, by reason."""
_STRENGTH: tuple[Use, ...] = ("irrelevant", "unknown", "used", "ignored", "rejected")
_MOST_FIELDS, _LONGEST_NAME = 300, 60
OTHER_FIELDS = "(other fields)"

# Text of the answer or its generation that no form has a place for.
_REASONING = (
    "reasoning_content reasoning thinking thought thoughts chain_of_thought cot rationale think reasoning_trace"
)
_TOOLS = "tools tool_calls tool_call function_call functions function_calls tool_use tool_result"
_MEDIA = "image images audio audios video videos image_url image_urls img imgs attachments"
_CONVERSATIONS = ("messages", "conversations")
_PREFERENCES = "chosen rejected"
_UNUSABLE = {
    **dict.fromkeys(_REASONING.split(), "reasoning is not trained on"),
    **dict.fromkeys(_TOOLS.split(), "tools are not part of the prompt"),
    **dict.fromkeys(_MEDIA.split(), "only text is read"),
    **dict.fromkeys(_PREFERENCES.split(), "preferences are not trained on"),
    "history": "earlier exchanges are read as turns of messages or conversations only",
    **dict.fromkeys(_CONVERSATIONS, "the record has its text in another form, too"),
    "refusal": "only content is read",
    "train_detail": "loss counts on whole turns only",
    "training_detail": "loss counts on whole turns only",
}
_IRRELEVANT = re.compile(
    r"(.*_)?(ids?|uid|uuid|guid|idx|index|hash|hashes|md5|sha1|sha256|ip|scores?|ratings?|quality|rewards?|perplexity|likes"
    r"|views|votes|rank|lang|languages?|locale|country|state|date|dates|time|timestamp|year|created|updated|create_time"
    r"|update_time|created_at|updated_at|model|models|model_name|generator|engine|annotators?|author|user|license|licence"
    r"|urls?|links?|len|lengths?|tokens|count|counts|category|categories|tasks?|type|types|topics?|domains?|tags?|labels?"
    r"|role|from|split|subset|name|title|version|difficulty|level|source|dataset|redacted|toxic|moderation|header|weight|loss"
    r"|train|training|trainable|turn|turns|file|files|file_name|filename|path|tool_choice)|(num|n|count|len|score)_.*|avatarurl"
)
_NESTED = {"meta", "metadata", "info", "extra", "extra_info"}
# Placeholders of media in text (LLaVA, LLaMA-Factory, InternVL), with the line end after them.
_PLACEHOLDERS = {kind: re.compile(rf"<{kind}>(?:\r?\n)?") for kind in ("image", "audio", "video")}
# Flags of a turn: whether its tokens may carry loss.
_LOSS_FLAGS = {
    *("weight", "train", "training", "trainable", "trained", "do_train", "train_on_turn", "learn"),
    *("loss", "loss_mask", "loss_weight", "loss_scale", "compute_loss"),
}
_NO_LOSS_FLAGS = {"masked", "no_loss", "ignore_loss"}
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_TOOL_PARTS = {"assistant": "tool_use", "user": "tool_result", "tool": "tool_result"}
_NO_TEXT_KEYS = {"role", "from", "type"}


class InvalidRecordError(ValueError):
    """A record that cannot be used; the message is the reject's reason, and begins with its kind and a colon."""


class Fields:
    """The use of the fields of one record.

    Args:
        ignore: names of `long_sft.ignore` or `short_chat.ignore`; a name counts for the record, its turns and parts,
            one that begins with `turn.` for turns alone.
        section: `long_sft` or `short_chat`, for messages; tools are read in `long_sft` alone.
        parts: `drop` to leave out the parts of a turn that are not text.
    """

    def __init__(self, ignore: Collection[str] = (), section: str = "long_sft", parts: NonText = "reject") -> None:
        self.ignore, self.section, self._drops = frozenset(ignore), section, parts == "drop"
        self.uses: dict[str, Use] = {}
        self.amounts = Counter[str]()
        self.problem: str | None = None
        self._kept: dict[str, Any] = {}
        self._read: list[str] = []
        self._others: list[tuple[str, str, list[str]]] = []
        self._without_media: set[str] = set()

    def record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that have a value and are not ignored."""
        self._kept = self._without_ignored(record, "")
        left_out = self._kept.pop(LEFT_OUT, None)
        for name, amount in left_out.items() if isinstance(left_out, Mapping) else ():
            if isinstance(name, str) and isinstance(amount, int):
                self.leave_out(name, amount)
        return self._kept

    @property
    def reads_tools(self) -> bool:
        """Return whether tool calls and their results are part of a sample."""
        return self.section == "long_sft"

    def turn_fields(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a turn that have a value and are not ignored."""
        return self._without_ignored(turn, TURN)

    def use(self, *names: str) -> None:
        """Note fields that a form reads."""
        for name in names:
            self._note(name, "used")

    def read(self, text: str) -> str:
        """Return a text as part of the sample, without placeholders of ignored media, and remember it.

        A remembered text covers fields that repeat a piece of it under another name.
        """
        for kind in sorted(self._without_media):
            text, count = _PLACEHOLDERS[kind].subn("", text)
            if count:
                self._note(f"<{kind}>", "ignored")
        self._read.append(text)
        return text

    def leave_out(self, name: str, amount: int = 1) -> None:
        """Note text of a used field that is not part of the sample, such as an unanswered question."""
        self._note(name, "ignored")
        self.amounts[name] += amount

    def fail(self, name: str, kind: str, why: str) -> None:
        """Note a field that rejects the record. The first problem is the reason; the other fields are noted as well."""
        self._note(name, "rejected")
        drop = self.reads_tools and kind == "unusable part"
        cure = f"remove it, {'set long_sft.parts: drop, ' if drop else ''}or name it in {self.section}.ignore"
        self.problem = self.problem or f"{kind} {_shown(name)}: {why}; {cure}"

    def turn(self, turn: Mapping[str, Any], *, number: int, role: str, used: Collection[str]) -> bool:
        """Note the fields of a turn beside those that are `used`. Return whether its tokens may carry loss."""
        self.use(*(TURN + key for key in used))
        trained = True
        for key, value in turn.items():
            if key in used:
                continue
            if key in _LOSS_FLAGS | _NO_LOSS_FLAGS:
                flag = _boolean(value)
                if flag is None:
                    self.fail(
                        TURN + key, "unclear flag", f"turn {number} ({role}) has {_brief(value)}, not true or false"
                    )
                else:
                    self._note(TURN + key, "used")
                    trained = trained and flag == (key in _LOSS_FLAGS)
            elif key == "mask":
                self.fail(
                    TURN + key, "unclear flag", "it does not say whether masked or other turns have loss; call it train"
                )
            else:
                self._other(TURN + key, key, value, f" in turn {number} ({role})")
        return trained

    def content(self, value: Any, place: str, role: str = "", tools: list[dict[str, Any]] | None = None) -> Any:
        """Return the text of a turn whose content is a list of parts, joined by blank lines; else `value` unchanged.

        tools: receives the tool calls of an assistant turn, or the results of a user or tool turn; None where these
            cannot be read.
        """
        if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
            return value
        texts = []
        for given in value:
            part = self._without_ignored(given, PART)
            kind, text = part.pop("type", None), part.pop("text", None)
            if kind in _TEXT_PARTS and isinstance(text, str):
                texts.append(checked_text(text, place))
                for key, other in part.items():
                    self._other(PART + key, key, other, f" in {place}")
                continue
            name = str(kind or next(iter(part), "part"))
            if tools is not None and kind is not None and kind == _TOOL_PARTS.get(role):
                self._note(PART + name, "used")
                tools.append({**part, "type": kind})
            elif kind == "thinking" and not holds(part.get(kind)):
                self._note(PART + name, "irrelevant")  # reasoning that the agent has not kept
            elif self._drops or name in self.ignore or PART + name in self.ignore:
                self._leave_out_named(PART, name)
            else:
                self.fail(PART + name, "unusable part", f"{place} has a part that is not text")
        return "\n\n".join(texts)

    def check(self, *, has_context: bool, contexts: Collection[str] = ()) -> None:
        """Note the record's other fields, and raise InvalidRecordError if one of them must not be left out.

        Args:
            has_context: whether the sample has a context: without one, long text under an unknown key may be it.
            contexts: names under which long text is a context, although the sample has another.
        """
        self._note_rest(self._kept)
        for name, label, leaves in self._others:
            if self._repeated(leaves):
                self._note(name, "irrelevant", instead=True)
            elif (not has_context or name in contexts) and (size := sum(map(len, leaves))) > LONG_TEXT:
                why = f"{size} characters of text{label} are not read, and the sample has no context"
                cure = "call it context, instruction or response"
                if has_context:
                    why, cure = f"{size} characters of text are not part of the turns", "put them into a turn"
                self.fail(name, "unknown field", f"{why}: {cure}")
        if self.problem is not None:
            raise InvalidRecordError(self.problem)

    def reason(self, error: InvalidRecordError) -> str:
        """Return the reason for rejecting the record, and note the fields that no form has read before the error."""
        reason = self.problem or str(error)
        self._note_rest({key: value for key, value in self._kept.items() if key not in _CONVERSATIONS})
        return reason

    def _note_rest(self, rest: Mapping[str, Any]) -> None:
        """Note the record's fields that no form has read."""
        for key, value in rest.items():
            if key in self.uses or (key in _NESTED and isinstance(value, Mapping)):
                continue
            if value is False and (key == "kto_tag" or (key == "label" and "completion" in self.uses)):
                self.fail(key, "not to be learned", "the record says False, as of an answer that is not preferred")
                continue
            if key in _LOSS_FLAGS | _NO_LOSS_FLAGS and isinstance(value, (list, tuple)) and value:
                self.fail(key, "unclear flag", "it is a list; give each turn its own flag")
                continue
            flag = _boolean(value) if key in _LOSS_FLAGS | _NO_LOSS_FLAGS else None
            # A number is a recorded loss or a sampling weight, unless it is a weight of 0.
            if flag is (key in _NO_LOSS_FLAGS) and (isinstance(value, bool) or key == "weight"):
                self.fail(key, "not to be learned", f"the record says {_brief(value)}")
                continue
            if key == "mask" and isinstance(value, str) and value.lower() not in ("user", "human"):
                self.fail(key, "unclear flag", f"it is {value[:20]!r}; loss counts on assistant turns only")
                continue
            self._other(key, key, value, "")
        for key in _NESTED & self._kept.keys():
            value = self._kept[key]
            if isinstance(value, Mapping) and key not in self.uses:
                for inner, part in self._without_ignored(value, f"{key}.").items():
                    self._other(f"{key}.{inner}", str(inner), part, "")

    def unknown_texts(self) -> list[str]:
        """Return the record's unread fields that hold text under an unknown name."""
        named = {key: value for key, value in self._kept.items() if key not in self.uses and isinstance(value, str)}
        return [
            key
            for key, value in named.items()
            if value.strip() and key not in _UNUSABLE and not _IRRELEVANT.fullmatch(key.lower())
        ]

    def _without_ignored(self, item: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in item.items():
            if is_missing(value):
                continue
            if self.ignore and (key in self.ignore or f"{prefix}{key}" in self.ignore):
                if holds(value):
                    self._leave_out_named(prefix, key)
                continue
            kept[key] = value
        return kept

    def _leave_out_named(self, prefix: str, key: str) -> None:
        self._note(f"{prefix}{key}", "ignored")
        # Texts that are read later hold placeholders of the media that are left out here.
        if key in _MEDIA.split() or prefix == PART:
            self._without_media |= {kind for kind in _PLACEHOLDERS if kind in key.replace("img", "image")}

    def _other(self, name: str, key: str, value: Any, label: str) -> None:
        """Note a field that no form reads."""
        if not holds(value):
            return
        if why := _UNUSABLE.get(key):
            if isinstance(value, (bool, int, float)) or self._repeated([*texts_in(value)]):
                self._note(name, "irrelevant")
            else:
                self.fail(name, "unusable field", f"it is not empty{label}, and {why}")
            return
        leaves = [text for text in texts_in(value) if text.strip()]
        # A document may be in a field such as `file` or `source`: long text is checked whatever its name.
        if _IRRELEVANT.fullmatch(key.lower()) and max(map(len, leaves), default=0) <= LONG_TEXT:
            self._note(name, "irrelevant")
            return
        self._note(name, "unknown")
        if leaves:
            self._others.append((name, label, leaves))

    def _repeated(self, leaves: Sequence[str]) -> bool:
        # A field that repeats a part of the sample, as an answer beside the turns often does, loses nothing if it is
        # not read.
        return bool(leaves) and all(any(leaf in text for text in self._read) for leaf in leaves)

    def _note(self, name: str, use: Use, *, instead: bool = False) -> None:
        before = self.uses.get(name)
        if before is None or instead or _STRENGTH.index(use) > _STRENGTH.index(before):
            self.uses[name] = use


def add_counts(counts: FieldCounts, fields: Fields) -> None:
    """Count a record's fields. Beyond _MOST_FIELDS names, other fields are counted together."""
    amounts = Counter[tuple[str, Use]]()
    for name, use in fields.uses.items():
        shown = _shown(name)
        # Some records have data as keys, such as ids. Each of them would take a line and memory.
        place = shown if shown in counts or len(counts) < _MOST_FIELDS else OTHER_FIELDS, use
        amounts[place] = amounts[place] + fields.amounts[name] if name in fields.amounts else max(1, amounts[place])
    for (name, use), amount in amounts.items():
        of_field = counts.setdefault(name, {})
        of_field[use] = of_field.get(use, 0) + amount


def field_lines(counts: FieldCounts, section: str) -> list[str]:
    """Return a line per use with its fields, most frequent first, and how many records have each."""
    titles: dict[Use, str] = {
        "used": "fields used",
        "ignored": f"left out (by {section}, or no part of a sample)",
        "rejected": "fields that reject their record",
        "irrelevant": "known and not needed",
        "unknown": "unknown and not read",
    }
    lines = []
    for use, title in titles.items():
        found = Counter({name: uses[use] for name, uses in counts.items() if use in uses})
        if found:
            ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
            more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
            lines.append(f"{title}: {', '.join(f'{name} {count:,}' for name, count in ordered[:_SHOWN])}{more}")
    return lines


_SHOWN = 20


def is_missing(value: Any) -> bool:
    """Return whether a field has no value: null, or the NaN that pandas writes for it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def holds(value: Any) -> bool:
    """Return whether a value holds anything: null, blank text, false and what holds only these do not."""
    if value is None or value is False or (isinstance(value, float) and math.isnan(value)):
        return False
    if isinstance(value, str):
        return value.strip() not in ("", "[]", "{}", "null", "None")
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds, value))
    return not isinstance(value, bytes) or bool(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value, including those in nested objects and lists, but not roles and types."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NO_TEXT_KEYS:
                yield from texts_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts_in(inner)


def _boolean(value: Any) -> bool | None:
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def _brief(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, (bool, int, float, str)) else kind_of(value)


def _shown(name: str) -> str:
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name[: _LONGEST_NAME + 1])
    return text if len(name) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"


def checked_text(value: Any, place: str) -> str:
    """Return `value` if it is text that can be stored as UTF-8; else raise InvalidRecordError with its `place`."""
    if not isinstance(value, str):
        raise InvalidRecordError(f"non-string content: {place} is {kind_of(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise InvalidRecordError(f"invalid text: lone surrogate U+{code:04X} in {place}") from None
    return value


def kind_of(value: Any) -> str:
    """Return the name of a JSON value's type."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "text", bytes: "bytes"}
    if isinstance(value, Mapping):
        return "an object"
    return names.get(type(value), "a list" if isinstance(value, Sequence) else type(value).__name__)
