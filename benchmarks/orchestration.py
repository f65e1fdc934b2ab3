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
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from common_measure import Spread, machine, say, show, table, verdict, write_json
from common_models import TINY, build_model, make_samples

from gateau_dagster.data.shards import shard_keys

SHARD_TARGET_SECONDS = 4.0
SHARE_TARGET = 0.1
_SHARDS, _MINUTE = 16, 60.0
_SCORED = ("perplexity/short", "perplexity/long", "cam")
_ASSETS = ("raw_long_sft", *_SCORED)
_IMPORTS = "import dagster, torch; from transformers import AutoTokenizer, LlamaForCausalLM"
_ONE_PROCESS = """
import sys, time
import dagster as dg
from assets.instance import open_instance
from assets.records import asset_key
from gateau_dagster.config.load import load_config
from gateau_dagster.definitions import defs

job = defs.resolve_job_def("everything")
keys = [asset_key(name) for name in sys.argv[2].split(",")]
with open_instance(load_config(sys.argv[1])) as instance:
    for shard in sys.argv[3].split(","):
        started = time.perf_counter()
        done = job.execute_in_process(
            instance=instance, partition_key=shard, asset_selection=keys,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        assert done.success
        print(shard, time.perf_counter() - started, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Process:
    """What a process took and printed."""

    wall: float
    cpu: float
    printed: str


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Wall and method seconds of one way of scoring; `outside` has one entry a shard, where shards were timed."""

    way: str
    shards: int
    wall: float
    cpu: float  # of all threads and child processes
    method: float
    outside: list[float]


def make_project(folder: Path, *, shards: int, samples: int) -> Path:
    """Data, an untrained pair and a configuration file, which it returns."""
    folder.mkdir(parents=True)
    for seed, name in enumerate(("short", "long")):
        loaded = build_model(TINY, name=name, seed=seed)
        loaded.model.save_pretrained(folder / name)
        loaded.tokenizer.save_pretrained(folder / name)
    made = make_samples(TINY.vocabulary, samples, tokens=200, response_tokens=20)
    records = [{"id": each.sample_id, **{key: getattr(each, key) for key in _TEXTS}} for each in made]
    (folder / "long.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    content: dict[str, Any] = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": shards},
        "models": {"short": {"path": "short"}, "long": {"path": "long"}},
        "scoring": {"max_length": 256, "segment_length": 32, "dtype": "float32", "device": "cpu"},
        "training": {"enabled": False},
        "execution": {"shards_per_run": 1},
    }
    file = folder / "gateau.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


_TEXTS = ("source", "context", "instruction", "response")


def process(command: Sequence[str], file: Path) -> Process:
    """Runs a process on this project."""
    root = Path(__file__).resolve().parents[1]
    kept = {name: value for name, value in os.environ.items() if name not in {"GATEAU_CONFIG", "DAGSTER_HOME"}}
    home = file.parent / ".gateau" / "dagster"
    environment = {**kept, "PYTHONPATH": str(root), "GATEAU_CONFIG": str(file), "DAGSTER_HOME": str(home)}
    started, before = time.perf_counter(), _children_seconds()
    done = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False)
    seconds, cpu = time.perf_counter() - started, _children_seconds() - before
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"[-4000:]
        )
    return Process(wall=seconds, cpu=cpu, printed=done.stdout)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def method_seconds(file: Path, shards: Sequence[str]) -> float:
    """What the scored tables of these shards say they took."""
    from gateau_dagster.config.load import load_config
    from gateau_dagster.incremental.state import State

    stamps = State(config=load_config(str(file))).store.stamps((name, shard) for name in _SCORED for shard in shards)
    return sum(stamp.effort.get("seconds", 0.0) for stamp in stamps.values() if stamp is not None)


def prepare_home(file: Path) -> None:
    """Dagster's home, as `gateau run` makes it; none of the ways is charged for creating its databases."""
    process([sys.executable, "-c", f"{_OPEN}open_instance(load_config({str(file)!r})).get_run_ids()"], file)


_OPEN = "from assets.instance import open_instance; from gateau_dagster.config.load import load_config; "


def in_one_run(file: Path, shards: Sequence[str]) -> Timed:
    """All shards by one `gateau run`."""
    done = process([sys.executable, "-m", "gateau_dagster.cli", "run", "--until", "combined_scores"], file)
    method = method_seconds(file, shards)
    return Timed(way="one run", shards=len(shards), wall=done.wall, cpu=done.cpu, method=method, outside=[])


def in_own_processes(file: Path, shards: Sequence[str]) -> Timed:
    """A process a shard."""
    outside, done = [], []
    for shard in shards:
        command = [sys.executable, "-m", "dagster", "asset", "materialize", "--module-name"]
        command += ["gateau_dagster.definitions", "--select", ",".join(_ASSETS), "--partition", shard]
        done.append(process(command, file))
        outside.append(done[-1].wall - method_seconds(file, [shard]))
        say(f"  shard {shard}: {done[-1].wall:.2f} s, {outside[-1]:.2f} s of them outside the method")
    return Timed(
        way="own process",
        shards=len(shards),
        wall=sum(each.wall for each in done),
        cpu=sum(each.cpu for each in done),
        method=method_seconds(file, shards),
        outside=outside,
    )


def one_by_one(file: Path, shards: Sequence[str]) -> Timed:
    """A run a shard in one process; the start of that process is in `wall` only."""
    command = [sys.executable, "-c", _ONE_PROCESS, str(file), ",".join(_ASSETS), ",".join(shards)]
    done = process(command, file)
    lines = [line.split() for line in done.printed.splitlines() if len(line.split()) == 2]
    outside = [float(taken) - method_seconds(file, [shard]) for shard, taken in lines]
    assert len(outside) == len(shards)
    method = method_seconds(file, shards)
    return Timed(way="one by one", shards=len(shards), wall=done.wall, cpu=done.cpu, method=method, outside=outside)


def libraries(file: Path) -> Timed:
    """What importing the libraries alone takes; three processes stand for three shards."""
    done = [process([sys.executable, "-c", _IMPORTS], file) for _ in range(3)]
    walls = [each.wall for each in done]
    return Timed(
        way="libraries", shards=3, wall=sum(walls), cpu=sum(each.cpu for each in done), method=0.0, outside=walls
    )


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
