"""Queue the work of a step in pieces, and handle the pieces of lost workers: one policy for all pools.

Shards are taken in order. Workers that share a shard get pieces of it, in blocks of shards: within a block the longest
samples come first, so that no worker is left alone with one at the end. The shards of a block finish together, so that
a run that dies has lost little.
"""

# Why a queue, and no fixed shares: times of samples differ by their lengths, and speeds by machine. A queue balances
# both. A loss costs a piece, and not a share of the step.
#
# Why losses are counted: a sample that needs more memory than a worker has kills each worker that gets it. Without a
# count, this would have no end. Three losses tell it from a worker that died of something else, at the price of three
# loads of the model.
#
# When another way is better: `processes` takes whole shards as pieces. Its rows are those of one process to the bit,
# and at the end workers wait for the last shard.

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_tables import Piece
from gateau_dagster.readable import plural
from gateau_dagster.resources.pools.pool import Costs, Warn

MOST = 3  # workers that may be lost over a sample
_NODES = 3  # lost machines per piece that are not blamed on it
# A block has work for this many rounds of all workers, so that an uneven end costs little.
_ROUNDS = 4
# Share of a block per piece while the speed of the workers is unknown.
_FIRST_SHARE = 1 / 8
_LEAST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A piece to work on, its estimated work, and the numbers of workers and machines lost over it.

    piece: has `ids`, and `part` to restrict it to some of them.
    """

    piece: Any
    cost: float = 1.0
    losses: int = 0
    machines: int = 0

    def apart(self, in_hand: frozenset[str] | None) -> "list[Job]":
        """Split a piece that has lost a worker: the suspects alone, the others without their losses."""
        ids: list[str] = [*self.piece.ids]
        suspects = [each for each in ids if each in (in_hand or ())]
        others = [each for each in ids if each not in (in_hand or ())]
        if suspects and len(ids) > 1:
            return [self._part([each], self.losses) for each in suspects] + ([self._part(others, 0)] if others else [])
        if self.losses >= MOST:
            half = len(ids) // 2
            return [self._part(ids[:half], MOST - 1), self._part(ids[half:], MOST - 1)]
        return [self]

    def _part(self, ids: Sequence[str], losses: int) -> "Job":
        cost = self.cost * len(ids) / len(self.piece.ids)
        return replace(self, piece=self.piece.part(ids), cost=cost, losses=losses)


class JobQueue(ABC):
    """The jobs of lost workers, which come next; a subclass has the others.

    Args:
        warn: receives which worker was lost over what.
        one: what a piece consists of, as a noun.
        cure: what to change if every worker dies, as a sentence.
        given_up: the reason of a reject, after the number of workers.
    """

    def __init__(self, warn: Warn, *, one: str, cure: str, given_up: str) -> None:
        self._warn, self._one, self._cure, self._given_up = warn, one, cure, given_up
        self._returned = deque[Job]()
        self._rejected, self._any_done = 0, False

    @abstractmethod
    def waiting(self) -> int:
        """Return how many workers could get a piece now, or more."""

    @abstractmethod
    def take(self) -> Job | None:
        """Return the next piece."""

    def took(self, job: Job, seconds: float = 0.0) -> None:
        """Note that a piece is done."""
        del job, seconds
        self._any_done = True

    def give_back(
        self, job: Job, loss: str, in_hand: frozenset[str] | None = None, *, machine: bool = False
    ) -> Reject | None:
        """Take back the piece of a lost worker, which comes next.

        What the worker had in hand is given out one by one from now on. If that is unknown, a piece that has lost three
        workers is halved. A sample that has lost three workers is rejected and returned.

        Args:
            job: what is left of the piece that the worker had, maybe nothing.
            loss: which worker was lost, and how.
            in_hand: the samples that it was scoring; None: unknown.
            machine: whether its machine was lost, too, which is rarely a sample's fault.

        Raises:
            GateauError: three workers died over a piece before its first sample, or several samples were rejected
                and none was ever done.
        """
        if not job.piece.ids:
            self._warn(f"{loss}; all its rows are saved")
            return None
        lost = f"{loss} while it {self._doing(job)}"
        if machine and job.machines < _NODES:
            self._put_back([replace(job, machines=job.machines + 1)])
            self._warn(f"{lost}; another worker takes them")
            return None
        job = replace(job, losses=job.losses + 1)
        if job.losses >= MOST and in_hand is not None and not in_hand:
            raise GateauError(
                "execution.workers_die",
                f"{lost}. {MOST} workers died before they finished a sample of it. The system often kills workers for "
                f"lack of memory. {self._cure}",
            )
        if job.losses >= MOST and len(job.piece.ids) == 1:
            [name] = job.piece.ids
            self._warn(f"{lost}; worker {MOST} of {MOST} that died over {name}, which is rejected")
            return self._reject(name)
        self._warn(f"{lost}; another worker takes them, loss {job.losses} of {MOST}")
        self._put_back(job.apart(in_hand))
        return None

    @property
    def _in_doubt(self) -> bool:
        # After a reject, and before anything is done, workers may die whatever they get. Then the last pieces come
        # first, which are the shortest.
        return self._rejected > 0 and not self._any_done

    def _put_back(self, jobs: Sequence[Job]) -> None:
        if self._in_doubt:
            self._returned.extend(reversed(jobs))
        else:
            self._returned.extendleft(reversed(jobs))

    def _take_returned(self) -> Job:
        return self._returned.pop() if self._in_doubt else self._returned.popleft()

    def _doing(self, job: Job) -> str:
        return f"worked on {len(job.piece.ids)} {self._one}s"

    def _reject(self, name: str) -> Reject:
        self._rejected += 1
        if self._rejected == MOST and not self._any_done:
            raise GateauError(
                "execution.workers_die",
                f"Workers die over each {self._one}, and none was completed: {MOST} {self._one}s ended {MOST} workers "
                f"each. The system often kills workers for lack of memory. {self._cure}",
            )
        reason = f"{MOST} {self._given_up}"
        return Reject(sample_id=name, reason=reason, short_of_memory=True)


class PieceQueue(JobQueue):
    """The shards of a step, whole or in pieces.

    Args:
        shards: to be scored, in their order.
        workers: the number that score side by side.
        warn: see JobQueue.
        settings: of the pool that decide about a worker's memory; see pipeline.asset.Asset.means.
        cure: see JobQueue.
        costs: of a shard's samples.
        seconds: the approximate duration of a piece; None: a shard is one piece, and scored as in a single process.
    """

    def __init__(
        self,
        shards: Iterable[Piece],
        *,
        workers: int,
        warn: Warn,
        settings: str,
        cure: str,
        costs: Costs,
        seconds: float | None,
    ) -> None:
        given_up = (
            "scoring workers died over this sample, often killed by the system for lack of memory. It is tried again "
            f"when {settings} is another one"
        )
        super().__init__(warn, one="sample", cure=cure, given_up=given_up)
        self._costs, self._workers, self._seconds = costs, workers, seconds
        self._ahead = deque(shards)
        self._block: list[_Open] = []
        self._first = 0.0  # the work of a piece until the rate is known
        self._done_cost = self._done_seconds = 0.0

    def waiting(self) -> int:
        """Return the number of shards, or of samples, that no worker has; unopened ones do not count beside others."""
        if self._seconds is None:
            return len(self._ahead) + len(self._returned)
        while not self._block and self._ahead:
            self._open_block(self._seconds)
        block = sum(len(each.waiting) for each in self._block)
        return block + sum(len(job.piece.ids) for job in self._returned)

    def take(self) -> Job | None:
        """Return the next piece, or None."""
        if not self.waiting():
            return None
        if self._returned:
            return self._take_returned()
        if self._seconds is None:
            return Job(piece=self._ahead.popleft())
        target = self._target(self._seconds)
        shard = max(self._block, key=lambda each: each.costs[each.waiting[0]])
        job = shard.cut(target)
        self._block = [each for each in self._block if each.waiting]
        return job

    def took(self, job: Job, seconds: float = 0.0) -> None:
        """Note that a piece is done; `seconds`: of scoring."""
        super().took(job)
        self._done_cost += job.cost
        self._done_seconds += seconds

    def _doing(self, job: Job) -> str:
        return f"scored {plural(len(job.piece.ids), 'sample')} of shard {job.piece.shard}"

    def _open_block(self, seconds: float) -> None:
        """Open as many shards as keep all workers busy for some rounds."""
        rate, samples, cost = self._rate, 0, 0.0
        while self._ahead and (
            samples < _ROUNDS * self._workers if rate is None else cost < _ROUNDS * self._workers * seconds * rate
        ):
            opened = self._open(self._ahead.popleft())
            samples += len(opened.waiting)
            cost += sum(opened.costs.values())
            if opened.waiting:
                self._block.append(opened)
        self._first = cost / self._workers * _FIRST_SHARE

    def _open(self, shard: Piece) -> "_Open":
        known = self._costs(shard.shard)
        usual = sum(known.values()) / len(known) if known else 1.0
        costs = {sample_id: max(known.get(sample_id, usual), usual * 1e-6) for sample_id in shard.ids}
        waiting = deque(sorted(shard.ids, key=lambda sample_id: (-costs[sample_id], sample_id)))
        return _Open(whole=shard, costs=costs, waiting=waiting)

    @property
    def _rate(self) -> float | None:
        return self._done_cost / self._done_seconds if self._done_cost and self._done_seconds else None

    def _target(self, seconds: float) -> float:
        """Return the work of the next piece; it shrinks at the end, so that the workers finish together."""
        rate = self._rate
        if rate is None:
            return self._first
        whole = rate * seconds
        if self._ahead:
            return whole
        left = sum(each.costs[sample_id] for each in self._block for sample_id in each.waiting)
        return max(min(whole, left / (2 * self._workers)), rate * _LEAST_SECONDS)


@dataclass(kw_only=True)
class _Open:
    """A shard of the block. `waiting`: ids of its samples, the most expensive first."""

    whole: Piece
    costs: Mapping[str, float]
    waiting: deque[str]

    def cut(self, target: float) -> Job:
        """Return the next samples, up to the target, at least one."""
        ids, cost = [], 0.0
        while self.waiting and (not ids or cost + self.costs[self.waiting[0]] <= target):
            ids.append(self.waiting.popleft())
            cost += self.costs[ids[-1]]
        return Job(piece=self.whole.part(ids), cost=cost)
