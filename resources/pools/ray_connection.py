"""This process as a driver of a Ray cluster, for as long as a step has work for it."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gateau_dagster.config.execution import RayConfig
from gateau_dagster.errors import GateauError

_CONNECT_SECONDS = 10.0


@contextmanager
def connected(ray_config: RayConfig) -> Iterator[None]:
    """This process is a driver of the cluster within the block; one that is one already (dagster-ray) stays it.

    Raises:
        GateauError: Ray is not installed, or there is no such cluster, or it is of another version.
    """
    try:
        import ray
    except ImportError as error:
        raise GateauError(
            f"execution.ray: the package ray is not installed ({error}): pip install 'gateau-dagster[ray]'"
        ) from error
    if ray.is_initialized():
        yield
        return
    address = _address(ray_config)
    try:
        _check_answers(address)
        with _own_signals():
            ray.init(address=address, configure_logging=False, log_to_driver=False, namespace=f"gateau-{os.getpid()}")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise GateauError(f"execution.ray.address: {_without_cluster(address, error)}") from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()


def _without_cluster(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "auto finds no Ray cluster that this machine is a node of. Make it one (`ray start --address host:6379`, "
            "or `ray start --head` for a new cluster), or give the address"
        )
    reason = " ".join(str(error).split())[:500]
    return f"no Ray cluster answers at {address} ({reason}). Start one there (`ray start --head`), or correct it"


def _address(ray_config: RayConfig) -> str:
    return os.environ.get("RAY_ADDRESS", "auto") if ray_config.address == "auto" else ray_config.address


def _check_answers(address: str) -> None:
    """Ray itself would try for many minutes. Raises OSError."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; here it ends a run in order, see `execution/interruption.py`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
