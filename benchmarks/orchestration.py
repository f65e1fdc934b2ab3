"""What a shard costs outside the method: starting, Dagster, reading and writing tables, loading models.

    .venv/bin/python benchmarks/orchestration.py --out build/benchmarks/orchestration.json

A project with tiny models and a few samples a shard is scored in processes of their own, in three ways:

- one run:      `gateau run --until combined_scores` over all shards;
- one by one:   one Dagster run a shard, all in one process, which stays up;
- own process:  one Dagster run and one process a shard, as a backfill with `execution.shards_per_run: 1` starts them.

Each scores four tables: raw_long_sft, perplexity/short, perplexity/long and cam. The method's own time is what the
tables say of themselves (`effort.seconds` in their stamps); the rest of the wall time is orchestration. It does not
grow with the samples, so its share of 16 shards of one minute is computed from it. A process of its own cannot take
less than importing the libraries does: `libraries` is a process that imports dagster, torch and transformers, and ends.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from common_measure import Spread, machine, say, show, table, verdict, write_json
from orchestration_ways import (
    Timed,
    in_one_run,
    in_own_processes,
    libraries,
    make_project,
    one_by_one,
    prepare_home,
)

from gateau_dagster.data.sample import shard_keys

SHARD_TARGET_SECONDS = 4.0
SHARE_TARGET = 0.1
_SHARDS, _MINUTE = 16, 60.0


def share_of_minutes(timed: Timed) -> float:
    """Share of the total that orchestration would have in 16 shards of one minute each."""
    overhead = timed.wall - timed.method
    return overhead / (overhead + _SHARDS * _MINUTE)


def measure(options: argparse.Namespace, folder: Path) -> list[Timed]:
    """Each way on a project of its own."""
    ways = (("one run", in_one_run), ("one by one", one_by_one), ("own process", in_own_processes))
    found: list[Timed] = []
    for name, way in ways:
        say(f"{name}: {options.shards} shards of {options.samples // options.shards} samples")
        file = make_project(folder / name.replace(" ", "-"), shards=options.shards, samples=options.samples)
        prepare_home(file)
        shards = shard_keys(options.shards)
        timed = way(file, shards[: options.own_process] if way is in_own_processes else shards)
        say(f"  {timed.wall:.1f} s, {timed.method:.1f} s of them the method's own")
        found.append(timed)
        if way is in_own_processes:
            found.append(libraries(file))
    return found


def row_of(timed: Timed) -> list[object]:
    """A row of the table."""
    each = Spread.of(timed.outside).show() if timed.outside else f"{(timed.wall - timed.method) / timed.shards:.2f}"
    cpu = f"{timed.cpu / timed.shards:.2f}"
    return [timed.way, timed.shards, f"{timed.wall:.1f}", f"{timed.method:.1f}", each, cpu]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=_SHARDS, help="of the project, default 16")
    parser.add_argument("--samples", type=int, default=64, help="of the project, default 64")
    parser.add_argument("--own-process", type=int, default=4, help="shards to run in their own process, default 4")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    description = machine()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    show(
        table(
            ["way", "shards", "wall s", "method s", "outside s a shard (quartiles)", "cpu s a shard"],
            [row_of(each) for each in found],
        )
    )
    ways = {each.way: each for each in found}
    for way in ("one by one", "own process"):
        alone = Spread.of(ways[way].outside).median
        show(verdict(f"seconds outside the method a shard, {way}", alone, SHARD_TARGET_SECONDS, at_most=True))
    if options.shards == _SHARDS:
        share = share_of_minutes(ways["one run"])
        show(verdict("share outside the method in 16 shards of one minute", share, SHARE_TARGET, at_most=True))
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    write_json(options.out, {"machine": description, "settings": settings, "ways": [asdict(each) for each in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
