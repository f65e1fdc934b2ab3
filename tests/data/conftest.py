"""Input on S3."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest


@pytest.fixture
def s3_put(s3_environment: str) -> Callable[[str, bytes], None]:
    """Puts an object into the bucket 'data-bucket'; the environment points to the server."""
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket="data-bucket")

    def put(key: str, body: bytes) -> None:
        client.put_object(Bucket="data-bucket", Key=key, Body=body)

    return put
