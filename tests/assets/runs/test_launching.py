"""A run that waits for another one needs a queue with a place for that."""

from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from assets.runs.launching import require_queue
from gateau_dagster.errors import GateauError

ONE_BY_ONE = {"concurrency": {"runs": {"max_concurrent_runs": 1}}}
WITHOUT_QUEUE = {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}}


@pytest.mark.parametrize(("settings", "names"), [(ONE_BY_ONE, "max_concurrent_runs"), (WITHOUT_QUEUE, "coordinator")])
def test_what_would_wait_for_ever_is_said(settings: dict[str, Any], names: str, tmp_path: Path) -> None:
    with (
        DagsterInstance.local_temp(str(tmp_path), overrides=settings) as instance,
        pytest.raises(GateauError, match=rf"^dagster\.yaml: .*{names}"),
    ):
        require_queue(instance)


@pytest.mark.parametrize("settings", [{}, {"concurrency": {"runs": {"max_concurrent_runs": 2}}}])
def test_a_queue_with_two_places(settings: dict[str, Any], tmp_path: Path) -> None:
    with DagsterInstance.local_temp(str(tmp_path), overrides=settings) as instance:
        require_queue(instance)
