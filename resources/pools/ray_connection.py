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
_CONNECT = "Start one there (`ray start --head`), or correct execution.ray.address"


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
        reason = " ".join(str(error).split())[:500]
        raise GateauError(
            f"execution.ray.address: no Ray cluster answers at {address} ({reason}). {_CONNECT}"
        ) from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()


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
