"""A machine that differs does not work and says how; every failure of a worker reaches the step, without secrets."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.resources.pools import worker
from gateau_dagster.resources.pools.worker import (
    Expected,
    Failed,
    Worker,
    code_digest,
    installed_versions,
    marked_store,
    portable,
    problems,
)


@pytest.fixture
def expected(tmp_path: Path) -> Expected:
    with marked_store(str(tmp_path), cuda=False) as found:
        assert problems(found) == []
    assert problems(found)[0].startswith("it does not see the store"), "the marker goes with the block"
    found_file = tmp_path / found.marker
    found_file.parent.mkdir(exist_ok=True)
    found_file.write_text(found.content)
    return found


def test_another_store_at_the_same_path(expected: Expected) -> None:
    Path(expected.root, expected.marker).write_text("something else")
    [line] = problems(expected)
    assert re.search(r"does not see the store .* S3 or on a disk that all machines share", line)


def test_a_store_that_cannot_be_read(expected: Expected) -> None:
    marker = Path(expected.root, expected.marker)
    marker.unlink()
    marker.mkdir()
    [line] = problems(expected)
    assert line.startswith("it cannot read the store")


def test_other_versions(expected: Expected) -> None:
    there = {**installed_versions(), "torch": "2.12.1", "Python": "3.9", "nothing": "1.0"}
    lines = problems(replace(expected, versions=there))
    here = installed_versions()
    assert [line.split(" there,")[0] for line in lines] == [
        f"Python is {here['Python']}",
        f"torch is {here['torch']}",
        "nothing is missing",
    ]
    assert "and 2.12.1 here" in lines[1]


def test_other_sources(expected: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = problems(replace(expected, code="0" * 64))
    assert "gateau-dagster differs from the one that began this run" in line
    here = code_digest()
    code_digest.cache_clear()
    monkeypatch.setattr(worker, "_SOURCES", ("gateau_dagster",))
    assert code_digest() != here
    code_digest.cache_clear()


def test_a_missing_gpu(expected: Expected) -> None:
    [line] = problems(replace(expected, cuda=True))
    assert "torch finds none" in line and "execution.ray.gpus to 0" in line


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
