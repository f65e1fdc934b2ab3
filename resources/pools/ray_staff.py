"""Decide how many actors a step has on a Ray cluster, what they receive, and when to stop waiting for them."""

import time
from typing import Protocol

from gateau_dagster.errors import GateauError
from resources.pools.node_actor import Refused
from resources.pools.piece_queue import MOST
from resources.pools.pool import Warn
from resources.pools.ray_crew import Crew, Event, Job, Joined, Lost

# Seconds without a loaded worker before a warning that the cluster has no room.
_SECONDS_ALONE = 20.0
# Seconds for other workers to begin after all nodes that answered were refused.
_SECONDS_REFUSED = 60.0


class Queue(Protocol):
    """The work of a step."""

    def waiting(self) -> int:
        """Return the number of samples or questions that no worker has."""
        ...

    def take(self) -> Job | None:
        """Return the next piece."""
        ...


class Staff:
    """The autoscaler of one step. `most`: the largest number of workers."""

    def __init__(self, crew: Crew, most: int, warn: Warn) -> None:
        self._crew, self._most, self._warn = crew, most, warn
        self._since = time.monotonic()
        self._refused: dict[str, None] = {}
        self._refused_since = 0.0
        self._lost_at_start = 0
        self._said = False

    def serve(self, queue: Queue) -> bool:
        """Give pieces to idle workers, end unneeded ones, and return whether work is left.

        Raises:
            GateauError: no node may score.
        """
        waiting = queue.waiting()
        if waiting:
            self._crew.grow(min(self._most, self._crew.working + waiting))
            self._look_at_the_cluster()
        for worker in self._crew.idle:
            if (job := queue.take()) is None:
                self._crew.dismiss(worker)
            else:
                self._crew.give(worker, job)
        if not queue.waiting():
            self._crew.dismiss_waiting()
        return self._crew.working > 0 or bool(queue.waiting())

    def heed(self, event: Event) -> None:
        """Update the state of the cluster from an event.

        Raises:
            GateauError: no node may score, or workers die before they begin.
        """
        if isinstance(event, Joined):
            self._lost_at_start = 0
        elif isinstance(event, Refused):
            self._refuse(event)
        elif isinstance(event, Lost) and event.job is None:
            self._lose(event)

    def _refuse(self, event: Refused) -> None:
        """Reduce the number of workers, since another one might be placed on the same node."""
        self._refused_since = self._refused_since or time.monotonic()
        for line in event.lines:
            if line not in self._refused:
                self._refused[line] = None
                self._warn(f"A node of the Ray cluster does not score: {line}")
        self._most -= 1

    def _lose(self, event: Lost) -> None:
        if event.began or event.machine:
            self._warn(f"{event.how} while it waited" if event.began else event.how)
            return
        self._lost_at_start += 1
        self._warn(f"{event.how}, loss {self._lost_at_start} of {MOST} in a row")
        if self._lost_at_start >= MOST and not self._crew.ready:
            raise GateauError(
                f"{event.how}: {self._lost_at_start} in a row were lost before they began, and none is at work; often "
                "the system kills them for lack of memory. Ray's logs on the nodes say more."
            )
        if self._lost_at_start >= MOST:
            self._most = max(1, self._most - 1)

    def _look_at_the_cluster(self) -> None:
        now = time.monotonic()
        if self._crew.ready:
            return
        if self._refused and (self._most <= 0 or now - self._refused_since > _SECONDS_REFUSED):
            raise GateauError("No node of the Ray cluster can score: " + "; ".join(self._refused))
        if not self._said and now - self._since > _SECONDS_ALONE and not self._crew.fits():
            self._said = True
            self._warn(
                f"No node of the Ray cluster has room for a worker, of which each needs {self._crew.needs()}; there "
                f"are {self._crew.offers()}. The workers wait until the cluster grows"
            )
