"""The sensors `failures` and `failed_checks` tell once of a run, with its reasons, and of nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from gateau_dagster.assets.runs.automation import failure_sensors, message
from gateau_dagster.assets.runs.launching import ASKED_BY_TAG, LOCATION, location_origin
from gateau_dagster.assets.steps.partitions import own_name
from gateau_dagster.config import Config, Prefixes
from gateau_dagster.config.execution import NotifyConfig
from gateau_dagster.errors import TransientError
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.notification import NotificationResource

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
    raise dg.Failure(
        description="no such folder: set HF_TOKEN", metadata={"assets": "perplexity/long + cam", "code": "hub.gated"}
    )


@dg.job(executor_def=dg.in_process_executor)
def everything() -> None:
    """Named as one of ours."""
    breaks()


@dg.asset
def cam() -> int:
    return 1


@dg.asset_check(asset=cam)
def finite_values() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.ERROR, metadata={"not_finite": 3})


@dg.asset_check(asset=cam)
def gate() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN)


CHECKED = dg.Definitions(
    executor=dg.in_process_executor,
    assets=[cam],
    asset_checks=[finite_values, gate],
    jobs=[
        dg.define_asset_job("checked"),
        dg.define_asset_job("unchecked", dg.AssetSelection.assets(cam).without_checks()),
    ],
)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    TOLD.clear()
    with DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    found = Config.model_validate({**SECTIONS, "execution": {"notify": NOTIFY}})
    monkeypatch.setattr(ConfigurationResource, "config", property(lambda _: found))
    return found


def ticks(instance: DagsterInstance, config: Config, name: str = "failures") -> Callable[[], str]:
    """A function that evaluates the sensor as the daemon does, and says why it did nothing more, or what ended it."""
    sensor = next(each for each in failure_sensors(config) if each.name == own_name(config, name))
    resources = {"configuration": ConfigurationResource(), "notification": Told()}
    resources = {own_name(config, key): resource for key, resource in resources.items()}
    cursor: str | None = None

    def tick() -> str:
        nonlocal cursor
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            instance=instance,
            cursor=cursor,
            resources={key: each.get_resource_definition() for key, each in resources.items()},
            repository_name=location_origin().repository_name,
            code_location_origin=location_origin().code_location_origin,
        )
        with context:
            data = sensor.evaluate_tick(context)
        cursor = data.cursor
        failed = [each.error.to_string() for each in data.dagster_run_reactions or [] if each.error is not None]
        return data.skip_message or "".join(failed)

    tick()  # from here on
    return tick


def ended(
    instance: DagsterInstance, job: dg.JobDefinition, *, location: str | None = LOCATION, **tags: str
) -> DagsterRun:
    """A run of the job as the daemon or `gateau run` makes one; of another code location, or of none."""
    origin = None
    if location is not None:
        ours = location_origin()
        place = ours.code_location_origin._replace(location_name=location)  # type: ignore[attr-defined]
        origin = ours._replace(code_location_origin=place).get_job_origin(job.name)
    run = instance.create_run_for_job(
        job,
        status=DagsterRunStatus.NOT_STARTED,
        tags=tags,
        remote_job_origin=origin,
        job_code_origin=None,
        asset_selection=job.asset_selection,
    )
    execute_run(InMemoryJob(job), run, instance)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def test_with_a_prefix_it_tells_of_the_runs_of_its_own_pipeline(instance: DagsterInstance, config: Config) -> None:
    tick = ticks(instance, config.prefixed(Prefixes(keys=("a", "b"))))
    skipped = ended(instance, everything)
    assert tick() == f"run {skipped.run_id} makes no asset below a/b"
    of_a_job = ended(instance, everything.graph.to_job("a__b__everything"))
    assert tick() == f"sent a message about run {of_a_job.run_id}"

    @dg.asset(key_prefix=["a", "b"])
    def cam() -> None:
        raise dg.Failure

    mine = dg.Definitions([cam], jobs=[dg.define_asset_job("mine")]).resolve_job_def("mine")
    of_an_asset = ended(instance, mine.get_subset(asset_selection={cam.key}))
    assert tick() == f"sent a message about run {of_an_asset.run_id}"


def test_it_tells_why_and_where_and_once(instance: DagsterInstance, config: Config) -> None:
    tick = ticks(instance, config)
    run = ended(instance, everything)
    assert tick() == f"sent a message about run {run.run_id}"
    ((subject, text),) = TOLD
    assert run.run_id[:8] in subject and "everything" in subject
    assert text.splitlines()[0] == "perplexity/long + cam: no such folder: set HF_TOKEN [hub.gated]"
    assert text.splitlines()[-1] == f"http://host:3000/runs/{run.run_id}"
    tick()
    assert len(TOLD) == 1


def test_what_ends_a_tick_holds_no_secret(
    instance: DagsterInstance, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "m4il-0123456789"
    monkeypatch.setenv("MAIL_PASSWORD", key)

    def send(*_: Any) -> None:
        raise TransientError("storage.connection", "the server did not take it") from OSError(f"535: {key}")

    monkeypatch.setattr(Told, "send", send)
    tick = ticks(instance, config)
    ended(instance, everything)
    stored = tick()
    assert "535: ***" in stored and key not in stored


def test_it_leaves_the_runs_of_other_code_locations_alone(instance: DagsterInstance, config: Config) -> None:
    """Also where their jobs have the names of ours."""
    tick = ticks(instance, config)
    for location in ("of_others", None):
        ended(instance, everything, location=location)
        tick()
    assert TOLD == []


def test_it_tells_once_of_a_refresh_and_of_what_is_executed_again(instance: DagsterInstance, config: Config) -> None:
    tick = ticks(instance, config)
    asked_for = {ASKED_BY_TAG: "the run that asked"}
    first = ended(instance, everything, **asked_for)
    assert "sends the message" in tick() and TOLD == []
    again = instance.create_run_for_job(
        everything,
        parent_run_id=first.run_id,
        root_run_id=first.run_id,
        tags=asked_for,
        status=DagsterRunStatus.STARTED,
        remote_job_origin=location_origin().get_job_origin("everything"),
    )
    instance.report_run_failed(again, "The process of this run is gone.")
    assert tick() == f"sent a message about run {again.run_id}", "nobody waits for it"
    assert TOLD[0][1].splitlines()[0] == "The process of this run is gone.", "no step says why"


def test_it_is_silent_on_what_turned_out_to_be_an_interrupt(instance: DagsterInstance, config: Config) -> None:
    tick = ticks(instance, config)
    run = ended(instance, everything)
    instance.report_run_canceled(run)
    assert tick() == f"run {run.run_id} is now CANCELED" and TOLD == []


@pytest.mark.parametrize("tags", [{}, {ASKED_BY_TAG: "the run that asked"}])
def test_failed_checks_are_told_of_by_the_run_that_has_them(
    instance: DagsterInstance, config: Config, tags: dict[str, str]
) -> None:
    """The run of `refresh` that asks for it has none."""
    tick = ticks(instance, config, "failed_checks")
    run = ended(instance, CHECKED.resolve_job_def("checked"), **tags)
    assert run.status is DagsterRunStatus.SUCCESS
    assert tick() == f"sent a message about run {run.run_id}"
    ((subject, text),) = TOLD
    assert subject.endswith("of checked ended with failed checks")
    assert text.splitlines()[0] == "cam: check finite_values failed (not_finite: 3)" and "check gate" not in text
    without = ended(instance, CHECKED.resolve_job_def("unchecked"), **tags)
    assert tick() == f"no check of run {without.run_id} failed as an error"


def test_nobody_is_told_where_nobody_is_named() -> None:
    assert failure_sensors(Config.model_validate(SECTIONS)) == []


def test_many_reasons_are_cut_and_secrets_left_out() -> None:
    run = DagsterRun(job_name="everything", status=DagsterRunStatus.FAILURE)
    reasons = [f"step {number}: https://me:secret@host" for number in range(13)]
    _, text = message(run, reasons, "s3://key:secret@bucket", None)
    assert "secret" not in text and "and 3 more" in text.splitlines()
