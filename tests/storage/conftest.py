"""A store on this machine and one on S3."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import s3fs

from gateau_dagster.storage import Store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Store:
    """An empty store of each kind."""
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    return Store(f"s3://{request.getfixturevalue('bucket')}/some/prefix")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a request s3fs waits a hundredth of its time."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    monkeypatch.setattr(s3fs.core, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
