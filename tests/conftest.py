"""For all tests: no time limit an example, since the cores are shared, and the long modules begin first; a real S3
server on this machine, one for each test process."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow modules first: one that began last would keep one process busy while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Its address."""
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3_environment(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process's S3 settings lead to the server."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3_server
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3_environment: str) -> str:
    """A new bucket's name."""
    import boto3

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket=name)
    return name
