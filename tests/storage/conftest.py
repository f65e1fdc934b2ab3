"""A store on this machine and one on S3."""

from typing import Any

import pytest

from gateau_dagster.storage import Store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Store:
    """An empty store of each kind."""
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    return Store(f"s3://{request.getfixturevalue('bucket')}/some/prefix")
