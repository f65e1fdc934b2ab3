"""Answer questions of benchmarks in the workers of a pool."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.generation.answering import AskedTurn, Engine, Note, Outcome, unwatched
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.readable import plural
from gateau_dagster.registry import registered
from gateau_dagster.resources import pools
from gateau_dagster.resources.pools.crew import Crew, Crews, Done, Lost
from gateau_dagster.resources.pools.piece_queue import Job, JobQueue
from gateau_dagster.resources.pools.pool import Warn, chosen_pool
from gateau_dagster.resources.pools.worker import Worker

Answers: TypeAlias = Callable[[Config, Placed, str, Warn], AbstractContextManager[Engine]]
"""Yields an engine that answers with a placed model and a template; the last argument receives warnings."""
# Pieces per worker: many, so that uneven ends and lost pieces cost little.
_PIECES = 8


def pool_answers(config: Config) -> Answers | None:
    """Return the engine of the pool that `execution.pool` names; None if the step's process answers."""
    found = {each.name: each for each in registered(pools, Crews)}
    crews = found.get(config.execution.pool_name)
    return None if crews is None else partial(_answers, crews)


@contextmanager
def _answers(crews: Crews, config: Config, placed: Placed, template: str, warn: Warn) -> Iterator[Engine]:
    workers = len(chosen_pool(config).devices(config, config.scoring.device, 1))
    with crews.crew(config, placed, template, AnsweringWorker, warn) as crew:
        yield CrewAnswers(crew=crew, pieces=workers * _PIECES)


@dataclass(frozen=True, kw_only=True)
class AskedPiece:
    """Questions that are answered together: those of `asked` that are in `missing`; see `Engine.answers`."""

    asked: Sequence[AskedTurn]
    missing: frozenset[str]

    @property
    def ids(self) -> Sequence[str]:
        """Return the ids of its questions."""
        return sorted(self.missing)

    def part(self, ids: Sequence[str]) -> "AskedPiece":
        """Return the piece restricted to these questions."""
        return replace(self, missing=frozenset(ids))


class AnsweringWorker(Worker):
    """A worker that answers questions. `WorkerTask.more` is the template of the prompts."""

    def _done(self, piece: AskedPiece) -> list[Outcome]:
        from gateau_dagster.features.evaluation.generation.in_process import InProcess  # loads torch

        config, loaded = self._task.config, self._model()
        self._change(replace(self._status, in_hand=None))  # a pass takes many
        prompts = PromptBuilder(
            tokenizer=loaded.tokenizer,
            template=self._task.more,
            max_length=config.scoring.max_length,
            input_length=evaluation_of(config).input_length,
        )
        engine = InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)
        return [outcome for group in engine.answers(piece.asked, piece.missing) for outcome in group]


@dataclass(frozen=True, kw_only=True)
class CrewAnswers:
    """An engine whose workers are a crew. pieces: about how many the questions of a turn are divided into."""

    crew: Crew[Any]
    pieces: int

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Implement Engine.answers: yield the outcomes of each piece as a group.

        Raises:
            GateauError: for the reasons of `Crew` and `JobQueue.give_back`; a worker's own.
        """
        queue = AskedQueue(asked, frozenset(missing), pieces=self.pieces, warn=self.crew.warn, cure=self.crew.cure)
        while self.crew.serve(queue):
            note(f"{plural(queue.waiting(), 'question')} no worker has begun")
            for event in self.crew.events():
                if isinstance(event, Done):
                    queue.took(event.job)
                    yield event.answer
                elif isinstance(event, Lost):
                    assert event.member.job is not None
                    rejected = queue.give_back(event.member.job, event.how, machine=event.machine)
                    if rejected is not None:
                        yield [rejected]


class AskedQueue(JobQueue):
    """The questions of one turn, in pieces of about equal length, the longest first.

    The pieces divide all questions, so that grouping does not depend on earlier answers. If the longest pieces kill
    their workers, the shortest follow until one is answered, since length may be the cause.
    """

    def __init__(
        self, asked: Sequence[AskedTurn], missing: frozenset[str], *, pieces: int, warn: Warn, cure: str
    ) -> None:
        given_up = "workers died while they answered this question. The system often kills them for lack of memory"
        super().__init__(warn, one="question", cure=cure, given_up=given_up)
        for some in _pieces(asked, pieces):
            wanted = missing & {each.question.question_id for each in some}
            if wanted:
                self._returned.append(Job(piece=AskedPiece(asked=some, missing=wanted)))

    def waiting(self) -> int:
        """Return the number of questions that no worker has."""
        return sum(len(job.piece.missing) for job in self._returned)

    def take(self) -> Job | None:
        """Return the next piece."""
        return self._take_returned() if self._returned else None


def _pieces(asked: Sequence[AskedTurn], most: int) -> Iterator[list[AskedTurn]]:
    """Yield at most `most` pieces of questions of about the same length, since padding is work."""
    sizes = [_size(each) for each in asked]
    target, piece, size = sum(sizes) / most, list[AskedTurn](), 0
    for place in sorted(range(len(asked)), key=lambda each: (-sizes[each], each)):
        piece.append(asked[place])
        size += sizes[place]
        if size >= target:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _size(asked: AskedTurn) -> int:
    said = asked.question.generation.max_new_tokens * 4
    return 1 + said + sum(len(turn) for turn in asked.question.turns[: asked.turn + 1])
