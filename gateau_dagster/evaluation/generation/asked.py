"""Interface of an engine: what it is asked, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.questions import Question


@dataclass(frozen=True, kw_only=True)
class AskedTurn:
    """A turn of a question that needs an answer; `answers`: those to the turns before it."""

    question: Question
    answers: tuple[str, ...] = ()

    @property
    def turn(self) -> int:
        """Return the number of the turn, 0 for the first one."""
        return len(self.answers)

    @property
    def draws(self) -> str:
        """Return the seed of a sampled answer, which does not depend on what is answered beside it."""
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
"""Callback for a description of the current work; called often."""


def unwatched(note: str) -> None:
    """Ignore the note."""
    del note


class Engine(Protocol):
    """An engine that answers: this process, or a server."""

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Yield groups of outcomes as they come, one for each of `asked` whose question is in `missing`.

        `asked` holds all questions of this turn, answered or not, because batches must not depend on what was answered
        before a run was killed. `note` is called within a group, which may take minutes.

        Raises:
            GateauError, TransientError: the engine cannot answer any question.
        """
        ...
