"""A worker pool is one file."""

from pathlib import Path

import pytest

from gateau_dagster.config import Config, ExecutionConfig
from gateau_dagster.config.inputs import LongSftConfig
from gateau_dagster.resources import pools
from gateau_dagster.resources.pools.pool import chosen_pool
from tests.kit.error_codes import refused

ADDED = """
from gateau_dagster.resources.pools.pool import Pool

POOL = Pool(name="cloud", workers=lambda task, warn: None)
"""


def configured(pool: str) -> Config:
    return Config(long_sft=LongSftConfig(path="long.jsonl"), execution=ExecutionConfig(pool=pool))


def test_a_pool_is_found_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("execution.pool", match=r"^execution\.pool: .*'cloud'; .*processes, ray$"):
        chosen_pool(configured("cloud"))
    (tmp_path / "cloud_of_a_test.py").write_text(ADDED)
    monkeypatch.setattr(pools, "__path__", [*pools.__path__, str(tmp_path)])
    assert chosen_pool(configured("cloud")).name == "cloud"
    assert chosen_pool(configured("processes")).name == "processes"
    with refused("execution.pool", match=r"'crowd'; did you mean cloud\?$"):
        chosen_pool(configured("crowd"))
