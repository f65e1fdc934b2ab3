"""What a click in the UI does: jobs and backfills launched through the web server and the daemon of `gateau dev`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.project import command_environment, make_project, sample, write_samples

pytestmark = pytest.mark.slow
WHERE = {"repositoryLocationName": "gateau_dagster", "repositoryName": "__repository__"}
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
RUNS = "{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"
SENSOR = (
    """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState { status } } } }"""
)
START = """mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename
  ... on Sensor { sensorState { id status } } ... on PythonError { message } } }"""
SCHEDULE = """query($s: ScheduleSelector!) { scheduleOrError(scheduleSelector: $s) {
  ... on Schedule { scheduleState { status } } } }"""
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename
  ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
BACKFILL_STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status error { message } } } }"""


class Ui:
    """`gateau dev` on a project."""

    def __init__(self, file: Path, log: Path) -> None:
        self.file = file
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gateau_dagster.cli",
                "dev",
                "--config",
                str(file),
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
            ],
            cwd=file.parent,
            env=command_environment(),
            start_new_session=True,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data that GraphQL answers."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        return found["data"]

    def wait(self, what: str, ready: Callable[[], Any], seconds: float = 240) -> Any:
        """What `ready` returns once it is true."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"no {what} within {seconds} s\n{self.log.read_text()[-5000:]}"
            time.sleep(0.5)
        return found

    def is_up(self) -> bool:
        """Whether the code location is loaded."""
        try:
            return bool(
                self.ask("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")[
                    "repositoriesOrError"
                ].get("nodes")
            )
        except OSError:
            return False

    def runs(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        return self.ask(RUNS)["runsOrError"]["results"]

    def ended(self, run_id: str) -> str:
        """The status of a run, empty while it is at work."""
        status = next(run["status"] for run in self.runs() if run["runId"] == run_id)
        return status if status in {"SUCCESS", "FAILURE", "CANCELED"} else ""

    def stop(self) -> None:
        """Ends the web server and the daemon, then whatever is left of their group."""
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui")
    ui = Ui(make_project(folder, samples=12, shards=3), folder / "dev.log")
    try:
        ui.wait("web server", ui.is_up)
        yield ui
    finally:
        ui.stop()


def launch_refresh(ui: Ui) -> str:
    params = {"selector": {**WHERE, "jobName": "refresh"}, "runConfigData": {}, "mode": "default"}
    launched = ui.ask(LAUNCH, p=params)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return launched["run"]["runId"]


def state(ui: Ui) -> State:
    return State(config=load_project(ui.file))


def bring_up_to_date(ui: Ui) -> None:
    """Whichever test comes first."""
    if state(ui).plan():
        run_id = launch_refresh(ui)
        assert ui.wait("end of refresh", lambda: ui.ended(run_id)) == "SUCCESS", ui.log.read_text()[-5000:]


def test_refresh_by_one_click_then_nothing_then_a_change(ui: Ui) -> None:
    first = launch_refresh(ui)
    assert ui.wait("end of refresh", lambda: ui.ended(first)) == "SUCCESS", ui.log.read_text()[-5000:]
    work = [run for run in ui.runs() if run["jobName"] == "everything"]
    assert [run["status"] for run in work] == ["SUCCESS"]
    assert {"key": "gateau/refresh", "value": first} in work[0]["tags"]
    assert not state(ui).plan()


def test_schedule_and_sensor_are_off(ui: Ui) -> None:
    sensor = ui.ask(SENSOR, s={**WHERE, "sensorName": "out_of_date"})["sensorOrError"]
    assert sensor["sensorState"]["status"] == "STOPPED"
    schedule = ui.ask(SCHEDULE, s={**WHERE, "scheduleName": "nightly_refresh"})["scheduleOrError"]
    assert schedule["scheduleState"]["status"] == "STOPPED"


@pytest.mark.long
def test_a_backfill_of_shards_that_are_up_to_date_succeeds(ui: Ui) -> None:
    """They cost nothing, but Dagster takes a shard that a backfill's run does not record for a failed one."""
    bring_up_to_date(ui)
    params = {
        "assetSelection": [{"path": ["raw_long_sft"]}, {"path": ["cam"]}, {"path": ["combined_scores"]}],
        "allPartitions": True,
    }
    launched = ui.ask(BACKFILL, p=params)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched

    def over() -> str:
        found = ui.ask(BACKFILL_STATUS, id=launched["backfillId"])["partitionBackfillOrError"]
        return found["status"] if found["status"] not in {"REQUESTED", "CANCELING"} else ""

    assert ui.wait("end of the backfill", over) == "COMPLETED_SUCCESS"
    of_backfill = {"key": "dagster/backfill", "value": launched["backfillId"]}
    runs = [run for run in ui.runs() if of_backfill in run["tags"]]
    assert [run["status"] for run in runs] == ["SUCCESS"] * len(runs)
    assert len(runs) <= 3, "one run takes many shards"


@pytest.mark.long
def test_the_sensor_launches_refresh_after_a_change(ui: Ui) -> None:
    bring_up_to_date(ui)
    before = {run["runId"] for run in ui.runs()}
    records = [sample(number) for number in range(12)]
    records[2]["response"] = "changed ."
    write_samples(ui.file.parent / "long.jsonl", records)
    assert state(ui).plan()
    started = ui.ask(START, s={**WHERE, "sensorName": "out_of_date"})["startSensor"]
    assert started["sensorState"]["status"] == "RUNNING", started

    def launched() -> str:
        new = [run for run in ui.runs() if run["runId"] not in before and run["jobName"] == "refresh"]
        return new[0]["runId"] if new else ""

    run_id = ui.wait("run of the sensor", launched)
    assert ui.wait("end of refresh", lambda: ui.ended(run_id)) == "SUCCESS", ui.log.read_text()[-5000:]
    tags = next(run["tags"] for run in ui.runs() if run["runId"] == run_id)
    assert {"key": "dagster/sensor_name", "value": "out_of_date"} in tags
    assert not state(ui).plan()
