"""Brings answers up to date: those that still hold are kept, a turn is asked once the one before it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import redacted
from gateau_dagster.evaluation.generation.asked import Answer, Asked, Engine, Outcome
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.progress import TimedProgress

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """`kept`, `made`: rows of tables.ANSWERS, by question and turn. rejected: questions without all their answers."""

    kept: Sequence[Row]
    made: Sequence[Row]
    rejected: Sequence[Reject]


def answer_all(
    questions: Sequence[Question],
    before: Sequence[Row],
    engine: Callable[[], Engine],
    *,
    save: Callable[[Sequence[Row]], None],
    progress: TimedProgress,
) -> Answered:
    """Asks what `before` does not answer.

    Args:
        before: rows of tables.ANSWERS that this engine made earlier, of these questions or others.
        engine: asked for once there is something to ask.
        save: called with the rows of each group as it is answered, before the next one is asked.

    Raises:
        GateauError, TransientError: see Engine.answers.
    """
    assert len({each.question_id for each in questions}) == len(questions), "ids are unique"
    work = _Work(questions, _kept(questions, before), progress)
    for turn in range(max((len(each.turns) for each in questions), default=0)):
        asked = work.asked(turn)
        missing = {each.question.question_id for each in asked if (each.question.question_id, turn) not in work.known}
        work.show()
        for outcomes in engine().answers(asked, missing, work.note) if missing else ():
            made = [_row(each) for each in outcomes if isinstance(each, Answer)]
            save(made)
            work.add(outcomes, made)
    return Answered(kept=list(work.kept.values()), made=work.made, rejected=list(work.rejected.values()))


def _row(answer: Answer) -> Row:
    """Return the row of an answer; a server may repeat the key that it was asked with."""
    return asdict(answer) | {"answer": redacted(answer.answer)}


def _kept(questions: Sequence[Question], before: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """Rows that still answer their question, each turn with those before it."""
    rows = {(row["question_id"], row["turn"], row["digest"]): row for row in before}
    kept: dict[tuple[str, int], Row] = {}
    for question in questions:
        for turn in range(len(question.turns)):
            row = rows.get((question.question_id, turn, question.digest))
            if row is None:
                break
            kept[question.question_id, turn] = row
    return kept


@dataclass
class _Work:
    """How far the questions are answered."""

    questions: Sequence[Question]
    kept: dict[tuple[str, int], Row]
    progress: TimedProgress
    made: list[Row] = field(default_factory=list)
    rejected: dict[str, Reject] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = dict(self.kept)
        self._sizes = {each.question_id: _sizes(each) for each in self.questions}
        self._left = sum(sum(sizes) for sizes in self._sizes.values()) - self._size_of(self.kept)
        self._started, self._done = time.monotonic(), 0
        self._told: tuple[float, float] | None = None  # when the time left was last known, and what it was
        self._questions_done, self._turn = 0, 0

    def asked(self, turn: int) -> list[Asked]:
        """All questions that have this turn, whether it is answered or not; the turn that `show` tells of."""
        self._turn = turn
        return [
            Asked(question=each, answers=tuple(self.known[each.question_id, past]["answer"] for past in range(turn)))
            for each in self.questions
            if len(each.turns) > turn and each.question_id not in self.rejected
        ]

    def add(self, outcomes: Sequence[Outcome], made: Sequence[Row]) -> None:
        rows = {(row["question_id"], row["turn"]): row for row in made}
        self.known |= rows
        self.made += made
        size = self._size_of(rows)
        for each in outcomes:
            if isinstance(each, Reject):
                self.rejected[each.sample_id] = each
                told = sum(name == each.sample_id for name, _ in self.known)
                self._left -= sum(self._sizes[each.sample_id][told:])
        self._left, self._done = self._left - size, self._done + size
        self.show()

    def show(self) -> None:
        """Questions done, and the seconds that the rest should take, by the size of what is asked."""
        last = {each.question_id: len(each.turns) - 1 for each in self.questions}
        done = sum(turn == last[name] for name, turn in self.known) + len(self.rejected)
        now = time.monotonic()
        if self._done:
            self._told = now, (now - self._started) * self._left / self._done
        self._report(done)

    def note(self, said: str) -> None:
        """What is at work within a group, of which nothing is known to be done."""
        self._report(self._questions_done, said)

    def _report(self, done: int, note: str = "") -> None:
        self._questions_done = done
        turns = max((len(each.turns) for each in self.questions), default=0)
        if turns > 1:  # no question is done before its last one
            answered = sum(turn == self._turn for _, turn in self.known)
            note = ": ".join(filter(None, [f"turn {self._turn + 1} of {turns}, {answered:,} answered", note]))
        left = None if self._told is None else max(0.0, self._told[1] - (time.monotonic() - self._told[0]))
        self.progress(done, len(self.questions), "questions", note, left=left)

    def _size_of(self, rows: Mapping[tuple[str, int], Row]) -> int:
        return sum(self._sizes[name][turn] for name, turn in rows)


_LETTERS_OF_A_TOKEN = 4
_TOKENS_READ_FOR_ONE_SAID = 16  # a prompt is read at once, an answer is said token by token


def _sizes(question: Question) -> list[int]:
    """About the work of each turn, in letters read."""
    said = question.generation.max_new_tokens * _TOKENS_READ_FOR_ONE_SAID * _LETTERS_OF_A_TOKEN
    sizes, read = [], 0
    for turn in question.turns:
        read += len(turn)
        sizes.append(1 + read + said)
    return sizes
