"""Make samples of a conversation with several turns: of its last answer, of each answer, or of its observations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from gateau_dagster.config.inputs import Turns
from gateau_dagster.data.record_fields import Fields, InvalidRecordError
from gateau_dagster.data.sample import Beginnings, Turn, text_digest
from gateau_dagster.data.user_turns import Border, split_user_turn

_BETWEEN = "\n\n"
_EMPTY = "empty response: nothing to learn and nothing to score"
_LONG_REQUEST = 2000  # characters; a longer user turn may hold a document before its request
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}
_FOLLOWS = {
    None: {"user"},
    "system": {"user", "assistant", "tool"},
    "user": {"assistant", "system"},
    "assistant": {"user", "tool", "system"},
    "tool": {"user", "tool", "assistant", "system"},
}


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


class Trace:
    """A conversation with several turns, or with tools.

    Args:
        turns: the record's turns, in order.
        tools: the definitions of the tools, in OpenAI's form; empty if the record has none.
        fields: the record's fields; notes the turns that are left out.

    Raises:
        InvalidRecordError: the turns are not in a possible order.
    """

    def __init__(self, turns: Sequence[Turn], tools: Sequence[Any], fields: Fields) -> None:
        self._tools, self._fields = tools, fields
        self.turns = _joined(turns)
        if not self.is_exchange:
            self.turns = _named(_ordered(self.turns or list(turns), fields))

    @property
    def is_exchange(self) -> bool:
        """Return whether it is one question and one answer without tools, at most after a system turn."""
        roles = [turn.role for turn in self.turns]
        spoken = roles[roles[:1] == ["system"] :]
        return spoken == ["user", "assistant"] and not self.turns[-1].tool_calls and not self._tools

    @property
    def content_id(self) -> str:
        """Return an id from the content of all turns and the tools."""
        return text_digest([*self._messages, *map(_dumped, self._tools)])[:32]

    @cached_property
    def _messages(self) -> list[str]:
        return [_message(turn) for turn in self.turns]

    @cached_property
    def _unlearned(self) -> list[str]:
        return [_message(replace(turn, trained=False)) for turn in self.turns]

    @cached_property
    def _digests(self) -> list[int]:
        """Return 64 bits of the digest of the tools and all turns up to each answer, 0 for other turns.

        The ids of calls do not count.
        """
        digest, digests = hashlib.sha256(_dumped(self._tools).encode()), list[int]()
        for turn in self.turns:
            calls = [text for call in turn.tool_calls for text in call["function"].values()]
            texts = (turn.name, turn.content, *calls)
            digest.update("".join([turn.role, *map(" {}".format, map(len, texts)), " ", *texts]).encode())
            is_answer = turn.role == "assistant"
            digests.append(int.from_bytes(digest.copy().digest()[:8], "big") if is_answer else 0)
        return digests

    @cached_property
    def beginnings(self) -> Beginnings:
        """Return the digests of the conversation, which ends with an answer."""
        ends, unlearned, bits, answers = list[int](), list[int](), 0, 0
        for turn, digest in zip(self.turns, self._digests, strict=True):
            if turn.role != "assistant":
                continue
            bits, answers = bits | (not turn.trained) << answers, answers + 1
            if not turn.tool_calls:
                ends.append(digest)
                unlearned.append(bits)
        return Beginnings(turns=len(self.turns), ends=tuple(ends), unlearned=tuple(unlearned) if bits else ())

    @cached_property
    def _blocks(self) -> list[str]:
        speakers = (_SPEAKERS.get(turn.role) or f"Tool {turn.name}".strip() for turn in self.turns)
        return [f"{speaker}:\n{_said(turn)}" for speaker, turn in zip(speakers, self.turns, strict=True)]

    @cached_property
    def _requests(self) -> dict[int, tuple[str, str]]:
        # Each user turn is split into a document and the request behind it. Only a long turn is split: a short one is
        # a request as a whole.
        asked = [(place, turn.content) for place, turn in enumerate(self.turns) if turn.role == "user"]
        return {
            place: split_user_turn(content)[:2] if len(content) > _LONG_REQUEST else ("", content)
            for place, content in asked
        }

    def parts(self, turns: Turns) -> Iterator[SampleParts]:
        """Return the texts of the samples that `turns` names; see `long_sft.turns`.

        Raises:
            InvalidRecordError: the conversation gives no sample.
        """
        if turns == "each":
            return self._of_each()
        final = self.turns[-1]
        if _is_empty(final):
            raise InvalidRecordError(_EMPTY)
        if final.role != "assistant" or final.tool_calls:
            end = "tool call" if final.tool_calls else f"{final.role} turn"
            raise InvalidRecordError(f"incomplete trace: it ends with a {end}, not with an answer")
        if not final.trained:
            raise InvalidRecordError("not to be learned: the last response is flagged as one without loss")
        return iter([self._observed() if turns == "observations" else self._up_to(len(self.turns) - 1)])

    def _of_each(self) -> Iterator[SampleParts]:
        answers = [place for place, turn in enumerate(self.turns) if turn.role == "assistant" and not _is_empty(turn)]
        if not answers:
            raise InvalidRecordError(_EMPTY)
        trained = [place for place in answers if self.turns[place].trained]
        if not trained:
            raise InvalidRecordError("not to be learned: every response is flagged as one without loss")
        if len(trained) < len(answers):
            self._fields.leave_out("answers without loss", len(answers) - len(trained))
        if answers[-1] + 1 < len(self.turns):
            self._fields.leave_out("turns after the last answer", len(self.turns) - answers[-1] - 1)
        return (self._up_to(place, suffix=f"#{answers.index(place) + 1}") for place in trained)

    def _up_to(self, place: int, suffix: str = "") -> SampleParts:
        """Return the sample whose response is the turn at `place`. With a `suffix`, only this one is learned."""
        asked = max(number for number in self._requests if number < place)
        above, instruction = self._requests[asked]
        tools = [f"Tools:\n{_BETWEEN.join(map(_dumped, self._tools))}"] if self._tools else []
        document = [f"User:\n{above}"] if above.strip() else []
        system = self._blocks[: self.turns[0].role == "system"]
        context = _BETWEEN.join([*tools, *self._blocks[:asked], *document, *self._blocks[asked + 1 : place]])
        definitions = f', "tools": {_dumped(self._tools)}' if self._tools else ""
        messages = ", ".join([*(self._unlearned if suffix else self._messages)[:place], self._messages[place]])
        return SampleParts(
            context=context,
            instruction=instruction,
            response=_said(self.turns[place]),
            border="conversation",
            conversation=f'{{"messages": [{messages}]{definitions}}}',
            suffix=suffix,
            beginnings=Beginnings(turns=place + 1, ends=(self._digests[place],)) if suffix else self.beginnings,
            instructions=len(_BETWEEN.join([*tools, *system])),
        )

    def _observed(self) -> SampleParts:
        """Return the final answer to the first request, with all observations as context (ACC, arXiv 2605.21850)."""
        observations = [turn.content for turn in self.turns if turn.role == "tool" and turn.content.strip()]
        if not observations:
            raise InvalidRecordError("no observations: no tool has returned text; set long_sft.turns: last")
        above, instruction = self._requests[min(self._requests)]
        self._fields.leave_out("turns that are no observations", len(self.turns) - len(observations) - 2)
        context = _BETWEEN.join([*([above] if above.strip() else []), *observations])
        answer = self.turns[-1].content
        return SampleParts(context, instruction, answer, "conversation", beginnings=self.beginnings)


def _named(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the name of the tool in each result, from the last call before it that has its id."""
    named, names = list[Turn](), dict[str, str]()
    for turn in turns:
        names.update((call["id"], call["function"]["name"]) for call in turn.tool_calls if "id" in call)
        named.append(replace(turn, name=turn.name or names.get(turn.call_id, "")))
    return named


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns without blank system turns. Join adjacent system turns, and the turns of an agent's step."""
    joined = list[Turn]()
    for turn in turns:
        last = joined[-1] if joined else None
        if turn.role == "system" and not turn.content.strip():
            continue
        if last and last.role == turn.role and (turn.role == "system" or last.tool_calls or turn.tool_calls):
            joined[-1] = _together(last, turn)
        else:
            joined.append(turn)
    return joined


def _together(first: Turn, second: Turn) -> Turn:
    return replace(
        first,
        content=_BETWEEN.join(turn.content for turn in (first, second) if turn.content.strip()),
        tool_calls=(*first.tool_calls, *second.tool_calls),
        trained=first.trained and second.trained,
    )


def _ordered(turns: list[Turn], fields: Fields) -> list[Turn]:
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
        if _is_empty(turn) and place < len(turns):
            fields.leave_out("turns without text")
            gap = True
            continue
        if gap and kept and kept[-1].role == turn.role != "tool":
            kept[-1] = _together(kept[-1], turn)
        else:
            kept.append(turn)
        gap = False
    return kept


def _is_empty(turn: Turn) -> bool:
    return turn.role != "tool" and not turn.content.strip() and not turn.tool_calls


def _wrong_order(turns: Sequence[Turn]) -> InvalidRecordError:
    order = ", ".join(turn.role for turn in turns[:6])
    return InvalidRecordError(
        f"wrong order of turns: {order}; a user turn, then assistant turns with tool or user turns between them wanted"
    )


def _said(turn: Turn) -> str:
    calls = (f"{call['function']['name']} {call['function']['arguments']}" for call in turn.tool_calls)
    return "\n".join([*([turn.content] if turn.content or not turn.tool_calls else []), *calls])


def _message(turn: Turn) -> str:
    """Return a turn in OpenAI's form, as JSON."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = list(turn.tool_calls)
    if turn.role == "tool":
        message |= {key: text for key, text in (("tool_call_id", turn.call_id), ("name", turn.name)) if text}
    if turn.role == "assistant" and not turn.trained:
        message["trained"] = False
    return _dumped(message)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
