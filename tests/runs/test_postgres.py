"""Dagster on PostgreSQL: command line, web server and daemon, from plan to report."""

from pathlib import Path

import pytest
import yaml

from tests.kit.postgres_server import PASSWORD, USER, PostgresServer
from tests.kit.project import gateau, make_demo, make_project
from tests.runs.test_many_kills import launch_refresh
from tests.ui.server import serve

pytestmark = pytest.mark.long
VARIABLE = "TEST_DAGSTER_POSTGRES"


def statuses(postgres: PostgresServer, database: str) -> list[str]:
    """Return the states of all runs in the database, oldest first."""
    return postgres.ask("select status from runs order by id", database).splitlines()


def assert_no_files_of_records(folder: Path) -> None:
    home = folder / ".gateau" / "dagster"
    assert not [*home.rglob("*.db")]
    assert not [path for path in folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.mark.timeout(1800)
def test_the_demo_from_plan_to_report_with_the_users_own_dagster_yaml(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Dagster's documentation writes it: without a word about drivers."""
    monkeypatch.setenv("TEST_PASSWORD", PASSWORD)
    postgres.new_database("demo")
    file, home = make_demo(tmp_path), tmp_path / ".gateau" / "dagster"
    parts = {"username": USER, "hostname": "127.0.0.1", "port": postgres.port, "db_name": "demo"}
    home.mkdir(parents=True)
    storage = {"postgres": {"postgres_db": {**parts, "password": {"env": "TEST_PASSWORD"}}}}
    (home / "dagster.yaml").write_text(yaml.safe_dump({"storage": storage, "telemetry": {"enabled": False}}))
    config = ("--config", str(file))
    assert "perplexity/long" in gateau("plan", *config, folder=tmp_path).stdout
    assert "Report:" in gateau("run", *config, folder=tmp_path).stdout
    assert (tmp_path / "store" / "report.html").stat().st_size > 100_000
    assert "Everything is up to date" in gateau("run", *config, folder=tmp_path).stdout
    assert statuses(postgres, "demo") == ["SUCCESS"]
    with serve(file) as server:
        assert server.not_fresh() == {}
        assert server.ended(launch_refresh(server), seconds=240)["status"] == "SUCCESS"
    assert statuses(postgres, "demo") == ["SUCCESS"] * 2, "nothing was out of date"
    assert int(postgres.ask("select count(*) from daemon_heartbeats", "demo")) > 0
    assert_no_files_of_records(tmp_path)


def test_a_refresh_from_the_ui_with_the_url_in_the_environment(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, postgres.new_database("ui"))
    file = make_project(tmp_path, samples=8, shards=2, execution={"postgres": VARIABLE})
    with serve(file) as server:
        assert server.ended(launch_refresh(server), seconds=240)["status"] == "SUCCESS"
        assert server.not_fresh() == {}
    assert (tmp_path / "store" / "report.html").exists()
    assert {*statuses(postgres, "ui")} == {"SUCCESS"}
    assert "Everything is up to date" in gateau("run", "--config", str(file), folder=tmp_path).stdout
    assert_no_files_of_records(tmp_path)
