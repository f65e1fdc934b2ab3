"""What fails transiently is tried again with back-off; what must fail again is told at once; a defect stays one."""

import errno
import itertools
import time
from collections.abc import Iterator
from unittest import mock

import dagster as dg
import pytest

from gateau_dagster.assets.steps import failures
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.errors import GateauError, TransientError
from tests.assets.harness import Pipeline, failure_of


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


def test_a_passing_failure_is_tried_again_after_growing_waits() -> None:
    result, attempts = run(
        [TransientError("storage.connection", "gone"), TransientError("storage.connection", "gone")], retries=2
    )
    assert result.success
    first, second = (later - earlier for earlier, later in itertools.pairwise(attempts))
    assert first >= 0.2 and second >= 0.4


@pytest.mark.parametrize(
    ("error", "tried", "said"),
    [
        (TransientError("storage.connection", "the server does not answer"), 3, "the server does not answer"),
        (GateauError("data.missing", "no such folder: correct it"), 1, "no such folder: correct it"),
        (OSError(errno.ENOSPC, "No space left", "/scratch/x"), 1, "Cannot use /scratch/x: the disk is full."),
        (KeyError("defect"), 1, None),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x"), 1, None),
    ],
    ids=["passing", "permanent", "a full disk", "a defect", "a missing file of ours"],
)
def test_what_ends_a_step(error: Exception, tried: int, said: str | None) -> None:
    result, attempts = run([error] * 3, retries=2)
    assert len(attempts) == tried
    assert (failure_of(result) or "").startswith(said or "") and (failure_of(result) is None) == (said is None)
    [event] = [each for each in result.all_events if each.is_step_failure]
    if said is None:
        trace = event.step_failure_data.error
        assert (
            trace is not None and type(error).__name__ in trace.to_string() and "test_failures.py" in trace.to_string()
        )
    if isinstance(error, GateauError):
        assert failure_of(result) == said


def test_the_assets_take_their_retries_from_the_configuration(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = TransientError("storage.connection", "Cannot write: the storage server does not answer.")
    write = mock.Mock(side_effect=silent)
    monkeypatch.setattr("gateau_dagster.storage.store.Store.write", write)
    with pytest.raises(GateauError, match=r"^raw_long_sft: Cannot write: the storage server does not answer\.$"):
        fresh.refresh()
    assert write.call_count == 1 + fresh.config.execution.retries


def test_nothing_before_the_failure_is_lost(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        broken = mock.Mock(side_effect=RuntimeError("defect of ours"))
        patch.setattr("gateau_dagster.assets.selection.ranked", broken)
        with pytest.raises(GateauError, match=r"combined_scores: .*defect of ours"):
            fresh.refresh()
    assert {asset for asset, _ in fresh.made()} == {"combined_scores", "selected_subset", "report"}
