"""Score on a Ray cluster: actors load the model once, and receive pieces of shards from one queue.

Ray places the actors, starts them on new nodes and carries the answers. It restarts none of them and repeats no call:
its own `max_restarts` and `max_task_retries` would give a sample that kills its worker to the next one, without a count
and without end.
"""

# Why actors, and not Ray's tasks: a task has no place for a loaded model, so each piece would load it again.
#
# Why the step asks for the status: an actor cannot call the step's process, which is a driver. A small call to each
# actor every half second names the samples in hand. A sample may have begun since, so an empty answer counts as
# unknown.

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.config.execution import RayConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.readable import plural
from gateau_dagster.resources.pools.crew import Crew, Crews, Lost, Member, ScoringCrew
from gateau_dagster.resources.pools.piece_queue import Job
from gateau_dagster.resources.pools.pool import Pool, ScoringTask, Warn
from gateau_dagster.resources.pools.worker import (
    Failed,
    ScoringWorker,
    Started,
    Worker,
    WorkerStatus,
    WorkerTask,
    marked_store,
)
from gateau_dagster.storage import fence

_LOOK = "look"
_SECONDS_BETWEEN_LOOKS = 0.5
# Time for stopped actors to save the rows of their pieces.
_GRACE_SECONDS = 10.0
_OUT_OF_MEMORY = re.compile(r"running low on memory", re.IGNORECASE)
_ANSWER_SECONDS = 3.0
_SETTINGS = "execution.ray.gpus, execution.ray.cpus or scoring.device_map"


def _node() -> str:
    import ray

    return ray.get_runtime_context().get_node_id()


@dataclass(kw_only=True, eq=False)
class _Actor(Member):
    """An actor. node: its id in the cluster, once known. number: of the last piece.

    answer: pending, to `start` or `work`. look: pending, to `status`.
    """

    handle: Any
    answer: Any
    node: str = ""
    number: int = 0
    look: Any = None
    looked_at: float = 0.0


class RayCrew(Crew[_Actor]):
    """The actors of one step, within `connected`."""

    cure = "Read Ray's logs on the nodes."

    def __init__(self, ray_config: RayConfig, actor: type[Worker], task: WorkerTask, warn: Warn) -> None:
        import ray

        super().__init__(ray_config.workers, warn)
        self._ray, self._config = ray, ray_config
        self._task = ray.put(task)
        remote: Any = ray.remote  # its types know no concurrency groups
        self._actor = remote(
            num_cpus=ray_config.cpus,
            num_gpus=ray_config.gpus,
            max_restarts=0,
            concurrency_groups={_LOOK: 2},
            scheduling_strategy="SPREAD",
        )(actor)

    def _start(self) -> _Actor:
        handle = self._actor.remote(self._task)
        return _Actor(handle=handle, answer=handle.start.remote())

    def _send(self, member: _Actor, job: Job) -> None:
        member.number += 1
        member.answer = member.handle.work.remote(member.number, job.piece)

    def _end(self, member: _Actor) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(member.handle)

    def _received(self, seconds: float) -> Iterator[tuple[_Actor, Any]]:
        waited = {ref: each for each in self._members for ref in (each.answer, each.look) if ref is not None}
        refs = list(waited)
        if not refs:
            time.sleep(seconds)
        self._ray.wait(refs, num_returns=1, timeout=seconds) if refs else None
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
        for ref in ready:
            member = waited[ref]
            answer = self._answer(member, ref)
            if ref is member.look:
                member.look = None
            else:
                member.answer = None
            if isinstance(answer, Failed):
                raise answer.error
            if isinstance(answer, Started):
                member.node = answer.node
            if isinstance(answer, WorkerStatus):
                if member.job is None or answer.number != member.number:  # a report on an earlier piece
                    continue
                # The status is not of the last moment: a sample may have begun since.
                answer = WorkerStatus(number=answer.number, in_hand=answer.in_hand or None, report=answer.report)
            yield member, answer
        self._look_around()

    def _answer(self, member: _Actor, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:  # the code on the node failed before ours
            raise GateauError(
                "execution.ray_worker", f"A scoring worker on the cluster failed before it began: {error}"
            ) from error
        except self._ray.exceptions.RayError as error:
            self._end(member)  # it may merely not answer
            machine = "node has died" in str(error) or (bool(member.node) and not self._node_answers(member.node))
            gone = "was lost with its machine" if machine else "died"
            if _OUT_OF_MEMORY.search(str(error)):
                gone = "was killed for lack of memory"
            name = member.name or "which was loading its model"
            return Lost(member=member, how=f"The scoring worker on the cluster ({name}) {gone}", machine=machine)

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
        """Ask all actors for their status; the answers come with the next events."""
        now = time.monotonic()
        for member in self._members:
            if member.ready and member.look is None and now - member.looked_at >= _SECONDS_BETWEEN_LOOKS:
                member.looked_at = now
                member.look = member.handle.status.options(concurrency_group=_LOOK).remote()

    def close(self) -> None:
        """Have working actors save their rows, and end all."""
        with suppress(self._ray.exceptions.RayError):
            working = [each for each in self._members if each.job is not None]
            saved = [each.handle.save.options(concurrency_group=_LOOK).remote() for each in working]
            self._ray.wait(saved, num_returns=len(saved), timeout=_GRACE_SECONDS) if saved else None
        while self._members:
            self._end(self._members.pop())

    def _no_room(self) -> str:
        need = {"CPU": self._config.cpus, "GPU": self._config.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= least for name, least in need.items()) for node in nodes):
            return ""
        offers = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes]
        return (
            f"No node of the Ray cluster has room for a worker, of which each needs {self._config.cpus:g} CPUs and "
            f"{self._config.gpus:g} GPUs; there are {plural(len(nodes), 'node')} ({'; '.join(offers[:8])}). The "
            "workers wait until the cluster grows"
        )


_CONNECT_SECONDS = 10.0


@contextmanager
def connected(ray_config: RayConfig) -> Iterator[None]:
    """Make this process a driver of the cluster within the block; an existing driver (dagster-ray) stays one.

    Raises:
        GateauError: Ray is not installed, there is no such cluster, or its version differs.
    """
    try:
        import ray
    except ImportError as error:
        raise GateauError(
            "execution.ray_missing",
            f"execution.ray: the package ray is not installed ({error}): pip install 'gateau-dagster[ray]'",
        ) from error
    if ray.is_initialized():
        yield
        return
    named = os.environ.get("RAY_ADDRESS", "auto") if ray_config.address == "auto" else ray_config.address
    place = None
    try:
        place = _place(named)
        _check_answers(place)
        with _own_signals():
            ray.init(address=place, configure_logging=False, log_to_driver=False, namespace=f"gateau-{os.getpid()}")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        message = f"execution.ray.address: {_without_cluster(named, place, error)}"
        raise GateauError("execution.ray_address", message) from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()


def _without_cluster(named: str, place: str | None, error: Exception) -> str:
    if place is None and isinstance(error, ConnectionError):
        return (
            "auto finds no Ray cluster that contains this machine. Add it (`ray start --address host:6379`, or `ray "
            "start --head` for a new cluster), or give the address"
        )
    reason = " ".join(str(error).split())[:500]
    where = f"{place}, where auto finds the last one of this machine" if named == "auto" else named
    return f"no Ray cluster answers at {where} ({reason}). Start one there (`ray start --head`), or correct it"


def _place(address: str) -> str:
    """Return host:port; for auto, the address of this machine's last cluster, running or not.

    Raises ConnectionError if there was none, and ValueError for an invalid address.
    """
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:  # other versions of Ray keep it elsewhere, and search longer
        return address
    return canonicalize_bootstrap_address(address) or address


def _check_answers(address: str) -> None:
    """Check that a cluster's head answers, and no other service; Ray itself would retry for a quarter of an hour.

    Raises OSError.
    """
    import grpc

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return  # Ray reports what is wrong, and has the certificates
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise ConnectionError(
            "the server there is not the head of a Ray cluster, whose port is usually 6379"
        ) from error
    finally:
        channel.close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore our signal handlers after Ray takes SIGTERM; ours end a run in order (`execution/interruption.py`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _workers(task: ScoringTask, warn: Warn) -> Iterator[ScoringCrew]:
    seconds = _section(task.config).piece_minutes * 60
    with _crew(task.config, task.placed, task.model, ScoringWorker, warn) as crew:
        yield ScoringCrew(crew=crew, task=task, settings=_SETTINGS, seconds=seconds)


@contextmanager
def _crew(config: Config, placed: Placed, more: str, worker: type[Worker], warn: Warn) -> Iterator[RayCrew]:
    with (
        _on_cluster(config, placed, more) as task,
        closing(RayCrew(_section(config), worker, task, warn)) as crew,
    ):
        yield crew


@contextmanager
def _on_cluster(config: Config, placed: Placed, more: str) -> Iterator[WorkerTask]:
    # Actors must start within the block, since they read the marker, which is removed at its end.
    ray = _section(config)
    with connected(ray), marked_store(config.located_root, cuda=ray.gpus > 0) as expected:
        yield WorkerTask(
            config=config,
            placed=placed,
            more=more,
            device=_devices(config, "", 1)[0],
            threads=max(1, int(ray.cpus)),
            expected=expected,
            leases=fence.exported(),
            node=_node,
        )


def _section(config: Config) -> RayConfig:
    assert config.execution.ray is not None, "the configuration checks it"
    return config.execution.ray


def _devices(config: Config, place: str, shards: int) -> list[str]:
    # Ray shows a worker only the GPU that it has assigned, so all of them have the same name here.
    del place, shards  # place is this machine's, and shards are cut into pieces
    ray, spread = _section(config), config.scoring.device_map is not None
    return [("auto" if spread else "cuda") if ray.gpus else "cpu"] * ray.workers


POOL = Pool(name="ray", workers=_workers, devices=_devices, elsewhere=True)
CREWS = Crews(name="ray", crew=_crew)
