"""A step of a run that is to end does not begin, and one that has begun does not go on."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.errors import DagsterExecutionInterruptedError
from sqlalchemy.exc import OperationalError

from gateau_dagster.assets.steps import step as termination
from gateau_dagster.assets.steps.step import OfRun, heed_termination, heeding


@dg.job
def empty_job() -> None:
    """Nothing."""


@dataclass
class Context:
    instance: DagsterInstance
    run_id: str


@pytest.fixture
def context() -> Iterator[OfRun]:
    with DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(empty_job, status=DagsterRunStatus.STARTED)
        yield Context(instance, run.run_id)


def ask_to_end(context: OfRun) -> None:
    run = context.instance.get_run_by_id(context.run_id)
    assert run is not None
    context.instance.report_run_canceling(run)


def test_before_a_step(context: OfRun) -> None:
    heed_termination(context)
    ask_to_end(context)
    with pytest.raises(DagsterExecutionInterruptedError):
        heed_termination(context)


def test_within_a_step(context: OfRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_SECONDS_BETWEEN_LOOKS", 0.0)
    told = []

    def progress(done: float, *_: object, **__: object) -> None:
        told.append(done)

    report = heeding(context, progress)
    report(1, 3, "samples")
    ask_to_end(context)
    with pytest.raises(DagsterExecutionInterruptedError):
        report(2, 3, "samples")
    assert told == [1, 2]


def test_reports_of_other_threads_do_not_keep_it_from_being_heard(
    context: OfRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "_SECONDS_BETWEEN_LOOKS", 0.2)
    report = heeding(context, lambda *_, **__: None)
    ask_to_end(context)
    time.sleep(0.3)
    with ThreadPoolExecutor(1) as other:
        other.submit(report, 1, 3, "samples").result()
    with pytest.raises(DagsterExecutionInterruptedError):
        report(2, 3, "samples")


def test_records_that_are_out_of_reach_end_nothing(context: OfRun, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_to_end(context)
    with monkeypatch.context() as patch:
        patch.setattr(DagsterInstance, "get_run_by_id", out_of_reach)
        heed_termination(context)
    with pytest.raises(DagsterExecutionInterruptedError):
        heed_termination(context)


def out_of_reach(*_: object) -> None:
    raise OperationalError("select", None, ConnectionError("the server is starting"))
