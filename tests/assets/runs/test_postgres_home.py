"""Dagster's home on a real PostgreSQL: by `execution.postgres`, by the user's own dagster.yaml; and what is missing."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance

from gateau_dagster.assets.runs.instance import open_instance, prepare_home, with_postgres
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.history import known_history
from tests.kit.error_codes import refused
from tests.kit.postgres_server import PASSWORD, USER, PostgresServer
from tests.kit.project import make_project

VARIABLE = "TEST_DAGSTER_POSTGRES"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("postgres")
    return make_project(folder, samples=2, shards=1, execution={"postgres": VARIABLE})


@pytest.fixture
def config(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """With a home of its own, and without the variable."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return load_project(project)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """Its URL; with Dagster's tables once the first test has made them."""
    return postgres.new_database("homes")


def own_home(folder: Path, storage: Any) -> None:
    folder.mkdir()
    (folder / "dagster.yaml").write_text(yaml.safe_dump({"telemetry": {"enabled": False}, "storage": storage}))


def test_the_records_are_in_the_database_and_the_url_is_in_no_file(
    config: Config, tmp_path: Path, database: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, database)
    with open_instance(config) as instance:
        instance.run_storage.set_cursor_values({"seen": "here"})
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1, "the rest is as without it"
    assert postgres.ask("select value from kvs where key = 'seen'", "homes") == "here"
    with DagsterInstance.get() as of_dagsters_own_commands:
        assert of_dagsters_own_commands.run_storage.get_cursor_values({"seen"}) == {"seen": "here"}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(PASSWORD.encode() in content for content in written)
    assert not list(tmp_path.rglob("*.db"))


def test_a_machine_that_has_never_run_sees_what_another_one_has_recorded(
    config: Config, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, database)
    with open_instance(config) as instance:
        instance.run_storage.set_cursor_values({"seen": "there"})
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "another home"))
    assert known_history(config) is None
    with open_instance(config) as records:
        assert records.run_storage.get_cursor_values({"seen"}) == {"seen": "there"}


@pytest.mark.parametrize("form", ["a URL", "its parts", "the name in homes of version 0.1"])
def test_a_storage_of_the_users_own_is_used_as_it_is(
    config: Config, tmp_path: Path, database: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv(VARIABLE, database)
    monkeypatch.setenv("TEST_PASSWORD", PASSWORD)
    parts = {"username": USER, "hostname": "127.0.0.1", "port": postgres.port, "db_name": "homes"}
    storage = {
        "a URL": {"postgres": {"postgres_url": {"env": VARIABLE}}},
        "its parts": {"postgres": {"postgres_db": {**parts, "password": {"env": "TEST_PASSWORD"}}}},
        "the name in homes of version 0.1": {
            "custom": {
                "module": "gateau_dagster.resources.postgres",
                "class": "PostgresStorage",
                "config": {"postgres_url": {"env": VARIABLE}},
            }
        },
    }[form]
    own_home(tmp_path / "home", storage)
    before = (tmp_path / "home" / "dagster.yaml").read_text()
    without = config.model_copy(update={"execution": config.execution.model_copy(update={"postgres": None})})
    with open_instance(without) as instance:
        assert instance.get_runs() == []
        assert PASSWORD not in str(instance.get_ref())
    assert (tmp_path / "home" / "dagster.yaml").read_text() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "TEST_DAGSTER_POSTGRES is not set"),
        (f"postgresql://{USER}:wrong-secret@127.0.0.1:PORT/homes", "password is wrong"),
        (f"postgresql://{USER}:{PASSWORD}@127.0.0.1:PORT/nowhere", "no such database"),
        (f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/homes", "cannot be reached"),
        (f"postgresql://{USER}:{PASSWORD}@nobody.invalid/homes", "cannot be reached"),
        (f"postgresql://{USER}:{PASSWORD}@127.0.0.1:PORT/homes?nonsense=1", "nonsense"),
        (f"mysql://{USER}:{PASSWORD}@127.0.0.1/homes", "mysql"),
        (f"{USER}:{PASSWORD}", "not the URL"),
    ],
)
def test_what_is_wrong_with_the_server_is_one_line(
    config: Config, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, url: str | None, said: str
) -> None:
    if url is not None:
        monkeypatch.setenv(VARIABLE, url.replace("PORT", str(postgres.port)))
    with pytest.raises(GateauError, match=said) as failure:
        open_instance(config)
    told = str(failure.value)
    assert told.startswith("execution.postgres: ") and VARIABLE in told
    assert "\n" not in told and "secret" not in told and PASSWORD not in told


def test_a_user_without_rights_is_one_line(
    config: Config, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From version 15 on PostgreSQL lets only a database's owner create tables."""
    url = postgres.new_database("of_another")
    postgres.ask(f"create role guest login password '{PASSWORD}'")
    postgres.ask("revoke create on schema public from public", "of_another")
    monkeypatch.setenv(VARIABLE, url.replace(f"//{USER}:", "//guest:"))
    with refused("dagster.tables", match=r"^execution\.postgres") as failure:
        open_instance(config)
    assert "\n" not in str(failure.value) and PASSWORD not in str(failure.value)


def test_missing_packages_are_one_line(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://u@127.0.0.1:1/d")
    for name in ("gateau_dagster.resources.postgres", "dagster_postgres"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "dagster_postgres", None)
    with refused("execution.postgres_package", match=r"pip install 'gateau-dagster\[postgres\]'") as failure:
        open_instance(config)
    assert "\n" not in str(failure.value)


def test_a_file_of_the_users_own_gets_the_storage_that_it_lacks(config: Config, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("# mine\ntelemetry: {enabled: false}")
    prepare_home(config)
    once = (home / "dagster.yaml").read_text()
    found = yaml.safe_load(once)
    assert once.startswith("# mine\n") and found["telemetry"] == {"enabled": False}
    assert found["storage"]["postgres"] == {"postgres_url": {"env": VARIABLE}}
    prepare_home(config)
    assert (home / "dagster.yaml").read_text() == once


@pytest.mark.parametrize(
    "storage",
    [
        {"sqlite": {"base_dir": "/tmp"}},
        {"postgres": {"postgres_url": {"env": "ANOTHER"}}},
        {"postgres": {"postgres_url": "postgresql://u@h/d"}},
        {"postgres": {"postgres_db": {"username": "u"}}},
        {"custom": {"module": "gateau_dagster.resources.postgres", "class": "PostgresStorage", "config": None}},
        "nonsense",
        None,
    ],
)
def test_two_databases_are_refused(config: Config, tmp_path: Path, storage: Any) -> None:
    own_home(tmp_path / "home", storage)
    with refused("dagster.storage"):
        prepare_home(config)


def test_the_same_database_twice_is_none_too_many(config: Config, tmp_path: Path) -> None:
    own_home(tmp_path / "home", {"postgres": {"postgres_url": {"env": VARIABLE}}})
    prepare_home(config)


@pytest.mark.parametrize("content", [b"{{{:", b"- a list", b"\xff\xfe\x00", b"[" * 100_000])
def test_what_is_no_dagster_yaml_stays_as_it_is(content: bytes) -> None:
    assert with_postgres(content, VARIABLE, Path("dagster.yaml")) == content
