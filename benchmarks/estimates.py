"""Compare `gateau plan` with what was: planned and actual seconds of each table of a store, from its shards' stamps.

    .venv/bin/python benchmarks/estimates.py                         # of the demo in this folder
    .venv/bin/python benchmarks/estimates.py --config gateau.yaml

The stamp of a shard keeps what was planned before it was scored: a range where that rested on a matrix product, one
figure where it rested on recorded shards. Only shards that were scored in the last run of their table show how near a
plan with history is.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import show, table, verdict

from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.report.effort import efforts_by_asset, table_efforts

HEADER = ("table", "shards", "low", "planned", "high", "actual", "actual/planned", "in range", "share of peak")
TARGET = 1.5  # times too many seconds, or too few


def row(asset: str, planned: Sequence[Mapping[str, Any]]) -> list[object]:
    """Sums over shards, given by their `Stamp.effort`, that were planned."""
    (found,) = table_efforts({asset: planned})
    plans = [effort["planned"] for effort in planned]
    low, high = (sum(plan.get(name, plan["seconds"]) for plan in plans) for name in ("seconds_low", "seconds_high"))
    seconds = [low, found.planned_seconds or 0.0, high, found.compared_seconds]
    ratio = "" if found.ratio is None else f"{found.ratio:.2f}"
    inside = "" if low == high else "yes" if low <= found.compared_seconds <= high else "NO"
    share = "" if found.share_of_peak is None else f"{found.share_of_peak:.0%}"
    return [asset, len(planned), *(f"{value:.1f}" for value in seconds), ratio, inside, share]


def main() -> int:
    """The table, and the sum of all tables against the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path)
    state = state_of(config=load_project(parser.parse_args().config))
    efforts = efforts_by_asset(state.recorded())
    planned = {
        asset: [each for each in shards if (each.get("planned") or {}).get("seconds")]
        for asset, shards in efforts.items()
    }
    rows = [row(asset, shards) for asset, shards in planned.items() if shards]
    if not rows:
        show("No shard of the store was both planned and measured.")
        return 1
    everything = [effort for shards in planned.values() for effort in shards]
    show(table(HEADER, [*rows, row("together", everything)]))
    ratio = sum(each["seconds"] for each in everything) / sum(each["planned"]["seconds"] for each in everything)
    show(verdict("off by a factor of", max(ratio, 1 / ratio), TARGET, at_most=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
