"""Queue the samples of a step in pieces of about equal work, and handle lost pieces.

Shards are taken in order, in blocks. Within a block the longest samples come first, so that no worker is left alone
with one at the end. The shards of a block finish together, so that a run that dies has lost little.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.pieces import Piece, PieceResult
from gateau_dagster.execution.shard_tables import TableWork
from resources.pools.pool import Costs, Warn

MOST = 3  # workers that may be lost over a sample
_NODES = 3  # lost machines per piece that are not blamed on it
# A block has work for this many rounds of all workers, so that an uneven end costs little.
_ROUNDS = 4
# Share of a block per piece while the speed of the workers is unknown.
_FIRST_SHARE = 1 / 8
_LEAST_SECONDS = 1.0
_GIVEN_UP = (
    f"{MOST} scoring workers died over this sample, often killed by the system for lack of memory. It is tried again "
    "when the memory of a worker is another one: execution.ray.gpus or cpus, or scoring.device_map"
)
Lacking = Mapping[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class PieceJob:
    """A piece to score, its estimated work, and the numbers of workers and machines lost over it."""

    piece: Piece
    cost: float
    losses: int = 0
    machines: int = 0


@dataclass(kw_only=True)
class _Open:
    """A shard of the block. `waiting`: ids of its samples, the most expensive first."""

    whole: Piece
    costs: Mapping[str, float]
    waiting: deque[str]

    def cut(self, target: float) -> PieceJob:
        """Return the next samples, up to the target, at least one."""
        ids, cost = [], 0.0
        while self.waiting and (not ids or cost + self.costs[self.waiting[0]] <= target):
            ids.append(self.waiting.popleft())
            cost += self.costs[ids[-1]]
        return PieceJob(piece=self.whole.part(ids), cost=cost)


@dataclass(kw_only=True)
class PieceQueue:
    """A queue of pieces in blocks of shards.

    Args:
        shards: to be scored, in their order.
        lacking: returns what is missing of a shard; called once when it is opened.
        costs: of a shard's samples.
        workers: the number that score side by side.
        seconds: the approximate duration of a piece.
    """

    shards: Mapping[str, Sequence[TableWork]]
    lacking: Callable[[str], Lacking]
    costs: Costs
    workers: int
    seconds: float
    warn: Warn
    _block: list[_Open] = field(default_factory=list)
    _returned: deque[PieceJob] = field(default_factory=deque)
    _done_cost: float = 0.0
    _done_seconds: float = 0.0
    _rejected: int = 0

    def __post_init__(self) -> None:
        self._ahead = deque(self.shards)
        self._first = 0.0  # the work of a piece until the rate is known

    def waiting(self) -> int:
        """Return the number of samples that no worker has; unopened shards do not count while others wait."""
        while not self._block and self._ahead:
            self._open_block()
        block = sum(len(each.waiting) for each in self._block)
        return block + sum(len(job.piece.lacking) for job in self._returned)

    def take(self) -> PieceJob | None:
        """Return the next piece, or None."""
        if not self.waiting():
            return None
        if self._returned:
            return self._returned.popleft()
        target = self._target()
        shard = max(self._block, key=lambda each: each.costs[each.waiting[0]])
        job = shard.cut(target)
        self._block = [each for each in self._block if each.waiting]
        return job

    def took(self, job: PieceJob, seconds: float) -> None:
        """Note that a piece is done."""
        self._done_cost += job.cost
        self._done_seconds += seconds

    def give_back(self, job: PieceJob, loss: str, in_hand: frozenset[str], *, machine: bool) -> PieceResult | None:
        """Put the piece of a lost worker first.

        Its samples in hand are scored one by one from now on. If none is known, a piece that has lost three workers is
        halved. A sample that has lost three workers is rejected and returned.

        Args:
            job: the piece that the worker was scoring.
            loss: which worker was lost, and how.
            in_hand: the samples that it was scoring, as far as it had reported.
            machine: whether its machine was lost, too, which is rarely a sample's fault.

        Raises:
            GateauError: several samples were rejected, and none was ever scored.
        """
        ids, shard = [*job.piece.lacking], job.piece.shard
        if machine and job.machines < _NODES:
            then = "another worker takes them"
            self._returned.appendleft(replace(job, machines=job.machines + 1))
            self.warn(f"{loss} while it scored {len(ids)} samples of shard {shard}; {then}")
            return None
        job = replace(job, losses=job.losses + 1)
        rejected: PieceResult | None = None
        if len(ids) == 1 and job.losses >= MOST:
            then, rejected = f"the last of {MOST} over {ids[0]}, which is rejected", self._reject(job)
        else:
            then = f"another worker takes them, loss {job.losses} of {MOST}"
            self._returned.extendleft(reversed(_apart(job, in_hand)))
        self.warn(f"{loss} while it scored {len(ids)} samples of shard {shard}; {then}")
        return rejected

    def _reject(self, job: PieceJob) -> PieceResult:
        self._rejected += 1
        if self._rejected == MOST and not self._done_cost:
            raise GateauError(
                f"Workers die over each sample, and none was ever scored: {MOST} samples in shard {job.piece.shard} "
                f"took {MOST} workers each. Often the system kills them for lack of memory; Ray's logs on the nodes "
                "say more."
            )
        [(sample_id, assets)] = job.piece.lacking.items()
        reject = Reject(sample_id=sample_id, reason=_GIVEN_UP, short_of_memory=True)
        return PieceResult(computed={}, rejects={asset: [reject] for asset in assets})

    def _open_block(self) -> None:
        """Open as many shards as keep all workers busy for some rounds."""
        rate, samples, cost = self._rate, 0, 0.0
        while self._ahead and (
            samples < _ROUNDS * self.workers if rate is None else cost < _ROUNDS * self.workers * self.seconds * rate
        ):
            opened = self._open(self._ahead.popleft())
            samples += len(opened.waiting)
            cost += sum(opened.costs.values())
            if opened.waiting:
                self._block.append(opened)
        self._first = cost / self.workers * _FIRST_SHARE

    def _open(self, shard: str) -> _Open:
        lacking = {sample_id: assets for sample_id, assets in self.lacking(shard).items() if assets}
        known = self.costs(shard)
        usual = sum(known.values()) / len(known) if known else 1.0
        costs = {sample_id: max(known.get(sample_id, usual), usual * 1e-6) for sample_id in lacking}
        waiting = deque(sorted(lacking, key=lambda sample_id: (-costs[sample_id], sample_id)))
        whole = Piece(shard=shard, works=self.shards[shard], lacking=lacking)
        return _Open(whole=whole, costs=costs, waiting=waiting)

    @property
    def _rate(self) -> float | None:
        """Return the work that a worker does in a second, or None if unknown."""
        return self._done_cost / self._done_seconds if self._done_cost and self._done_seconds else None

    def _target(self) -> float:
        """Return the work of the next piece; it shrinks at the end, so that the workers finish together."""
        rate = self._rate
        if rate is None:
            return self._first
        whole = rate * self.seconds
        if self._ahead:
            return whole
        left = sum(each.costs[sample_id] for each in self._block for sample_id in each.waiting)
        return max(min(whole, left / (2 * self.workers)), rate * _LEAST_SECONDS)


def _apart(job: PieceJob, in_hand: frozenset[str]) -> list[PieceJob]:
    """Split a piece that has lost a worker: the suspects alone, the others without their losses."""
    ids = [*job.piece.lacking]
    suspects = [sample_id for sample_id in ids if sample_id in in_hand]
    others = [sample_id for sample_id in ids if sample_id not in in_hand]
    share = job.cost / len(ids)

    def part(some: Sequence[str], losses: int) -> PieceJob:
        return PieceJob(piece=job.piece.part(some), cost=share * len(some), losses=losses, machines=job.machines)

    if suspects and (others or len(ids) > 1):
        return [part([each], job.losses) for each in suspects] + ([part(others, 0)] if others else [])
    if job.losses >= MOST:
        half = len(ids) // 2
        return [part(ids[:half], MOST - 1), part(ids[half:], MOST - 1)]
    return [job]
