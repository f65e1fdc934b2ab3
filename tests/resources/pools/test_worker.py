"""Whatever a worker raises reaches the step, without secrets."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.resources.pools import worker
from gateau_dagster.resources.pools.worker import Failed, Worker, portable


class TwoPartsError(Exception):
    """Cannot be unpickled: it wants more than its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class StubbornError(TransientError):
    """Cannot be pickled, and says so in its own way."""

    def __reduce__(self) -> str:
        raise KeyError("not me")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (GateauError("data.missing", "as it is"), GateauError, "as it is"),
        (TwoPartsError("a", "b"), RuntimeError, "TwoPartsError: ab"),
        (StubbornError("storage.connection", "no answer"), TransientError, "no answer"),
    ],
)
def test_every_failure_survives_the_way(error: Exception, kind: type[Exception], text: str) -> None:
    found = pickle.loads(pickle.dumps(portable(error)))
    assert type(found) is kind and str(found) == text


def test_neither_the_trace_of_a_worker_nor_what_the_step_hears_holds_a_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "hub-0123456789-key"
    monkeypatch.setenv("HUB_TOKEN", key)
    monkeypatch.setattr(worker, "redact_output", lambda: None)

    def fail(_: object) -> None:
        raise RuntimeError(f"asked with {key}") from ValueError(key)

    monkeypatch.setattr(Worker, "_started", fail)
    task: Any = SimpleNamespace(leases="")
    failed = Worker(task).start()
    assert isinstance(failed, Failed) and str(failed.error) == "asked with ***"
    shown = capsys.readouterr().err
    assert "RuntimeError: asked with ***" in shown and "ValueError: ***" in shown and key not in shown


def test_a_foreseen_failure_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost lease is one line on the terminal, which worker processes share with the command."""

    def fail(_: object) -> None:
        raise GateauError("store.lease_lost", "another run has taken over")

    monkeypatch.setattr(Worker, "_started", fail)
    task: Any = SimpleNamespace(leases="")
    failed = Worker(task).start()
    assert isinstance(failed, Failed) and isinstance(failed.error, GateauError)
    assert capsys.readouterr().err == ""
