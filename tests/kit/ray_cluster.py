"""A real Ray cluster on this machine: a head without room for workers, and as many raylets as a test wants."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.kit.process_list import command_of

_STORE_BYTES = 80_000_000  # the least that Ray takes


class RayCluster:
    """A cluster that tests start and harm. Not connected: what is tested connects by `address`."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address, whatever temp_dir says
        head = {"num_cpus": 0, "temp_dir": str(folder), **_common()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self.nodes: list[Any] = []  # beside the head

    @property
    def address(self) -> str:
        """host:port."""
        return str(self._cluster.address)

    def add(self, cpus: float = 1) -> Any:
        """One more raylet, as another machine would be."""
        node = self._cluster.add_node(num_cpus=cpus, **_common())
        self.nodes.append(node)
        return node

    def lose(self, node: Any) -> None:
        """Ends a raylet and its workers by kill -9, as a machine that loses its power."""
        self.nodes.remove(node)
        raylet = _process(node, "raylet")
        family = [raylet, *raylet.children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=10)
        self._cluster.remove_node(node, allow_graceful=False)

    def actors(self) -> list[int]:
        """Processes of scoring workers that are at work or waiting for it."""
        raylets = [_process(node, "raylet") for node in self.nodes]
        found = [child for raylet in raylets for child in raylet.children(recursive=True)]
        titles = [(child.pid, " ".join(command_of(child)).strip()) for child in found]
        return [pid for pid, title in titles if "Actor." in title or title.endswith("Actor")]

    def soon_without_actors(self, seconds: float = 20) -> bool:
        """Whether all are gone within this time."""
        deadline = time.monotonic() + seconds
        while self.actors() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.actors()

    def close(self) -> None:
        """Ends all of it."""
        self._cluster.shutdown()


@contextmanager
def ray_cluster(*cpus: float) -> Iterator[RayCluster]:
    """A cluster of raylets with so many CPUs each, for as long as the block works."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets below it have a limit of 107 characters
    # With Ray's niceness of 15, a worker waits for the other tests.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    cluster = RayCluster(folder)
    try:
        for each in cpus:
            cluster.add(each)
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _common() -> dict[str, Any]:
    return {"object_store_memory": _STORE_BYTES, "include_dashboard": False, "num_gpus": 0}


def _process(node: Any, kind: str) -> psutil.Process:
    [info] = node.all_processes[kind]
    return psutil.Process(info.process.pid)
