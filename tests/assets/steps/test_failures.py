"""What fails transiently is tried again with back-off; what must fail again is told at once; a defect stays one."""

import errno
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from gateau_dagster.assets.steps import failures
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.errors import GateauError, TransientError
from tests.assets.harness import Pipeline


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_FIRST_WAIT_SECONDS", 0.2)


def run(errors: list[Exception], retries: int) -> tuple[dg.ExecuteInProcessResult, list[float]]:
    """A step that raises the errors one after the other, then succeeds; with the times of its attempts."""
    waiting: Iterator[Exception] = iter(errors)
    attempts: list[float] = []

    @dg.op
    def step(context: dg.OpExecutionContext) -> None:
        attempts.append(time.monotonic())
        with readable_failure(context, retries):
            error = next(waiting, None)
            if error is not None:
                raise error

    @dg.job
    def job() -> None:
        step()

    return job.execute_in_process(raise_on_error=False), attempts


def failure(result: dg.ExecuteInProcessResult) -> dg.DagsterEvent:
    return next(event for event in result.all_events if event.is_step_failure)


def description(result: dg.ExecuteInProcessResult) -> str | None:
    found = failure(result).step_failure_data.user_failure_data
    return None if found is None else found.description


def test_a_passing_failure_is_tried_again_after_growing_waits() -> None:
    result, attempts = run(
        [TransientError("storage.connection", "gone"), TransientError("storage.connection", "gone")], retries=2
    )
    assert result.success
    assert len(attempts) == 3
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert waits[0] >= 0.2
    assert waits[1] >= 0.4


def test_a_failure_that_does_not_pass_ends_the_step() -> None:
    result, attempts = run([TransientError("storage.connection", "the server does not answer")] * 3, retries=2)
    assert not result.success
    assert len(attempts) == 3
    assert description(result) == "the server does not answer"


def test_a_permanent_failure_is_not_tried_again() -> None:
    result, attempts = run([GateauError("data.missing", "no such folder: correct the path")], retries=5)
    assert len(attempts) == 1
    assert description(result) == "no such folder: correct the path"


def test_a_defect_is_not_tried_again_and_keeps_its_traceback() -> None:
    result, attempts = run([KeyError("defect")], retries=5)
    assert len(attempts) == 1
    assert description(result) is None
    error = failure(result).step_failure_data.error
    assert error is not None
    assert "KeyError" in error.to_string()
    assert "test_failures.py" in error.to_string()


def test_a_full_disk_is_told_as_such_wherever_it_is_met() -> None:
    result, attempts = run([OSError(errno.ENOSPC, "No space left on device", "/scratch/x")], retries=5)
    assert len(attempts) == 1
    assert (description(result) or "").startswith("Cannot use /scratch/x: the disk is full.")


def test_a_missing_file_of_ours_is_a_defect() -> None:
    result, _ = run([FileNotFoundError(errno.ENOENT, "No such file", "/x")], retries=0)
    assert description(result) is None


def test_the_assets_take_their_retries_from_the_configuration(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def unreachable(*arguments: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        raise TransientError("storage.connection", "Cannot write: the storage server does not answer.")

    monkeypatch.setattr("gateau_dagster.storage.store.Store.write", unreachable)
    with pytest.raises(GateauError, match=r"^raw_long_sft: Cannot write: the storage server does not answer\.$"):
        fresh.refresh()
    assert calls == 1 + fresh.config.execution.retries


def test_nothing_before_the_failure_is_lost(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("defect of ours")

    with monkeypatch.context() as patch:
        patch.setattr("gateau_dagster.assets.selection.ranked", broken)
        with pytest.raises(GateauError, match=r"combined_scores: .*defect of ours"):
            fresh.refresh()
    result = fresh.refresh()
    assert {event.asset_key.to_user_string() for event in fresh.materialised(result.run_ids[0])} == {
        "combined_scores",
        "selected_subset",
        "report",
    }
