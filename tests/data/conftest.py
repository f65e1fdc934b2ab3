"""A real S3 server on this machine for the tests of `s3://`."""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_put(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """Puts an object into the bucket 'data-bucket'; the environment points to the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket="data-bucket")

    def put(key: str, body: bytes) -> None:
        client.put_object(Bucket="data-bucket", Key=key, Body=body)

    return put
