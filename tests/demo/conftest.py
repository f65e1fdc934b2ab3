"""One full pair for the tests that need a trained one: about a CPU minute, once per session."""

from pathlib import Path

import pytest

from gateau_dagster.demo.pair import build_pair


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the demo's pair, seed 0."""
    folder = tmp_path_factory.mktemp("trained") / "pair"
    build_pair(folder, seed=0)
    return folder
