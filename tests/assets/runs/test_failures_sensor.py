"""The sensor `failures` tells once of a run that failed, with its reasons, and of nothing else."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from assets.runs.failures_sensor import failure_sensors, message
from gateau_dagster.config import Config
from gateau_dagster.config.notify import NotifyConfig
from resources.configuration import ConfigurationResource
from resources.notification import NotificationResource

SECTIONS: dict[str, Any] = {"long_sft": {"path": "x"}, "selection": {"method": "length"}}
NOTIFY = {"webhook": "GATEAU_TEST_WEBHOOK", "ui": "http://host:3000/"}


class Told(NotificationResource):
    """Keeps what it is told."""

    def send(self, settings: NotifyConfig, subject: str, text: str) -> None:
        """In place of a server."""
        TOLD.append((subject, text))


TOLD: list[tuple[str, str]] = []


@dg.op
def breaks() -> None:
    raise dg.Failure(description="no such folder: set HF_TOKEN", metadata={"assets": "perplexity/long + cam"})


@dg.job
def everything() -> None:
    """Named as one of ours."""
    breaks()


@dg.job
def somebody_elses() -> None:
    breaks()


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    TOLD.clear()
    with DagsterInstance.ephemeral() as found:
        yield found


def told_of(instance: DagsterInstance, run: DagsterRun, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    config = Config.model_validate({**SECTIONS, "execution": {"notify": NOTIFY}})
    monkeypatch.setattr(ConfigurationResource, "config", property(lambda _: config))
    sensor = next(each for each in failure_sensors(config, {"everything"}) if each.name == "failures")
    event = next(
        entry.get_dagster_event()
        for entry in instance.all_logs(run.run_id)
        if entry.is_dagster_event and entry.get_dagster_event().event_type_value == "PIPELINE_FAILURE"
    )
    context = dg.build_run_status_sensor_context("failures", event, instance, run)
    sensor(context, configuration=ConfigurationResource(), notification=Told())
    return TOLD


def failed_run(instance: DagsterInstance, job: dg.JobDefinition, **tags: str) -> DagsterRun:
    done = job.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
    run = instance.get_run_by_id(done.run_id)
    assert run is not None and run.status is DagsterRunStatus.FAILURE
    return run


def test_it_tells_why_and_where(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    run = failed_run(instance, everything)
    ((subject, text),) = told_of(instance, run, monkeypatch)
    assert run.run_id[:8] in subject and "everything" in subject
    assert text.splitlines()[0] == "perplexity/long + cam: no such folder: set HF_TOKEN"
    assert text.splitlines()[-1] == f"http://host:3000/runs/{run.run_id}"


def test_it_leaves_others_runs_alone_and_tells_once_of_a_refresh(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_of(instance, failed_run(instance, somebody_elses), monkeypatch) == []
    asked_for = {"gateau/refresh": "the run that asked"}
    assert told_of(instance, failed_run(instance, everything, **asked_for), monkeypatch) == []


def test_nobody_is_told_where_nobody_is_named() -> None:
    assert failure_sensors(Config.model_validate(SECTIONS), {"everything"}) == []


def test_many_reasons_are_cut_and_secrets_left_out() -> None:
    run = DagsterRun(job_name="everything", status=DagsterRunStatus.FAILURE)
    reasons = [f"step {number}: https://me:secret@host" for number in range(13)]
    _, text = message(run, reasons, "s3://key:secret@bucket", None)
    assert "secret" not in text and "and 3 more" in text.splitlines()
