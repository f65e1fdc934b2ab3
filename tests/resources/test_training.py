"""The launcher as Dagster uses it: what is refused before the start, and an end that is no success."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster import DagsterExecutionInterruptedError

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import silent
from gateau_dagster.resources.training import TrainingResource
from gateau_dagster.training.launch import TrainingSpec


def nothing() -> None:
    """Nobody asks the run to end."""


def outcome(folder: Path, *, hostfile: str | None = None, heed: Callable[[], None] = nothing, **training: Any) -> str:
    """Why it failed."""
    spec = TrainingSpec(
        mix=folder / "mix.parquet",
        base_model="nowhere",
        output=folder / "output",
        work=folder / "work",
        training=TrainingConfig.model_validate(training),
        fingerprint="f",
        hostfile=None if hostfile is None else folder / hostfile,
    )
    reasons: list[str] = []

    @dg.asset
    def checkpoint(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with pytest.raises(GateauError) as caught:
            TrainingResource().run(context, spec, folder / "spec.json", silent, heed)
        reasons.append(str(caught.value))
        return dg.MaterializeResult()

    assert dg.materialize([checkpoint]).success
    return reasons[0]


def test_refused_before_anything_starts(tmp_path: Path) -> None:
    assert "training.hostfile: " in outcome(tmp_path, hostfile="nowhere")
    assert "no program 'sruun'" in outcome(tmp_path, launcher=["sruun"])
    assert "liger-kernel is not installed" in outcome(tmp_path, liger=True)
    assert not (tmp_path / "spec.json").exists()


def test_an_end_by_a_signal_is_noticed(tmp_path: Path) -> None:
    assert "was ended by SIGKILL" in outcome(tmp_path, launcher=["sh", "-c", "kill -9 $$", "{spec}"])
    assert "ended with status 3" in outcome(tmp_path, launcher=["sh", "-c", "exit 3", "{spec}"])


def test_a_launcher_that_hides_it(tmp_path: Path) -> None:
    reason = outcome(tmp_path, launcher=["sh", "-c", "sh -c 'kill -9 $$'; exit 0", "{spec}"])
    assert "ended without a result, and its launcher does not say why" in reason


def test_the_reason_of_a_rank_comes_first(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    script = f"echo 'the loss is nan at step 3' > {work}/failure.txt; exit 0"
    assert outcome(tmp_path, launcher=["sh", "-c", script, "{spec}"]) == "the loss is nan at step 3"


STUBBORN = "trap '' INT TERM; sh -c 'trap \"\" INT TERM; touch $0.up; sleep 60; sleep 60' $0 & wait; wait; sleep 60"


def test_a_run_that_is_terminated_leaves_no_training_behind(tmp_path: Path) -> None:
    """Neither a launcher that does not listen nor what it started."""
    left: list[psutil.Process] = []
    before = {*psutil.Process().children(recursive=True)}  # servers of other tests

    def terminate() -> None:
        while not (tmp_path / "spec.json.up").exists():
            time.sleep(0.02)
        left.extend(each for each in psutil.Process().children(recursive=True) if each not in before)
        os.kill(os.getpid(), signal.SIGINT)  # as Dagster does it for a click on `Terminate`

    threading.Thread(target=terminate).start()
    with pytest.raises(DagsterExecutionInterruptedError):
        outcome(tmp_path, launcher=["sh", "-c", STUBBORN, "{spec}"])
    assert len(left) > 1
    assert not psutil.wait_procs(left, timeout=30)[1]


def test_a_request_to_end_that_got_lost_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster raises it once, and an import just before may have swallowed it."""
    monkeypatch.setattr("gateau_dagster.resources.training._SECONDS_BETWEEN_HEEDS", 0.1)

    def heed() -> None:
        if (tmp_path / "spec.json.up").exists():
            raise DagsterExecutionInterruptedError

    before = {*psutil.Process().children(recursive=True)}
    with pytest.raises(DagsterExecutionInterruptedError):
        outcome(tmp_path, launcher=["sh", "-c", STUBBORN, "{spec}"], heed=heed)
    left = [each for each in psutil.Process().children(recursive=True) if each not in before]
    assert not psutil.wait_procs(left, timeout=30)[1]
