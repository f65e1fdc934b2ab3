"""The shards of a step that no worker has, and what becomes of the shard of a worker that is lost."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_work import ShardProgress, TableWork
from resources.pools.pool import Warn

MOST_WORKERS_LOST = 3
_NOTHING_YET = ShardProgress(finished=0, scored=0, share=0.0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A shard to score."""

    shard: str
    works: Sequence[TableWork]


class ShardQueue:
    """Shards in their order. One lost worker must not end the step; a shard that is too large for any worker must."""

    def __init__(self, shards: Mapping[str, Sequence[TableWork]], report: Report, warn: Warn) -> None:
        self._waiting = deque(Job(shard=shard, works=works) for shard, works in shards.items())
        self._lost: Counter[str] = Counter()
        self._report, self._warn = report, warn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Job:
        """The next shard."""
        return self._waiting.popleft()

    def give_back(self, job: Job, loss: str) -> None:
        """Makes the shard of a lost worker the next one; its progress begins anew, from the rows that were saved.

        Not the last one: where every shard is too large, the step should end after three workers.

        Args:
            loss: which worker was lost, and how.

        Raises:
            GateauError: the shard has lost as many workers as it may.
        """
        self._lost[job.shard] += 1
        times = f"{self._lost[job.shard]} of {MOST_WORKERS_LOST}"
        if self._lost[job.shard] == MOST_WORKERS_LOST:
            raise GateauError(
                f"{loss} while it scored shard {job.shard}, the last of {MOST_WORKERS_LOST} workers that this shard "
                "has lost; often the system kills them for lack of memory. What was computed is kept: run again with "
                "fewer scoring.workers or a smaller scoring.batch_tokens."
            )
        self._warn(f"{loss} while it scored shard {job.shard}; another worker takes the shard (loss {times})")
        self._report(ShardReport(shard=job.shard, progress=_NOTHING_YET, tokens=0, seconds=0.0))
        self._waiting.appendleft(job)
