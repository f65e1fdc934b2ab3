"""Make samples of a conversation with several turns: of its last answer, of each answer, or of its observations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from gateau_dagster.config.inputs import Turns
from gateau_dagster.data.record_fields import Fields, InvalidRecordError
from gateau_dagster.data.sample import Turn, text_digest
from gateau_dagster.data.user_turns import Border, split_user_turn

_BETWEEN = "\n\n"
_LONG_REQUEST = 2000  # characters; a longer user turn may hold a document before its request
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}
_FOLLOWS = {
    None: {"user"},
    "system": {"user", "assistant"},
    "user": {"assistant", "system"},
    "assistant": {"user", "tool", "system"},
    "tool": {"user", "tool", "assistant", "system"},
}


class SampleParts(NamedTuple):
    """The texts of a sample. suffix: what tells the samples of one record apart, behind its id."""

    context: str
    instruction: str
    response: str
    border: Border
    conversation: str = ""
    suffix: str = ""


class Trace:
    """A conversation with several turns, or with tools.

    Args:
        turns: of the record, in order.
        tools: the definitions of the tools, in OpenAI's form; empty if the record has none.
        fields: of the record; receives what is left out.

    Raises:
        InvalidRecordError: the turns are not in a possible order, or one has no text.
    """

    def __init__(self, turns: Sequence[Turn], tools: Sequence[Any], fields: Fields) -> None:
        self.turns = _ordered(turns, fields)
        self._tools, self._fields = tools, fields
        calls = [call for turn in self.turns for call in turn.tool_calls]
        names = {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        self.turns = [replace(turn, name=turn.name or names.get(turn.call_id, "")) for turn in self.turns]

    @property
    def is_exchange(self) -> bool:
        """Return whether it is one question and one answer without tools, whose turns are the sample's texts."""
        roles = [turn.role for turn in self.turns if turn.role != "system"]
        return roles == ["user", "assistant"] and not self.turns[-1].tool_calls and not self._tools

    @property
    def content_id(self) -> str:
        """Return an id from the content of all turns."""
        return text_digest(self._messages)[:32]

    @cached_property
    def _messages(self) -> list[str]:
        return [_message(turn) for turn in self.turns]

    @cached_property
    def _unlearned(self) -> list[str]:
        return [_message(replace(turn, trained=False)) for turn in self.turns]

    @cached_property
    def _blocks(self) -> list[str]:
        """Return each turn in the transcript: its speaker, then what it says."""
        speakers = (_SPEAKERS.get(turn.role) or f"Tool {turn.name}".strip() for turn in self.turns)
        return [f"{speaker}:\n{_said(turn)}" for speaker, turn in zip(speakers, self.turns, strict=True)]

    @cached_property
    def _requests(self) -> dict[int, tuple[str, str]]:
        """Return what precedes the request in each user turn that is long enough for a document, and the request."""
        return {place: _request(turn.content) for place, turn in enumerate(self.turns) if turn.role == "user"}

    def parts(self, turns: Turns) -> Iterator[SampleParts]:
        """Return the texts of its samples; see `long_sft.turns`.

        Raises:
            InvalidRecordError: there is none, and the reason.
        """
        if turns == "each":
            return self._of_each()
        final = self.turns[-1]
        if final.role != "assistant" or final.tool_calls:
            end = "tool call" if final.tool_calls else f"{final.role} turn"
            raise InvalidRecordError(f"incomplete trace: it ends with a {end}, not with an answer")
        if not final.trained:
            raise InvalidRecordError("not to be learned: the last response is flagged as one without loss")
        return iter([self._observed() if turns == "observations" else self._up_to(len(self.turns) - 1)])

    def _of_each(self) -> Iterator[SampleParts]:
        answers = [place for place, turn in enumerate(self.turns) if turn.role == "assistant"]
        trained = [place for place in answers if self.turns[place].trained]
        if not trained:
            raise InvalidRecordError("not to be learned: every response is flagged as one without loss")
        if len(trained) < len(answers):
            self._fields.leave_out("answers without loss")
        if answers[-1] + 1 < len(self.turns):
            self._fields.leave_out("turns after the last answer")
        return (self._up_to(place, suffix=f"#{answers.index(place) + 1}") for place in trained)

    def _up_to(self, place: int, suffix: str = "") -> SampleParts:
        """Return the sample whose response is the turn at `place`; of `each`, earlier answers are not learned again."""
        asked = max(number for number in self._requests if number < place)
        above, instruction = self._requests[asked]
        tools = [f"Tools:\n{_BETWEEN.join(map(_dumped, self._tools))}"] if self._tools else []
        document = [f"User:\n{above}"] if above.strip() else []
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
        )

    def _observed(self) -> SampleParts:
        """Return the final answer to the first request, with all observations as context (ACC, arXiv 2605.21850)."""
        observations = [turn.content for turn in self.turns if turn.role == "tool" and turn.content.strip()]
        if not observations:
            raise InvalidRecordError("no observations: no tool has returned text; set long_sft.turns: last")
        above, instruction = self._requests[min(self._requests)]
        self._fields.leave_out("turns that are no observations")
        context = _BETWEEN.join([*([above] if above.strip() else []), *observations])
        return SampleParts(context, instruction, self.turns[-1].content, "conversation")


def _ordered(turns: Sequence[Turn], fields: Fields) -> list[Turn]:
    """Return the turns with one system turn at the beginning, each step of an agent in one turn, and no open end."""
    start = next((place for place, turn in enumerate(turns) if turn.role != "system"), len(turns))
    system = _BETWEEN.join(turn.content for turn in turns[:start] if turn.content.strip())
    rest = list[Turn]()
    for turn in turns[start:]:
        last = rest[-1] if rest else None
        if last and last.role == turn.role == "assistant" and (last.tool_calls or turn.tool_calls):
            text = _BETWEEN.join(part for part in (last.content, turn.content) if part.strip())
            calls, trained = (*last.tool_calls, *turn.tool_calls), last.trained and turn.trained
            rest[-1] = replace(last, content=text, tool_calls=calls, trained=trained)
        elif turn.role != "system" or turn.content.strip():
            rest.append(turn)
    if [turn.role for turn in rest] == ["user"]:
        raise InvalidRecordError("missing response: no assistant turn follows the user turn")
    while len(rest) > 1 and rest[-1].role in ("user", "system"):
        rest.pop()
        fields.leave_out("last question without an answer")
    before = None
    for turn in rest:
        if turn.role not in _FOLLOWS[before] or not rest:
            raise _wrong_order(turns)
        before = turn.role
    if not any(turn.role == "assistant" for turn in rest):
        raise _wrong_order(turns)
    for turn in rest:
        if turn.role != "tool" and not turn.content.strip() and not turn.tool_calls:
            only = "empty response: nothing to learn and nothing to score"
            raise InvalidRecordError(only if turn is rest[-1] else f"empty turn: a turn of the {turn.role} has no text")
    return [*([Turn(role="system", content=system)] if system else []), *rest]


def _wrong_order(turns: Sequence[Turn]) -> InvalidRecordError:
    order = ", ".join(turn.role for turn in turns[:6])
    return InvalidRecordError(
        f"wrong order of turns: {order}; a user turn, then assistant turns with tool or user turns between them wanted"
    )


def _request(content: str) -> tuple[str, str]:
    if len(content) <= _LONG_REQUEST:
        return "", content
    context, instruction, _ = split_user_turn(content)
    return context, instruction


def _said(turn: Turn) -> str:
    """Return a turn's text, and its tool calls as name and arguments, one a line."""
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
