"""Runs whose process is gone are ended and their slots freed; all others are left alone."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from assets.runs.instance import open_instance
from assets.steps.dead_runs import PROCESS_TAG, end_dead_runs, is_gone, process_tag
from gateau_dagster.pipeline.project import load_project
from tests.project import make_project


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", "")
    with open_instance(load_project(make_project(tmp_path, samples=2, shards=1))) as instance:
        yield instance


@dg.job
def empty_job() -> None:
    """Nothing."""


def started(instance: DagsterInstance, tags: dict[str, str]) -> str:
    run = instance.create_run_for_job(empty_job, tags=tags, status=DagsterRunStatus.STARTED)
    return run.run_id


def dead_tag() -> str:
    """The tag that a process had which has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tag = process_tag(process.pid)
    assert not is_gone(tag)
    process.kill()
    process.wait()
    return tag


def test_the_tag_names_host_process_and_its_start() -> None:
    host, pid, created = process_tag().split("|")
    assert (host, int(pid)) == (socket.gethostname(), os.getpid())
    assert float(created) == pytest.approx(psutil.Process().create_time(), abs=0.01)


def test_gone() -> None:
    host, pid, created = process_tag().split("|")
    assert not is_gone(process_tag())
    assert is_gone(dead_tag())
    assert is_gone(f"{host}|{pid}|{float(created) - 100}"), "another process had this id before"
    assert not is_gone(f"elsewhere|{pid}|{float(created) - 100}"), "another host's processes cannot be seen"


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tag = process_tag(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(tag)
    process.wait()


def test_only_dead_runs_are_ended(instance: DagsterInstance) -> None:
    dead, alive, unknown = (
        started(instance, {PROCESS_TAG: dead_tag()}),
        started(instance, {PROCESS_TAG: process_tag()}),
        started(instance, {}),
    )
    storage = instance.event_log_storage
    assert instance.get_concurrency_config() is not None
    storage.initialize_concurrency_limit_to_default("gpu")
    assert storage.claim_concurrency_slot("gpu", dead, "cam").is_claimed
    assert not storage.claim_concurrency_slot("gpu", alive, "cam").is_claimed

    assert [run.run_id for run in end_dead_runs(instance)] == [dead]

    status = {run.run_id: run.status for run in instance.get_runs()}
    assert status == {
        dead: DagsterRunStatus.FAILURE,
        alive: DagsterRunStatus.STARTED,
        unknown: DagsterRunStatus.STARTED,
    }
    assert storage.claim_concurrency_slot("gpu", alive, "cam").is_claimed, "the slot is free for the next run"
    assert end_dead_runs(instance) == []
