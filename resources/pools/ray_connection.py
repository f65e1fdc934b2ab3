"""Connect this process as a driver to a Ray cluster while a step has work for it."""

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
    """Make this process a driver of the cluster within the block; an existing driver (dagster-ray) stays one.

    Raises:
        GateauError: Ray is not installed, there is no such cluster, or its version differs.
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
    named = os.environ.get("RAY_ADDRESS", "auto") if ray_config.address == "auto" else ray_config.address
    place = None
    try:
        place = _place(named)
        _check_answers(place)
        with _own_signals():
            ray.init(address=place, configure_logging=False, log_to_driver=False, namespace=f"gateau-{os.getpid()}")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise GateauError(f"execution.ray.address: {_without_cluster(named, place, error)}") from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()


def _without_cluster(named: str, place: str | None, error: Exception) -> str:
    if place is None and isinstance(error, ConnectionError):
        return (
            "auto finds no Ray cluster that this machine is a node of. Make it one (`ray start --address host:6379`, "
            "or `ray start --head` for a new cluster), or give the address"
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
        raise ConnectionError("what listens there is no head of a cluster, whose port is usually 6379") from error
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
