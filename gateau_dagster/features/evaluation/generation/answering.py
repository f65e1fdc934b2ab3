"""Bring answers up to date: keep valid answers, and ask each turn when the previous turn is answered."""

# Why turn by turn over all questions, and not question by question: a batch needs prompts that are known at the same
# time. The second turns of all questions are, once the first turns are answered. The price is that each turn reads the
# earlier ones again.
#
# Answers are saved group by group, before the next group is asked. What makes an answer valid is a digest of its
# question and of the model and settings. So other questions, or a killed run, leave it valid.

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import polars as pl

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import redacted
from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.config import EngineConfig, evaluation_of
from gateau_dagster.features.evaluation.server_client import partly_read
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.progress import TimedProgress
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.tables import UNREAD

if TYPE_CHECKING:
    from gateau_dagster.config import Config


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
        """Return the seed of a sampled answer, which does not depend on other answers."""
        return f"{self.question.generation.seed}:{self.question.question_id}:{self.turn}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A row of tables.ANSWERS and UNREAD, field by field."""

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
    unread_tokens: int | None = None


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
        """Yield groups of outcomes as they arrive, one outcome for each of `asked` with a question in `missing`.

        `asked` holds all questions of this turn, answered or not, because batches must not depend on the answers from
        before a kill. `note` is called within a group, which may take minutes.

        Raises:
            GateauError, TransientError: the engine cannot answer any question.
        """
        ...


# Raise it when the same question to the same model gets another answer.
CODE_VERSION = "2"


def generation_settings(config: Config, frame: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Return the settings of prompts and engine, without the engine's address.

    frame: the change that the chat template of the trained model makes, from models.chat_rendering.frame_change.
    """
    # Without evaluation.template, models that are not trained here use their own chat template.
    return {**_generation(config), **rendering_settings(evaluation_of(config).template or "chat", frame)}


def _generation(config: Config) -> dict[str, Any]:
    evaluation, scoring = evaluation_of(config), config.scoring
    return {
        "evaluation.template": evaluation.template or f"scoring: {scoring.template}",
        "evaluation.input_length": evaluation.input_length or f"scoring: {scoring.max_length}",
        "evaluation.engine": None if evaluation.engine is None else _engine(evaluation.engine),
        "scoring.dtype": scoring.dtype,
    }


def _engine(engine: EngineConfig) -> Any:
    changed = engine.changed_sampling
    return {"model": engine.model, **changed} if changed else engine.model


def server_means(engine: EngineConfig) -> str:
    """Return a digest of the settings that affect whether a server answers, but not its answers.

    When the digest changes, rejected questions are asked again (Asset.means).
    """
    return fingerprint(engine.model_dump(include={"base_url", "key", "retries", "timeout", "token_limit"}))


def template_of(config: Config, *, trained_here: bool) -> str:
    """Return the template of a model: its training template or, for untrained models, its chat template."""
    return evaluation_of(config).template or (config.scoring.template if trained_here else "chat")


def answer_scorer(config: Config, model: str, *, trained_here: bool, frame: tuple[str, str] = ("", "")) -> str:
    """Return the digest of the model and the settings of an answer; each question's digest covers the rest.

    model: digest of the model. frame: as in `generation_settings`.
    """
    template = template_of(config, trained_here=trained_here)
    how = {**_generation(config), "template": template, **rendering_settings(template, frame)}
    return fingerprint({"code": CODE_VERSION, "model": model, "settings": how})


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AnsweringResult:
    """The result of `answer_all`.

    `kept`, `made`: rows of tables.ANSWERS, by question and turn. rejected: questions without all their answers.
    """

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
) -> AnsweringResult:
    """Ask every turn of the questions that `before` does not answer.

    Args:
        before: rows of tables.ANSWERS that this engine made earlier, of these or other questions.
        engine: called if there is something to ask.
        save: called with the rows of each answered group, before the next group is asked.

    Raises:
        GateauError, TransientError: Engine.answers raises them.
    """
    assert len({each.question_id for each in questions}) == len(questions), "ids are unique"
    work = _Answering(questions, _kept(questions, before), progress)
    for turn in range(max((len(each.turns) for each in questions), default=0)):
        asked = work.asked(turn)
        missing = {each.question.question_id for each in asked if (each.question.question_id, turn) not in work.known}
        work.show()
        for outcomes in engine().answers(asked, missing, work.note) if missing else ():
            made = [_row(each) for each in outcomes if isinstance(each, Answer)]
            save(made)
            work.add(outcomes, made)
    return AnsweringResult(kept=list(work.kept.values()), made=work.made, rejected=list(work.rejected.values()))


def _row(answer: Answer) -> Row:
    # A server may repeat the key of the request.
    return asdict(answer) | {"answer": redacted(answer.answer)}


def _kept(questions: Sequence[Question], before: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """Return the rows that still answer their question; a turn is kept only with all earlier turns."""
    rows = {(row["question_id"], row["turn"], row["digest"]): row for row in before}
    kept: dict[tuple[str, int], Row] = {}
    for question in questions:
        for turn in range(len(question.turns)):
            row = rows.get((question.question_id, turn, question.digest))
            # A later turn's prompt contains this answer, so an answer to it cannot be kept without this one.
            if row is None:
                break
            kept[question.question_id, turn] = row
    return kept


@dataclass
class _Answering:
    """The progress of answering the questions."""

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
        self._told: tuple[float, float] | None = None  # when the time left was last estimated, and the estimate
        self._questions_done, self._turn = 0, 0

    def asked(self, turn: int) -> list[AskedTurn]:
        """Return all questions that have this turn, answered or not; make it the turn that `show` reports."""
        self._turn = turn
        return [
            AskedTurn(
                question=each, answers=tuple(self.known[each.question_id, past]["answer"] for past in range(turn))
            )
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
        """Report the questions done, and the seconds left, estimated from the size of the remaining turns."""
        last = {each.question_id: len(each.turns) - 1 for each in self.questions}
        done = sum(turn == last[name] for name, turn in self.known) + len(self.rejected)
        now = time.monotonic()
        if self._done:
            self._told = now, (now - self._started) * self._left / self._done
        self._report(done)

    def note(self, said: str) -> None:
        """Report the work within a group without changing the counts."""
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
_TOKENS_READ_FOR_ONE_SAID = 16  # a prompt is read in one pass, an answer is generated token by token


def _sizes(question: Question) -> list[int]:
    """Estimate the work of each turn, in letters read."""
    said = question.generation.max_new_tokens * _TOKENS_READ_FOR_ONE_SAID * _LETTERS_OF_A_TOKEN
    sizes, read = [], sum(len(text) for _, text in question.earlier)
    for turn in question.turns:
        read += len(turn)
        sizes.append(1 + read + said)
    return sizes


def partly_read_answers(answers: pl.DataFrame, *, at_least: bool = False) -> str:
    """Return a sentence about prompts that a server read only in part, by `prompt_tokens` and UNREAD; empty if none."""
    if UNREAD.name not in answers.columns:
        return ""
    unread = answers.drop_nulls(UNREAD.name).select("prompt_tokens", UNREAD.name)
    counts = [(read + lost, read) for read, lost in unread.iter_rows()]
    return partly_read(answers.height, counts, at_least=at_least)
