"""The shards of a step: a lost worker's comes next, its progress begins anew, and the third loss ends the step."""

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import ShardReport
from resources.pools.shard_queue import ShardQueue


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
    assert queue.take() == b and len(reports) == 3, "a's losses are not b's"
