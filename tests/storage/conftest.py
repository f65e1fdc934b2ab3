"""A real S3 server on this machine, and a store on it."""

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from gateau_dagster.storage import Store


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3_environment(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process's S3 settings lead to the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield server
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3_environment: str) -> str:
    """A new bucket's name."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Store:
    """An empty store of each kind."""
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    return Store(f"s3://{request.getfixturevalue('bucket')}/some/prefix")
