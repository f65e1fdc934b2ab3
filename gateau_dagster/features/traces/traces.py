"""Make samples of a conversation with several turns: of its last answer, of each answer, or of its observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gateau_dagster.config.inputs import Turns
from gateau_dagster.data.conversation import BETWEEN, SampleParts, answer_digests, beginnings, dumped, is_empty
from gateau_dagster.data.record_fields import Fields, InvalidRecordError
from gateau_dagster.data.sample import Beginnings, Turn, text_digest
from gateau_dagster.data.user_turns import split_user_turn

_EMPTY = "empty response: nothing to learn and nothing to score"
_LONG_REQUEST = 2000  # characters; a longer user turn may hold a document before its request
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}


class Trace:
    """A conversation with several turns, or with tools.

    Args:
        turns: the record's turns, see `conversation.ordered`.
        tools: the definitions of the tools, in OpenAI's form; empty if the record has none.
        fields: the record's fields; notes the turns that are left out.
    """

    def __init__(self, turns: Sequence[Turn], tools: Sequence[Any], fields: Fields) -> None:
        self.turns, self._tools, self._fields = turns, tools, fields

    @property
    def content_id(self) -> str:
        """Return an id from the content of all turns and the tools."""
        return text_digest([*self._messages, *map(dumped, self._tools)])[:32]

    @cached_property
    def _messages(self) -> list[str]:
        return [_message(turn) for turn in self.turns]

    @cached_property
    def _unlearned(self) -> list[str]:
        return [_message(replace(turn, trained=False)) for turn in self.turns]

    @cached_property
    def _digests(self) -> list[int]:
        return answer_digests(self.turns, self._tools)

    @cached_property
    def _beginnings(self) -> Beginnings:
        return beginnings(self.turns, self._digests)

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
        if is_empty(final):
            raise InvalidRecordError(_EMPTY)
        if final.role != "assistant" or final.tool_calls:
            end = "tool call" if final.tool_calls else f"{final.role} turn"
            raise InvalidRecordError(f"incomplete trace: it ends with a {end}, not with an answer")
        if not final.trained:
            raise InvalidRecordError("not to be learned: the last response is flagged as one without loss")
        return iter([self._observed() if turns == "observations" else self._up_to(len(self.turns) - 1)])

    def _of_each(self) -> Iterator[SampleParts]:
        answers = [place for place, turn in enumerate(self.turns) if turn.role == "assistant" and not is_empty(turn)]
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
        tools = [f"Tools:\n{BETWEEN.join(map(dumped, self._tools))}"] if self._tools else []
        document = [f"User:\n{above}"] if above.strip() else []
        system = self._blocks[: self.turns[0].role == "system"]
        context = BETWEEN.join([*tools, *self._blocks[:asked], *document, *self._blocks[asked + 1 : place]])
        definitions = f', "tools": {dumped(self._tools)}' if self._tools else ""
        messages = ", ".join([*(self._unlearned if suffix else self._messages)[:place], self._messages[place]])
        return SampleParts(
            context=context,
            instruction=instruction,
            response=_said(self.turns[place]),
            border="conversation",
            conversation=f'{{"messages": [{messages}]{definitions}}}',
            suffix=suffix,
            beginnings=Beginnings(turns=place + 1, ends=(self._digests[place],)) if suffix else self._beginnings,
            instructions=len(BETWEEN.join([*tools, *system])),
        )

    def _observed(self) -> SampleParts:
        """Return the final answer to the first request, with all observations as context (ACC, arXiv 2605.21850)."""
        observations = [turn.content for turn in self.turns if turn.role == "tool" and turn.content.strip()]
        if not observations:
            raise InvalidRecordError("no observations: no tool has returned text; set long_sft.turns: last")
        above, instruction = self._requests[min(self._requests)]
        self._fields.leave_out("turns that are no observations", len(self.turns) - len(observations) - 2)
        context = BETWEEN.join([*([above] if above.strip() else []), *observations])
        answer = self.turns[-1].content
        return SampleParts(context, instruction, answer, "conversation", beginnings=self._beginnings)


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
    return dumped(message)
