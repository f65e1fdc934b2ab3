"""What the daemon of `gateau dev` does: backfills, runs of sensor and schedule, runs that die or are terminated."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateau_dagster.assets.runs.launching import LOCATION
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import change_config, command_environment, make_project, sample, write_samples
from tests.ui.server import Server, process_of, serve

pytestmark = pytest.mark.long
SAMPLES = 12
OF_LOCATION = f'repositoryLocationName: "{LOCATION}", repositoryName: "__repository__"'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its schedule comes every minute."""
    folder = tmp_path_factory.mktemp("daemon")
    return make_project(folder, samples=SAMPLES, shards=3, execution={"schedule": "* * * * *"})


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    with serve(file) as found:
        yield found


@pytest.fixture
def current(server: Server, file: Path) -> None:
    """Everything is up to date."""
    if state_of(config=load_project(file)).plan():
        assert server.ended(server.launch("refresh"))["status"] == "SUCCESS"


def edit(file: Path, number: int) -> None:
    records = [sample(each) for each in range(SAMPLES)]
    records[number]["response"] = "changed ."
    write_samples(file.parent / "long.jsonl", records)


def test_a_backfill_of_shards_that_are_up_to_date_succeeds(current: None, server: Server) -> None:
    """They cost nothing, but Dagster takes a shard that a backfill's run does not record for a failed one."""
    assets = ", ".join(f'{{path: ["{name}"]}}' for name in ("raw_long_sft", "cam", "combined_scores"))
    answer = server.graphql(
        f"mutation {{launchPartitionBackfill(backfillParams: {{assetSelection: [{assets}], allPartitions: true}}) "
        "{__typename ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}"
    )
    backfill = answer["launchPartitionBackfill"]["backfillId"]
    question = f'{{partitionBackfillOrError(backfillId: "{backfill}") {{... on PartitionBackfill {{status}}}}}}'

    def over() -> str | None:
        status = server.graphql(question)["partitionBackfillOrError"]["status"]
        return None if status in {"REQUESTED", "CANCELING"} else status

    assert server.wait(over, "the end of the backfill", seconds=240) == "COMPLETED_SUCCESS"
    runs = [run for run in server.runs() if run["tags"].get("dagster/backfill") == backfill]
    assert [run["status"] for run in runs] == ["SUCCESS"] * len(runs)
    assert len(runs) <= 3, "one run takes many shards"


def test_the_sensor_launches_refresh_after_a_change(current: None, server: Server, file: Path) -> None:
    before = {run["runId"] for run in server.runs()}
    edit(file, 2)
    selector = f'sensorSelector: {{{OF_LOCATION}, sensorName: "out_of_date"}}'
    server.graphql(f"mutation {{startSensor({selector}) {{... on Sensor {{sensorState {{id}}}}}}}}")
    try:
        new = server.wait(
            lambda: [run for run in server.runs("refresh") if run["runId"] not in before], "its run", seconds=180
        )
        assert server.ended(new[0]["runId"])["status"] == "SUCCESS"
        assert new[0]["tags"]["dagster/sensor_name"] == "out_of_date"
    finally:
        states = f"sensorOrError({selector}) {{... on Sensor {{sensorState {{id}}}}}}"
        state = server.graphql(f"{{{states}}}")["sensorOrError"]["sensorState"]["id"]
        server.graphql(f'mutation {{stopSensor(id: "{state}") {{__typename}}}}')
    assert not state_of(config=load_project(file)).plan()


def test_a_killed_run_ends_and_the_next_goes_on(current: None, server: Server, file: Path) -> None:
    change_config(file, scoring={"segment_length": 8})
    refresh = server.launch("refresh")
    work = server.at_work(refresh)
    os.kill(process_of(server, work), signal.SIGKILL)
    assert server.ended(work["runId"])["status"] == server.ended(refresh)["status"] == "FAILURE"
    assert server.ended(server.launch("refresh"))["status"] == "SUCCESS"
    assert not state_of(config=load_project(file)).plan()
    server.reload()  # until then Dagster compares with the configuration before the edit
    assert server.not_fresh() == {}


def test_work_goes_on_where_its_refresh_is_killed(current: None, server: Server, file: Path) -> None:
    change_config(file, scoring={"segment_length": 12})
    refresh = server.launch("refresh")
    work = server.at_work(refresh)
    os.kill(process_of(server, server.run(refresh)), signal.SIGKILL)
    assert server.ended(refresh)["status"] == "FAILURE"
    assert server.ended(work["runId"])["status"] == "SUCCESS"
    assert not state_of(config=load_project(file)).plan()


def test_a_run_that_is_terminated_ends_the_refresh_that_waits_for_it(current: None, server: Server, file: Path) -> None:
    change_config(file, scoring={"segment_length": 20})
    refresh = server.launch("refresh")
    work = server.at_work(refresh)
    assert server.terminate(work["runId"]) == "TerminateRunSuccess"
    assert server.ended(work["runId"])["status"] == server.ended(refresh)["status"] == "CANCELED"
    again = server.execute_again(work["runId"], "FROM_FAILURE")
    assert server.ended(again)["status"] == "SUCCESS"
    assert not state_of(config=load_project(file)).plan()


def test_a_run_of_the_terminal_belongs_to_the_location_and_ends_from_the_ui(
    current: None, server: Server, file: Path
) -> None:
    change_config(file, scoring={"segment_length": 24})
    before = {run["runId"] for run in server.runs()}
    command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file)]
    with subprocess.Popen(command, cwd=file.parent, env=command_environment(), stderr=subprocess.PIPE) as terminal:
        found = server.wait(
            lambda: [run for run in server.runs("everything") if run["runId"] not in before], "the terminal's run"
        )
        run = found[0]["runId"]
        server.wait(lambda: server.run(run)["status"] == "STARTED", "its start")
        assert server.terminate(run) == "TerminateRunSuccess"
        _, said = terminal.communicate(timeout=120)
    assert terminal.returncode == 130
    assert len(said.decode().strip().splitlines()) == 1, said.decode()
    assert server.ended(run)["status"] == "CANCELED"
    assert server.run(run)["tags"]["dagster/code_location"] == LOCATION
    again = server.execute_again(run, "ALL_STEPS")
    assert server.ended(again)["status"] == "SUCCESS"
    assert not state_of(config=load_project(file)).plan()


def test_ten_minutes_of_a_schedule_with_one_edit_are_one_run_and_nine_skips(
    current: None, server: Server, file: Path
) -> None:
    runs = len(server.runs("refresh"))
    selector = f'scheduleSelector: {{{OF_LOCATION}, scheduleName: "nightly_refresh"}}'
    server.graphql(f"mutation {{startSchedule({selector}) {{... on ScheduleStateResult {{__typename}}}}}}")

    def ticks() -> list[str]:
        state = f"scheduleOrError({selector}) {{... on Schedule {{scheduleState {{ticks {{status}}}}}}}}"
        return [tick["status"] for tick in server.graphql(f"{{{state}}}")["scheduleOrError"]["scheduleState"]["ticks"]]

    server.wait(lambda: len(ticks()) >= 3, "three ticks", seconds=300)
    edit(file, 7)
    server.wait(lambda: len(ticks()) >= 10 and "STARTED" not in ticks(), "ten ticks", seconds=600)
    last = sorted(ticks()[:10])
    assert last == ["SKIPPED"] * 9 + ["SUCCESS"]
    new = server.runs("refresh")[:-runs]
    assert [server.ended(run["runId"])["status"] for run in new] == ["SUCCESS"]
    assert new[0]["tags"]["dagster/schedule_name"] == "nightly_refresh"
