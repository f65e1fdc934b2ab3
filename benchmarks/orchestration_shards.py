"""What thousands of shards cost outside the method: planning them, running them, and recording them.

    .venv/bin/python benchmarks/orchestration_shards.py --out build/benchmarks/orchestration_shards.json

A project with tiny models and two short samples a shard, each command a process of its own, as a user starts it:

- plan, nothing there:         `gateau plan` before anything has run.
- run:                         the first `gateau run`, checks, report and viewer included (nothing is trained).
- plan, all up to date:        after it.
- plan, one sample a shard:    one sample of each shard changed, the others' rows can be kept.
- plan, another setting:       scoring.max_length changed: all scored tables are out of date.
- run, one sample a shard:     with `--again`.

CPU seconds are of the whole process, all threads and children. Those of a run, divided by shards and by the four
tables that have shards, hold everything: the start, the global assets and the tiny models' scoring, too. `method s` is
what the scored tables say that this took (`effort.seconds` in their stamps, wall time). The event log is what Dagster's
home grows by, or what the database of `--postgres` does.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from common_measure import machine, say, show, table, verdict, write_json
from orchestration_ways import SCORED, make_project, method_seconds, prepare_home, process

from gateau_dagster.data.sample import shard_keys, shard_of

PLAN_TARGET, RUN_TARGET, LOG_TARGET = 15.0, 60.0, 15.0  # CPU s; CPU ms and kB a shard and table
_TABLES = 1 + len(SCORED)
_URL = "GATEAU_BENCHMARK_POSTGRES"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command: CPU seconds of its processes, wall seconds, seconds of the method, bytes that the log grew by."""

    name: str
    cpu: float
    wall: float
    method: float = 0.0
    log: int = 0


def measure(options: argparse.Namespace, folder: Path) -> list[Step]:
    """All commands, one after the other."""
    shards = shard_keys(options.shards)
    file = make_project(folder / "project", shards=options.shards, samples=options.samples * options.shards)
    if options.postgres:
        os.environ[_URL] = options.postgres
        change(file, "execution", postgres=_URL)
    prepare_home(file)
    found = [plan(file, "plan, nothing there"), run(file, "run", shards, options.postgres)]
    found.append(plan(file, "plan, all up to date"))
    before = file.read_text()
    change(file, "scoring", max_length=255)
    found.append(plan(file, "plan, another setting"))
    file.write_text(before)
    change_a_sample_of_each_shard(file.parent / "long.jsonl", options.shards)
    found.append(plan(file, "plan, one sample a shard"))
    if options.again:
        earlier = method_seconds(file, shards)
        again = run(file, "run, one sample a shard", shards, options.postgres)
        say(f"  the method's own: {again.method:.1f} s, and {earlier:.1f} s in the first run")
        found.append(again)
    return found


def plan(file: Path, name: str) -> Step:
    """`gateau plan`."""
    done = process([sys.executable, "-m", "gateau_dagster.cli", "plan"], file)
    say(f"{name}: {done.cpu:.1f} CPU s, {done.wall:.1f} s")
    return Step(name=name, cpu=done.cpu, wall=done.wall)


def run(file: Path, name: str, shards: list[str], postgres: str | None) -> Step:
    """`gateau run`."""
    size: Callable[[], int] = (lambda: size_of_database(postgres)) if postgres else (lambda: size_of_home(file))
    before = size()
    done = process([sys.executable, "-m", "gateau_dagster.cli", "run"], file)
    step = Step(name=name, cpu=done.cpu, wall=done.wall, method=method_seconds(file, shards), log=size() - before)
    say(f"{name}: {step.cpu:.1f} CPU s, {step.method:.1f} of them the method's, {step.log / 1e6:.1f} MB of log")
    return step


def size_of_home(file: Path) -> int:
    """Bytes of Dagster's records beside the configuration."""
    home = file.parent / ".gateau" / "dagster"
    return sum(each.stat().st_size for each in home.rglob("*") if each.is_file())


def size_of_database(url: str) -> int:
    """Bytes of a PostgreSQL database with its indexes."""
    import psycopg2

    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select pg_database_size(current_database())")
        (size,) = cursor.fetchone() or (0,)
    return int(size)


def change(file: Path, section: str, **values: Any) -> None:
    """Sets keys of a section of the configuration."""
    content = yaml.safe_load(file.read_text())
    content[section] = {**content.get(section, {}), **values}
    file.write_text(yaml.safe_dump(content))


def change_a_sample_of_each_shard(data: Path, shards: int) -> None:
    """Another word at the end of the first sample's response, of each shard that has samples."""
    records, seen = [json.loads(line) for line in data.read_text().splitlines()], set[int]()
    for record in records:
        shard = shard_of(record["id"], shards)
        if shard not in seen:
            record["response"] += " w7"
            seen.add(shard)
    data.write_text("".join(json.dumps(record) + "\n" for record in records))


def per_table(step: Step, amount: float, shards: int) -> float:
    """So much of an amount falls on one shard of one table."""
    assert step.name.startswith("run")
    return amount / (shards * _TABLES)


def row_of(step: Step, shards: int) -> list[object]:
    """A row of the table."""
    if not step.log:
        return [step.name, f"{step.cpu:.1f}", f"{step.wall:.1f}", "", "", ""]
    each, log = per_table(step, step.cpu, shards), per_table(step, step.log, shards)
    return [
        step.name,
        f"{step.cpu:.1f}",
        f"{step.wall:.1f}",
        f"{step.method:.1f}",
        f"{1e3 * each:.1f}",
        f"{log / 1e3:.1f}",
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=2000, help="of the project, default 2000")
    parser.add_argument("--samples", type=int, default=2, help="of a shard on average, default 2")
    parser.add_argument("--again", action="store_true", help="run once more after one sample of each shard changed")
    parser.add_argument("--postgres", metavar="URL", help="an empty database for Dagster's records, instead of SQLite")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    description = machine()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    titles = ["command", "CPU s", "wall s", "method s", "CPU ms a shard and table", "log kB a shard and table"]
    show(table(titles, [row_of(each, options.shards) for each in found]))
    slowest = max(each.cpu for each in found if each.name.startswith("plan"))
    show(verdict("CPU seconds of a plan, at most", slowest, PLAN_TARGET, at_most=True))
    for step in found:
        if step.name.startswith("run"):
            each = 1e3 * per_table(step, step.cpu, options.shards)
            show(verdict(f"CPU ms a shard and table, {step.name}", each, RUN_TARGET, at_most=True))
            log = per_table(step, step.log, options.shards) / 1e3
            show(verdict(f"kB of event log a shard and table, {step.name}", log, LOG_TARGET, at_most=True))
    settings = {key: value for key, value in vars(options).items() if key not in {"out", "postgres"}}
    settings["records"] = "PostgreSQL" if options.postgres else "SQLite"
    write_json(options.out, {"machine": description, "settings": settings, "steps": [asdict(each) for each in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
