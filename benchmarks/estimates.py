"""Compare `gateau plan` with what was: planned and actual seconds of each table that a run has scored.

    gateau plan --json > plan.json
    gateau run
    .venv/bin/python benchmarks/estimates.py plan.json --config gateau.yaml

A plan gives a range where it rests on a matrix product, and one figure where it rests on recorded shards. The stamp of
a shard keeps the seconds that scoring it took in one process. They are divided by the workers that the plan is for.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import show, table, verdict

from gateau_dagster.features.report.effort import TableEffort, efforts_by_asset, table_efforts
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project

HEADER = ("table", "shards", "low", "planned", "high", "actual", "actual/planned", "in range", "share of peak")
TARGET = 1.5  # times too many seconds, or too few


def row(planned: Mapping[str, Any], found: TableEffort, workers: int) -> list[object]:
    """Return the line of a table. `planned`: its entry in `estimates`. `workers`: those that had a shard."""
    low, seconds, high = (planned[name] for name in ("seconds_low", "seconds", "seconds_high"))
    actual = found.seconds / workers
    inside = "" if low == high else "yes" if low <= actual <= high else "NO"
    share = "" if found.share_of_peak is None else f"{found.share_of_peak:.0%}"
    times = (f"{value:.1f}" for value in (low, seconds, high, actual))
    return [found.asset, found.measured, *times, f"{actual / seconds:.2f}", inside, share]


def compared(plan: Mapping[str, Any], efforts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[TableEffort]:
    """Return the tables with a planned time and a measurement."""
    known = {asset for asset, estimate in plan["estimates"].items() if estimate["seconds"]}
    return [each for each in table_efforts(efforts) if each.asset in known and each.seconds]


def main() -> int:
    """Print the table, and the sum of all tables against the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--config", type=Path)
    options = parser.parse_args()
    state, plan = state_of(config=load_project(options.config)), json.loads(options.plan.read_text())
    # What is still stale, or may not have been made, has a stamp of an earlier run.
    stale = {work.asset for work in state.plan().work}
    made = [work for work in plan["work"] if not work["conditional"] and work["asset"] not in stale]
    shards = {work["asset"]: {*work["shards"]} for work in made}
    # A worker takes whole shards, so a plan uses no more workers than shards.
    workers = {asset: max(1, min(plan["workers"] or 1, len(parts))) for asset, parts in shards.items()}
    recorded = {key: stamp for key, stamp in state.recorded().items() if key[1] in shards.get(key[0], ())}
    found = compared(plan, efforts_by_asset(recorded))
    if not found:
        show("No table was both planned and measured.")
        return 1
    show(table(HEADER, [row(plan["estimates"][each.asset], each, workers[each.asset]) for each in found]))
    planned = sum(plan["estimates"][each.asset]["seconds"] for each in found)
    ratio = sum(each.seconds / workers[each.asset] for each in found) / planned
    show(verdict("off by a factor of", max(ratio, 1 / ratio), TARGET, at_most=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
