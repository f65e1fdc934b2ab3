"""What an engine is asked, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.questions import Question


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A turn of a question that is to be answered; `answers`: those to the turns before it."""

    question: Question
    answers: tuple[str, ...] = ()

    @property
    def turn(self) -> int:
        """0 for the first one."""
        return len(self.answers)

    @property
    def draws(self) -> str:
        """What seeds the draws of a sampled answer: the same whatever is answered beside it."""
        return f"{self.question.generation.seed}:{self.question.question_id}:{self.turn}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A row of tables.ANSWERS, field by field."""

    question_id: str
    turn: int
    digest: str
    prompt: str
    answer: str
    prompt_tokens: int
    cut_tokens: int
    answer_tokens: int
    finish_reason: str
    seconds: float


Outcome: TypeAlias = Answer | Reject
Note: TypeAlias = Callable[[str], None]
"""Is told what is at work, for people who watch; called often."""


def unwatched(note: str) -> None:
    """Where nobody watches."""
    del note


class Engine(Protocol):
    """What answers: this process, or a server."""

    def answers(
        self, asked: Sequence[Asked], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Groups of outcomes, as they come, one for each of `asked` whose question is in `missing`.

        `asked` is all that is asked of this turn, answered or not: what is answered together must not depend on what
        was answered before a run was killed. `note`: a group may take minutes.

        Raises:
            GateauError, TransientError: the engine cannot answer, whatever it is asked.
        """
        ...
