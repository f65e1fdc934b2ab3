"""The services of the compose file as processes of this machine: their commands and environments are the file's own.

Containers, the image and Ray's nodes are not part of it; S3 is moto's server, PostgreSQL is real.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import psutil
import pytest
import yaml

from gateau_dagster.storage import Store
from tests.examples.deployment.builders import Here, Service, services
from tests.kit.postgres_server import PASSWORD, PostgresServer
from tests.kit.project import command_environment, make_project
from tests.ui.server import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SECRETS = {"POSTGRES_PASSWORD": PASSWORD, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-store"}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Deployment:
    """What was started. folder: the user's copy of the compose folder."""

    def __init__(self, folder: Path, postgres: PostgresServer, s3: str) -> None:
        code, web = free_ports(2)
        addresses = {
            "postgres:5432": f"127.0.0.1:{postgres.port}",
            "http://s3:8333": s3,
            "code:4000": f"127.0.0.1:{code}",
            "webserver:3000": f"127.0.0.1:{web}",
        }
        self.services, self.url = services(SECRETS), f"http://127.0.0.1:{web}"
        self.folder, self.here = folder, Here(folder, addresses)
        workspace = yaml.safe_load((folder / "workspace.yaml").read_text())
        workspace["load_from"][0]["grpc_server"] |= {"host": "127.0.0.1", "port": code}
        (folder / "workspace.yaml").write_text(yaml.safe_dump(workspace))
        for service in self.services.values():
            self.here.mount(service)

    def environment(self, service: Service) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return command_environment(**self.here.environment(service), PATH=path)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A service that ends, or another command in one, as by `docker compose exec`."""
        service = self.services[name]
        command = self.here.command(service, [*words] or service.command)
        return subprocess.run(
            command, env=self.environment(service), cwd=self.folder, capture_output=True, text=True, check=False
        )

    @contextmanager
    def started(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A service that stays, until the end of the block: then by SIGTERM, as `docker compose stop` does."""
        service, log = self.services[name], self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.here.command(service, service.command),
                env=self.environment(service),
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def wait_healthy(self, name: str, process: subprocess.Popen[bytes], *, seconds: float = 120) -> None:
        """Wait for the service's own health check."""
        deadline = time.monotonic() + seconds
        while self.run(name, *self.services[name].health).returncode:
            log = (self.folder / f"{name}.log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, log
            time.sleep(1)


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, s3_server: str
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment") / "compose"
    database = f"postgresql://dagster:{PASSWORD}@127.0.0.1:{postgres.port}/dagster"
    assert postgres.new_database("dagster") == database, "the user and the database of the compose file"
    found = Deployment(folder, postgres, s3_server)
    own = yaml.safe_load((folder / "project" / "gateau.yaml").read_text())
    kept = {"storage": own["storage"], "execution": {"postgres": own["execution"]["postgres"]}}
    make_project(folder / "project", samples=8, shards=2, **kept)
    yield found


@pytest.fixture(scope="module")
def server(deployment: Deployment) -> Iterator[Server]:
    """All is up; the one-shot services have ended well."""
    store = [deployment.run("store") for _ in range(2)]
    assert any(done.returncode == 0 for done in store), store  # see test_make_bucket.py
    tables = deployment.run("tables")
    assert tables.returncode == 0, tables.stdout + tables.stderr
    with ExitStack() as stack:
        code = stack.enter_context(deployment.started("code"))
        deployment.wait_healthy("code", code)
        daemon = stack.enter_context(deployment.started("daemon"))
        web = stack.enter_context(deployment.started("webserver"))
        server = Server(url=deployment.url, log=deployment.folder / "webserver.log", process=web)
        deployment.wait_healthy("webserver", web)
        deployment.wait_healthy("daemon", daemon)
        yield server
        memory = {each: _memory(process) for each, process in (("code", code), ("daemon", daemon), ("webserver", web))}
        print(f"resident, MB: {memory}")  # noqa: T201  what the page says it costs


def _memory(process: subprocess.Popen[bytes]) -> int:
    first = psutil.Process(process.pid)
    return sum(each.memory_full_info().pss for each in [first, *first.children(recursive=True)]) // 1_000_000


def test_a_refresh_of_the_ui_works_in_the_code_location_and_fills_the_store(
    server: Server, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.ended(server.launch("refresh"))["status"] == "SUCCESS"
    assert server.not_fresh() == {}
    for name, value in deployment.environment(deployment.services["code"]).items():
        monkeypatch.setenv(name, value)
    store = Store("s3://gateau/store")
    assert pl.read_parquet(store.files.read("combined_scores.parquet")).height == 8


def test_the_terminal_shares_records_with_the_ui(server: Server, deployment: Deployment) -> None:
    before = len(server.runs())
    assert "Everything is up to date" in deployment.run("code", "gateau", "run").stdout
    samples = deployment.folder / "project" / "long.jsonl"
    samples.write_text(samples.read_text().replace("recall", "tell", 1))
    done = deployment.run("code", "gateau", "run", "--until", "combined_scores")
    assert done.returncode == 0, done.stderr
    assert len(server.runs()) == before + 1


def test_records_are_in_postgresql_and_secrets_in_no_file(
    server: Server, deployment: Deployment, postgres: PostgresServer
) -> None:
    assert {*postgres.ask("select status from runs", "dagster").splitlines()} == {"SUCCESS"}
    files = [path for path in deployment.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".db"]
    secrets = [SECRETS["POSTGRES_PASSWORD"].encode(), SECRETS["AWS_SECRET_ACCESS_KEY"].encode()]
    assert not [path for path in files for secret in secrets if secret in path.read_bytes()]
