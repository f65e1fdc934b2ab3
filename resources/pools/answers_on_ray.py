"""Answer questions on a Ray cluster: an engine that sends them to actors, which load the model once."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gateau_dagster.config.execution import RayConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.generation.asked import Asked, Note, Outcome, unwatched
from gateau_dagster.readable import plural
from resources.pools.answering_actor import AnsweringActor, AskedPiece
from resources.pools.node_actor import NodeTask
from resources.pools.piece_queue import MOST
from resources.pools.pool import Warn
from resources.pools.ray_crew import Crew, Done, Lost
from resources.pools.ray_staff import Staff

# Pieces per worker: many, so that uneven ends and lost pieces cost little.
_PIECES = 8
_SECONDS = 0.5
_GIVEN_UP = f"{MOST} workers died over this question, often killed by the system for lack of memory"


class RayAnswers:
    """An engine on a Ray cluster. It lives within `connected` during the step; `close` ends its workers."""

    def __init__(self, ray_config: RayConfig, task: NodeTask, warn: Warn) -> None:
        self._ray, self._warn = ray_config, warn
        self._crew = Crew(ray_config, AnsweringActor, task)

    def answers(
        self, asked: Sequence[Asked], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Implement Engine.answers: yield the outcomes of each piece as a group.

        Raises:
            GateauError: for the reasons of `Staff` and `AskedQueue.give_back`; an actor's own.
        """
        queue = AskedQueue(asked, frozenset(missing), pieces=self._ray.workers * _PIECES, warn=self._warn)
        staff = Staff(self._crew, self._ray.workers, self._warn)
        while staff.serve(queue):
            note(f"{plural(queue.waiting(), 'question')} no worker has begun")
            for event in self._crew.events(_SECONDS):
                staff.heed(event)
                if isinstance(event, Done):
                    queue.took()
                    yield event.answer
                elif isinstance(event, Lost) and event.job is not None:
                    rejected = queue.give_back(event.job, event.how, machine=event.machine)
                    if rejected:
                        yield rejected

    def close(self) -> None:
        """End the workers."""
        self._crew.close()


@dataclass(frozen=True, kw_only=True)
class AskedJob:
    """A piece, and the number of workers that were lost over it."""

    piece: AskedPiece
    losses: int = 0


class AskedQueue:
    """The questions of one turn, in pieces of about equal length, the longest first.

    The pieces divide all questions, so that grouping does not depend on earlier answers. If the longest pieces kill
    their workers, the shortest follow until one is answered, since length may be the cause.
    """

    def __init__(self, asked: Sequence[Asked], missing: frozenset[str], *, pieces: int, warn: Warn) -> None:
        self._warn = warn
        self._waiting: deque[AskedJob] = deque()
        self._rejected, self._answered = 0, False
        for some in _pieces(asked, pieces):
            wanted = missing & {each.question.question_id for each in some}
            if wanted:
                self._waiting.append(AskedJob(piece=AskedPiece(asked=some, missing=wanted)))

    def waiting(self) -> int:
        """Return the number of questions that no worker has."""
        return sum(len(job.piece.missing) for job in self._waiting)

    def take(self) -> AskedJob | None:
        """Return the next piece."""
        if not self._waiting:
            return None
        return self._waiting.pop() if self._in_doubt else self._waiting.popleft()

    def took(self) -> None:
        """Note that a piece is answered."""
        self._answered = True

    def give_back(self, job: AskedJob, loss: str, *, machine: bool) -> list[Outcome]:
        """Put the piece of a lost worker first, halved after three losses; reject a single question.

        Return the reject, if there is one.

        Raises:
            GateauError: several questions were rejected, and none was answered.
        """
        piece, losses = job.piece, job.losses + (not machine)
        self._warn(f"{loss} while it answered {len(piece.missing)} questions (loss {losses} of {MOST})")
        if losses < MOST:
            self._put_back(replace(job, losses=losses))
            return []
        if len(piece.missing) == 1:
            [question] = piece.missing
            return [self._reject(question)]
        names = sorted(piece.missing)
        for half in (names[len(names) // 2 :], names[: len(names) // 2]):
            some = replace(piece, missing=frozenset(half))
            self._put_back(AskedJob(piece=some, losses=MOST - 1))
        return []

    @property
    def _in_doubt(self) -> bool:
        """Return whether workers may die whatever they get."""
        return self._rejected > 0 and not self._answered

    def _put_back(self, job: AskedJob) -> None:
        """Put the job back as the next one."""
        if self._in_doubt:
            self._waiting.append(job)
        else:
            self._waiting.appendleft(job)

    def _reject(self, question: str) -> Reject:
        self._rejected += 1
        if self._rejected >= MOST and not self._answered:
            raise GateauError(
                f"Workers die over each question, and none was answered: {self._rejected} questions took {MOST} "
                "workers each. Often the system kills them for lack of memory; Ray's logs on the nodes say more."
            )
        return Reject(sample_id=question, reason=_GIVEN_UP, short_of_memory=True)


def _pieces(asked: Sequence[Asked], most: int) -> Iterator[list[Asked]]:
    """Yield at most `most` pieces of questions of about the same length, since padding is work."""
    sizes = [_size(each) for each in asked]
    target, piece, size = sum(sizes) / most, list[Asked](), 0
    for place in sorted(range(len(asked)), key=lambda each: (-sizes[each], each)):
        piece.append(asked[place])
        size += sizes[place]
        if size >= target:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _size(asked: Asked) -> int:
    """Return the estimated characters of the prompt and of the answer."""
    said = asked.question.generation.max_new_tokens * 4
    return 1 + said + sum(len(turn) for turn in asked.question.turns[: asked.turn + 1])
