"""Manage the actors of a step on a Ray cluster, from their start to the end of the step."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from gateau_dagster.config.execution import RayConfig
from gateau_dagster.errors import GateauError
from resources.pools.failed import Failed
from resources.pools.node_actor import NodeActor, NodeTask, Refused, Started, WorkerStatus

_LOOK = "look"
_SECONDS_BETWEEN_LOOKS = 0.5
# Time for stopped actors to save the rows of their pieces.
_GRACE_SECONDS = 10.0
_OUT_OF_MEMORY = re.compile(r"running low on memory", re.IGNORECASE)
_ANSWER_SECONDS = 3.0


class Job(Protocol):
    """A unit of work for a worker."""

    @property
    def piece(self) -> Any:
        """Return the piece that the worker receives."""
        ...


@dataclass(frozen=True, kw_only=True)
class Done:
    """A worker has finished its piece. job: as it was given."""

    worker: int
    job: Any
    answer: Any


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A worker reports its progress with its piece."""

    worker: int
    look: WorkerStatus


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A worker is gone. job: as it was given, if it had one. how: a description.

    machine: its node is gone, too. began: it had loaded the model.
    """

    worker: int
    job: Any
    how: str
    in_hand: frozenset[str]
    machine: bool
    began: bool


@dataclass(frozen=True, kw_only=True)
class WorkerReady:
    """A worker has loaded its model."""

    worker: int


Event = WorkerReady | Done | Looked | Lost | Refused


@dataclass(kw_only=True)
class _Member:
    """An actor. started: the pending answer to `start`. name: for people, once known. doing: the answer to `job`.

    given: number of the last piece. in_hand: its samples that were being scored at the last look.
    """

    number: int
    handle: Any
    started: Any
    node: str = ""
    name: str = ""
    job: Job | None = None
    doing: Any = None
    looking: Any = None
    looked_at: float = 0.0
    given: int = 0
    in_hand: frozenset[str] = frozenset()


class Crew:
    """The actors of one step, within `connected`. `events` raises their own failures."""

    def __init__(self, ray_config: RayConfig, actor: type[NodeActor], task: NodeTask) -> None:
        import ray

        self._ray, self._config = ray, ray_config
        self._members: dict[int, _Member] = {}
        self._numbers = count()
        self._task = ray.put(task)
        remote: Any = ray.remote  # its types know no concurrency groups
        self._actor = remote(
            num_cpus=ray_config.cpus,
            num_gpus=ray_config.gpus,
            max_restarts=0,
            concurrency_groups={_LOOK: 2},
            scheduling_strategy="SPREAD",
        )(actor)

    @property
    def working(self) -> int:
        """Return the number of actors at work on a piece."""
        return sum(each.job is not None for each in self._members.values())

    @property
    def ready(self) -> int:
        """Return the number of actors that have loaded their model."""
        return sum(bool(each.name) for each in self._members.values())

    @property
    def idle(self) -> list[int]:
        """Return the actors that have loaded their model and have no work."""
        return [number for number, each in self._members.items() if each.name and each.job is None]

    def grow(self, size: int) -> None:
        """Request actors until there are `size`."""
        while len(self._members) < size:
            number = next(self._numbers)
            handle = self._actor.remote(self._task)
            self._members[number] = _Member(number=number, handle=handle, started=handle.start.remote())

    def give(self, worker: int, job: Job) -> None:
        """Give a piece to an idle worker."""
        member = self._members[worker]
        assert member.job is None
        member.given, member.in_hand = member.given + 1, frozenset()
        member.job, member.doing = job, member.handle.work.remote(member.given, job.piece)

    def dismiss(self, worker: int) -> None:
        """End an idle actor, and free its resources."""
        member = self._members.pop(worker)
        assert member.job is None
        self._ray.kill(member.handle)

    def dismiss_waiting(self) -> None:
        """End the actors that have not loaded a model yet, on a node or not."""
        for number in [number for number, each in self._members.items() if not each.name]:
            self.dismiss(number)

    def events(self, seconds: float) -> list[Event]:
        """Return the new events; wait up to `seconds` for the first one.

        Raises:
            Exception: an actor's own failure.
        """
        waited = {ref: (member, kind) for member in self._members.values() for kind, ref in _awaited(member)}
        if not waited:
            time.sleep(seconds)
            return []
        refs = list(waited)
        self._ray.wait(refs, num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        found: list[Event] = []
        for ref in ready:
            member, kind = waited[ref]
            if member.number in self._members and (event := self._event(member, kind, ref)) is not None:
                found.append(event)
        self._look_around()
        return found

    def _event(self, member: _Member, kind: str, ref: Any) -> Event | None:
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:  # the code on the node failed before ours
            raise GateauError(f"A scoring worker on the cluster failed before it began: {error}") from error
        except self._ray.exceptions.RayError as error:
            return self._lose(member, error)
        if isinstance(answer, Failed):
            raise answer.error
        if kind == "looking":
            member.looking = None
            if member.job is None or answer.number != member.given:  # a report on an earlier piece
                return None
            member.in_hand = answer.in_hand
            return Looked(worker=member.number, look=answer)
        if kind == "started":
            return self._join(member, answer)
        job, member.job, member.doing = member.job, None, None
        assert job is not None
        return Done(worker=member.number, job=job, answer=answer)

    def _join(self, member: _Member, answer: Started | Refused) -> Event:
        member.started = None
        if isinstance(answer, Refused):
            self.dismiss(member.number)
            return answer
        member.name, member.node = answer.name, answer.node
        return WorkerReady(worker=member.number)

    def _lose(self, member: _Member, error: Exception) -> Lost:
        del self._members[member.number]
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(member.handle)  # it may merely not answer
        machine = "node has died" in str(error) or (bool(member.node) and not self._node_answers(member.node))
        name = member.name or "which was loading its model"
        gone = "was lost with its machine" if machine else "died"
        if _OUT_OF_MEMORY.search(str(error)):
            gone = "was killed for lack of memory"
        return Lost(
            worker=member.number,
            job=member.job,
            how=f"The scoring worker on the cluster ({name}) {gone}",
            in_hand=member.in_hand,
            machine=machine,
            began=bool(member.name),
        )

    def _node_answers(self, name: str) -> bool:
        """Ask the node itself: the cluster notices a loss only after a quarter of a minute."""
        for node in self._ray.nodes():
            if node["NodeID"] == name and node["Alive"]:
                with suppress(OSError):
                    place = node["NodeManagerAddress"], node["NodeManagerPort"]
                    socket.create_connection(place, timeout=_ANSWER_SECONDS).close()
                    return True
        return False

    def _look_around(self) -> None:
        """Ask all actors for their progress; the answers come with the next events."""
        now = time.monotonic()
        for member in self._members.values():
            if member.name and member.looking is None and now - member.looked_at >= _SECONDS_BETWEEN_LOOKS:
                member.looked_at = now
                member.looking = member.handle.look.options(concurrency_group=_LOOK).remote()

    def close(self) -> None:
        """Have working actors save their rows, and end all."""
        working = [each for each in self._members.values() if each.job is not None]
        with suppress(self._ray.exceptions.RayError):
            saved = [each.handle.save.options(concurrency_group=_LOOK).remote() for each in working]
            self._ray.wait(saved, num_returns=len(saved), timeout=_GRACE_SECONDS) if saved else None
        for member in self._members.values():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(member.handle)
        self._members.clear()

    def fits(self) -> bool:
        """Return whether any node of the current cluster could hold a worker."""
        need = {"CPU": self._config.cpus, "GPU": self._config.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(all(node.get(name, 0) >= least for name, least in need.items()) for node in nodes)

    def needs(self) -> str:
        """Describe the resources that a worker takes of its node."""
        return f"{self._config.cpus:g} CPUs and {self._config.gpus:g} GPUs"

    def offers(self) -> str:
        """Describe the resources of the cluster's nodes."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        each = (f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({'; '.join(list(each)[:8])})"


def _awaited(member: _Member) -> Iterator[tuple[str, Any]]:
    for kind in ("started", "doing", "looking"):
        if (ref := getattr(member, kind)) is not None:
            yield kind, ref
