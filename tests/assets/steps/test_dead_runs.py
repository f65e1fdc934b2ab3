"""Runs whose process is gone are ended and their slots freed; all others are left alone."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.runs.launching import location_origin
from gateau_dagster.assets.steps import dead_runs
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, PROCESS_TAG, end_dead_runs, process_state, process_tag
from gateau_dagster.config import Config
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import empty_job


@pytest.fixture
def instance(config: Config) -> Iterator[DagsterInstance]:
    with open_instance(config) as instance:
        yield instance


def started(instance: DagsterInstance, tags: dict[str, str]) -> str:
    run = instance.create_run_for_job(empty_job, tags=tags, status=DagsterRunStatus.STARTED)
    return run.run_id


def dead_tag() -> str:
    """The tag that a process had which has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    tag = process_tag(process.pid)
    assert process_state(tag) == "alive"
    process.kill()
    process.wait()
    return tag


def elsewhere(tag: str) -> str:
    """The tag of the same process on another machine, as it looks from here."""
    identity = ProcessIdentity.from_text(tag)
    return replace(identity, host="elsewhere", boot_id="another", machine="other").to_text()


def test_the_tag_names_host_and_process_first() -> None:
    host, pid, *_ = process_tag().split("|")
    assert (host, int(pid)) == (socket.gethostname(), os.getpid())


def test_states() -> None:
    assert process_state(dead_tag()) == "gone"
    assert process_state(elsewhere(process_tag())) == "unknown"
    assert process_state("nonsense") == process_state("a|b|c") == "unknown"


def test_a_run_on_another_machine_is_left_alone(instance: DagsterInstance) -> None:
    """Two machines may share a database; what of the other one cannot be seen from here is not gone."""
    far = elsewhere(process_tag())
    runs = [started(instance, {PROCESS_TAG: tag, LOCK_TAG: "a lock"}) for tag in (far, "of another version")]
    started(instance, {PROCESS_TAG: process_tag(), LOCK_TAG: "a lock"})  # alive, as `refresh` tried a second time
    assert end_dead_runs(instance) == []
    assert end_dead_runs(instance, holding="another lock") == []
    assert {run.run_id for run in end_dead_runs(instance, holding="a lock")} == {*runs}, "whoever had it is gone"


def test_the_tags_are_hidden_and_those_of_an_earlier_version_count(instance: DagsterInstance) -> None:
    assert all(tag.startswith(HIDDEN_TAG_PREFIX) for tag in (PROCESS_TAG, LOCK_TAG))
    dead = started(instance, {"gateau/process": dead_tag()})
    far = started(instance, {"gateau/process": elsewhere(process_tag()), "gateau/lock": "a lock"})
    started(instance, {"gateau/process": process_tag(), "gateau/lock": "a lock"})
    assert {run.run_id for run in end_dead_runs(instance, holding="a lock")} == {dead, far}


def test_a_run_that_is_executed_again_has_no_process_yet(instance: DagsterInstance) -> None:
    """Dagster gives it the tags of the run before it, whose process is gone."""
    tags = {PROCESS_TAG: dead_tag(), LOCK_TAG: "a lock"}
    first = started(instance, tags)
    assert [run.run_id for run in end_dead_runs(instance)] == [first]
    again = instance.create_run_for_job(
        empty_job, tags=tags, status=DagsterRunStatus.STARTED, root_run_id=first, parent_run_id=first
    )
    assert end_dead_runs(instance, holding="a lock") == []
    instance.add_run_tags(again.run_id, {PROCESS_TAG: dead_tag()})  # its first step has begun, and ended
    assert [run.run_id for run in end_dead_runs(instance)] == [again.run_id]


def test_a_run_that_waits_in_the_queue_ends_with_the_process_that_has_made_it(instance: DagsterInstance) -> None:
    def queued(tag: str) -> str:
        origin = location_origin().get_job_origin("empty_job")
        return instance.create_run_for_job(
            empty_job, tags={PROCESS_TAG: tag}, status=DagsterRunStatus.QUEUED, remote_job_origin=origin
        ).run_id

    dead, _ = queued(dead_tag()), queued(process_tag())
    assert [run.run_id for run in end_dead_runs(instance)] == [dead]


def test_a_run_that_ends_well_while_it_is_looked_at_stays_so(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends with it."""
    run_id = started(instance, {PROCESS_TAG: process_tag()})

    def ends(_: str) -> str:
        success = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job_name="empty_job")
        instance.report_dagster_event(success, run_id)
        return "gone"

    monkeypatch.setattr(dead_runs, "process_state", ends)
    assert end_dead_runs(instance) == []
    assert [run.status for run in instance.get_runs()] == [DagsterRunStatus.SUCCESS]


def test_a_run_that_was_being_ended_is_canceled(instance: DagsterInstance) -> None:
    run_id = started(instance, {PROCESS_TAG: dead_tag()})
    [run] = instance.get_runs()
    instance.report_run_canceling(run)
    assert [run.run_id for run in end_dead_runs(instance)] == [run_id]
    assert [run.status for run in instance.get_runs()] == [DagsterRunStatus.CANCELED]


def test_only_dead_runs_are_ended(instance: DagsterInstance) -> None:
    tags = ({PROCESS_TAG: dead_tag()}, {PROCESS_TAG: process_tag()}, {})
    dead, alive, unknown = (started(instance, each) for each in tags)
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
