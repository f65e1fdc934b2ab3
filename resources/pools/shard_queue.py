"""Queue the shards of a step, and handle the shards of lost workers."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_tables import TableWork
from gateau_dagster.execution.shard_work import ShardProgress, Suspects
from resources.pools.pool import Warn

_MOST = 3
_GIVEN_UP = (
    f"{_MOST} scoring workers died over this sample, often killed by the system for lack of memory. It is "
    "tried again when scoring.device, scoring.device_map or scoring.workers is another one"
)
_NOTHING_YET = ShardProgress(finished=0, scored=0, share=0.0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A shard to score. `suspects`: those of its samples over which workers died."""

    shard: str
    works: Sequence[TableWork]
    suspects: Suspects = field(default_factory=Suspects)


class ShardQueue:
    """The shards in their order.

    One lost worker does not end the step, nor does a sample that kills workers; a shard too large for any worker does.
    """

    def __init__(self, shards: Mapping[str, Sequence[TableWork]], report: Report, warn: Warn) -> None:
        self._waiting = deque(Job(shard=shard, works=works) for shard, works in shards.items())
        # By shard, the samples in hand of each lost worker.
        self._lost: dict[str, list[frozenset[str]]] = {shard: [] for shard in shards}
        self._report, self._warn = report, warn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Job:
        """Return the next shard."""
        return self._waiting.popleft()

    def give_back(self, job: Job, loss: str, in_hand: frozenset[str] = frozenset()) -> None:
        """Put the shard of a lost worker first; its progress restarts from the saved rows.

        The samples in hand are scored one by one from now on. One that has lost three workers is rejected.

        The shard is not put last: if every shard is too large, the step should end after three workers.

        Args:
            job: the shard that the worker was scoring.
            loss: which worker was lost, and how.
            in_hand: the samples that it was scoring, as far as it had reported.

        Raises:
            GateauError: the shard has lost as many workers as it may, and no sample accounts for it.
        """
        lost = self._lost[job.shard]
        lost.append(in_hand)
        given_up = [sample for sample, times in Counter(s for each in lost for s in each).items() if times == _MOST]
        if given_up:
            self._lost[job.shard] = [each for each in lost if not each & {*given_up}]
            then = f"the last of {_MOST} over the sample {', '.join(given_up)}, which is rejected"
        elif len(lost) == _MOST:
            raise GateauError(
                f"{loss} while it scored shard {job.shard}, the last of {_MOST} workers that this shard "
                "has lost; often the system kills them for lack of memory. What was computed is kept: run again with "
                "fewer scoring.workers or a smaller scoring.batch_tokens."
            )
        else:
            then = f"loss {len(lost)} of {_MOST}"
        self._warn(f"{loss} while it scored shard {job.shard}; another worker takes the shard ({then})")
        self._report(ShardReport(shard=job.shard, progress=_NOTHING_YET, tokens=0, seconds=0.0))
        suspects = Suspects(
            alone=job.suspects.alone | in_hand, given_up={**job.suspects.given_up, **dict.fromkeys(given_up, _GIVEN_UP)}
        )
        self._waiting.appendleft(replace(job, suspects=suspects))
