"""The shards of a step: a lost worker's comes next, its progress begins anew, and the third loss ends the step.

Where all three were over the same sample, that one is rejected instead.
"""

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_work import Suspects
from resources.pools.processes import ShardJob, ShardQueue


def test_the_shard_of_a_lost_worker_comes_next_and_no_more_than_three_times() -> None:
    reports: list[ShardReport] = []
    warned: list[str] = []
    queue = ShardQueue({"a": [], "b": [], "c": []}, reports.append, warned.append)
    a, b = queue.take(), queue.take()
    queue.give_back(b, "worker 1 was killed")
    queue.give_back(a, "worker 2 was killed")
    assert [queue.take().shard for _ in range(3)] == ["a", "b", "c"] and not queue
    assert [(report.shard, report.progress.finished, report.progress.share) for report in reports] == [
        ("b", 0, 0),
        ("a", 0, 0),
    ]
    queue.give_back(b, "worker 3 was killed")
    with pytest.raises(GateauError, match="worker 4 was killed while it scored shard b, the last of 3"):
        queue.give_back(b, "worker 4 was killed")
    assert [line.split(";")[0] for line in warned] == [
        "worker 1 was killed while it scored shard b",
        "worker 2 was killed while it scored shard a",
        "worker 3 was killed while it scored shard b",
    ]
    assert queue.take().shard == "b" and len(reports) == 3, "a's losses are not b's"


def lost(*hands: str) -> tuple[ShardJob, list[str]]:
    """What is left to do of a shard whose workers had these samples in hand when they died, and the warnings."""
    warned: list[str] = []
    queue = ShardQueue({"a": []}, lambda report: None, warned.append)
    for hand in hands:
        queue.give_back(queue.take(), "a worker was killed", frozenset(hand.split()))
    return queue.take(), warned


def test_what_was_in_hand_is_scored_alone() -> None:
    job, warned = lost("x y", "z")
    assert job.suspects == Suspects(alone=frozenset("xyz"))
    assert [line.split("(")[1] for line in warned] == ["loss 1 of 3)", "loss 2 of 3)"]


def test_three_deaths_over_a_sample_reject_it_and_are_forgotten() -> None:
    job, warned = lost("x y", "x", "x")
    assert "over the sample x, which is rejected" in warned[-1]
    assert [*job.suspects.given_up] == ["x"] and "lack of memory" in job.suspects.given_up["x"]
    job, _ = lost("x y", "x", "x", "y", "y", "y")
    assert [*job.suspects.given_up] == ["x", "y"]


@pytest.mark.parametrize("hands", [("x", "y", "z"), ("x y", "x", "z"), ("", "", ""), ("x", "", "x")])
def test_deaths_over_several_samples_end_the_step(hands: tuple[str, ...]) -> None:
    with pytest.raises(GateauError, match="the last of 3 workers"):
        lost(*hands)


def test_only_deaths_that_no_reject_accounts_for_count() -> None:
    with pytest.raises(GateauError, match="the last of 3 workers"):
        lost("x", "x", "x", "a", "b", "c")
    job, _ = lost("x", "x", "x", "a", "b")
    assert [*job.suspects.given_up] == ["x"]
