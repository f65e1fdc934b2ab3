"""A real PostgreSQL server of its own: from Debian's packages, on a free port, gone at the end."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WITHOUT = "PostgreSQL is not installed (apt-get install postgresql)"
USER, PASSWORD = "dagster", "s3cret-of-the-test"
_START_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class PostgresServer:
    """The running server. process: its first one, of a process group of its own."""

    port: int
    binaries: Path
    process: subprocess.Popen[bytes]

    def url(self, database: str = "postgres", *, password: str = PASSWORD, scheme: str = "postgresql") -> str:
        """Return the URL of one of its databases."""
        return f"{scheme}://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Its URL."""
        self.ask(f"create database {name}")
        return self.url(name)

    def ask(self, query: str, database: str = "postgres") -> str:
        """What psql prints for it."""
        command = [self.binaries / "psql", "--no-psqlrc", "-tA", "-c", query, self.url(database)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def installed_binaries() -> Path | None:
    """The folder of the server's programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).parent if named else None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Starts it; the server refuses to be root, and is nobody then."""
    binaries = installed_binaries()
    assert binaries is not None, WITHOUT
    who = "nobody" if os.geteuid() == 0 else getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="gateau-postgres-", dir="/tmp"))  # pytest's folders are for their owner alone
    try:
        shutil.chown(folder, who)
        _initialise(binaries, folder, who)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off"}
        command = [binaries / "postgres", "-D", folder / "data", *(f"--{name}={of}" for name, of in settings.items())]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, user=who, start_new_session=True, stdout=log, stderr=log)
        try:
            _wait(binaries, port, folder / "log")
            yield PostgresServer(port=port, binaries=binaries, process=process)
        finally:
            process.send_signal(signal.SIGINT)  # it ends its sessions
            process.wait(timeout=30)
    finally:
        shutil.rmtree(folder)


def _initialise(binaries: Path, folder: Path, who: str) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    shutil.chown(secret, who)
    command = [binaries / "initdb", "-D", folder / "data", "-U", USER, "-A", "scram-sha-256", "--no-sync", "-E", "UTF8"]
    subprocess.run([*command, f"--pwfile={secret}"], user=who, cwd="/", capture_output=True, check=True)


def _wait(binaries: Path, port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while subprocess.run([binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
