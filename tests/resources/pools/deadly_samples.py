"""Scoring in a worker without a model, where some samples kill the worker; imports little, since each worker does."""

import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gateau_dagster.execution.shard_scorer import ShardScorer
from gateau_dagster.execution.shard_tables import Effort
from gateau_dagster.resources.pools.worker import Worker
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow

BATCH = 4


class Deadly(dict[str, Any]):
    """A stamp's effort, or a model's section, that brings such scoring into the worker; it loads no model.

    kills: ids of samples that kill whoever scores them, `after` so many seconds, some `times` or always.
    log: file with a line for each batch.
    seconds: that each sample takes.
    first: a file; whoever scores other samples than the first of `kills` dies only once it exists.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (dict(self),)


def install(plan: dict[str, Any]) -> dict[str, Any]:
    """In the worker."""

    def score(self: ShardScorer, requests: Iterator[RequestedRow]) -> Generator[Outcomes]:
        del self
        while batch := [*islice(requests, BATCH)]:
            ids = [each.sample.sample_id for each in batch]
            with Path(plan["log"]).open("a") as log:
                log.write(" ".join(ids) + "\n")
            deaths = Path(plan["log"]).read_text().split().count(plan["kills"][0]) if "times" in plan else 0
            if {*ids} & {*plan["kills"]} and deaths <= plan.get("times", deaths):
                time.sleep(plan.get("after", 0))
                while "first" in plan and plan["kills"][0] not in ids and not Path(plan["first"]).exists():
                    time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            for each in batch:
                time.sleep(plan.get("seconds", 0))
                yield {
                    asset: {"sample_id": each.sample.sample_id, "digest": each.sample.digest} for asset in each.assets
                }

    def effort(self: ShardScorer, samples: Mapping[str, int], seconds: float) -> Effort:
        del self, seconds
        return {asset: {"samples": number, "tokens": 0, "seconds": number / 1000} for asset, number in samples.items()}

    Worker._model = lambda self: None  # type: ignore[method-assign, assignment, return-value]
    ShardScorer._prepare = lambda self, works: None  # type: ignore[method-assign]
    ShardScorer._outcomes = score  # type: ignore[method-assign]
    ShardScorer._tokens = 0  # type: ignore[assignment, method-assign]
    ShardScorer._effort = effort  # type: ignore[method-assign]
    return {}
