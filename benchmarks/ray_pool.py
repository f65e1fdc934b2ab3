"""How well a Ray cluster is used: uneven samples on eight workers, and two workers against one.

    .venv/bin/python benchmarks/ray_pool.py --out build/benchmarks/ray_pool.json

The cluster is on this machine: a head, and a raylet beside it. The time is that from the moment at which the first
worker, with its model loaded, begins its first sample, to the last table: the loading of the others counts.

- sleepers: one shard whose samples take as long as they sleep, one in twenty twenty times as long as the others, on
            eight workers; the plan is off by a factor of 0.7 to 1.4 for each. Against the ideal: the sum by eight, or
            the longest sample.
- two:      a model of 4 layers scores the same samples with two single-threaded workers, and with one; with both pools.
            Needs two idle cores.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from common_measure import Spread, machine, ratios, say, show, table, verdict, write_json
from common_models import SMALL, build_model, make_samples
from orchestration_ways import make_project
from ray.cluster_utils import Cluster
from ray_sleepers import Sleeping, Watched, began

from gateau_dagster import tables
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_tables import TableWork
from gateau_dagster.pipeline.loadable import placed_model
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from resources.pools.on_ray import POOL as RAY
from resources.pools.pool import Costs, Pool, ScoringTask, unknown_costs
from resources.pools.processes import POOL as PROCESSES

ASSET, MODEL = "perplexity/long", "long"
SLEEPERS, SHORT, LONG_TIMES, LONG_EACH = 8, 0.25, 20, 20
MOST_OF_IDEAL, LEAST_OF_TWO = 1.3, 1.8
Works = dict[str, list[TableWork]]


@contextmanager
def cluster(cpus: float) -> Iterator[str]:
    """The address of one with so many CPUs."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    common: dict[str, Any] = {"object_store_memory": 80_000_000, "include_dashboard": False, "num_gpus": 0}
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address, whatever temp_dir says
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": str(folder), **common})
    try:
        found.add_node(num_cpus=cpus, **common)
        yield str(found.address)
    finally:
        found.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def ingested(folder: Path, *, samples: int, shards: int, **sections: Any) -> State:
    """A project whose samples are in the store."""
    file = make_project(folder, shards=shards, samples=samples)
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**content, **sections}))
    state = State(config=load_project(file))
    numbers = [int(shard) for shard in state.shards]
    for number, frame, rejected in read_shards(state.config.located_long_sft, folder, state.index, numbers):
        shard = state.shards[number]
        state.store.write(frame, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state


def works(state: State, **changed: Any) -> Works:
    """The work on `perplexity/long`, none of which is there."""
    found: Works = {}
    for shard in state.shards:
        state.store.files.remove(state.store.table_name(ASSET, shard))
        stamp = state.wanted_stamp(ASSET, shard)
        work = TableWork(asset=ASSET, columns=state.asset(ASSET).columns, stamp=stamp, memory="")
        found[shard] = [replace(work, **changed)]
    return found


def scored(
    state: State, pool: Pool, shards: Works, workers: int, *, notes: Path, costs: Costs = unknown_costs
) -> float:
    """Seconds from the first sample's begin to the last table; `notes`: of the workers that `shards` were made with."""
    config = state.config
    devices = pool.devices(config, "cpu", len(shards))[:workers]
    placed = placed_model(state, MODEL)
    task = ScoringTask(config=config, model=MODEL, placed=placed, section=placed.section, devices=devices, costs=costs)
    with pool.workers(task, say) as running:
        done = [shard for shard, _ in running.results(shards, _unread)]
        ended = time.monotonic()
    assert sorted(done) == sorted(shards)
    return ended - began(notes)


def _unread(report: ShardReport) -> None:
    """Progress that nobody looks at."""


def _new(notes: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    return notes


def sleepers(rounds: int, samples: int) -> dict[str, Any]:
    """Time by the ideal one."""
    draws, times = random.Random(0), []
    with cluster(SLEEPERS) as address, tempfile.TemporaryDirectory() as folder:
        ray = {"address": address, "workers": SLEEPERS, "gpus": 0, "cpus": 1, "piece_minutes": 0.1}
        state = ingested(Path(folder) / "project", samples=samples, shards=1, execution={"ray": ray})
        ids = state.store.read("raw_long_sft", "0")["sample_id"].to_list()
        for _ in range(rounds):
            seconds = {name: SHORT * (LONG_TIMES if draws.random() < 1 / LONG_EACH else 1) for name in ids}
            planned = {name: each * draws.uniform(0.7, 1.4) for name, each in seconds.items()}
            ideal = max(sum(seconds.values()) / SLEEPERS, *seconds.values())
            identity = (tables.SAMPLE_ID, tables.DIGEST)
            notes = _new(Path(folder) / "notes")
            shards = works(state, planned=Sleeping(notes, seconds), columns=identity)
            times.append(scored(state, RAY, shards, SLEEPERS, notes=notes, costs=_known(planned)) / ideal)
            say(f"eight sleepers: {times[-1]:.2f} of {ideal:.0f} s")
    return {"of_ideal": times}


def _known(planned: Mapping[str, float]) -> Costs:
    """Of the only shard."""
    return {"0": planned}.__getitem__


def two(rounds: int, samples: int, tokens: int) -> dict[str, list[float]]:
    """Seconds of each way, in turn."""
    found: dict[str, list[float]] = {}
    with cluster(2) as address, tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "project"
        _two_project(folder, samples, tokens)
        for _ in range(rounds):
            for name, pool in (("ray", RAY), ("processes", PROCESSES)):
                for workers in (1, 2):
                    state = _two_state(folder, address, workers, name)
                    notes = _new(Path(parent) / "notes")
                    seconds = scored(state, pool, works(state, planned=Watched(notes)), workers, notes=notes)
                    found.setdefault(f"{name} {workers}", []).append(seconds)
                    say(f"{workers} on {name}: {seconds:.1f} s")
    return found


def _two_project(folder: Path, samples: int, tokens: int) -> None:
    scoring = {"max_length": tokens, "segment_length": 128, "dtype": "float32", "device": "cpu", "batch_tokens": 1024}
    state = ingested(folder, samples=1, shards=1)
    loaded = build_model(SMALL, name="long")
    loaded.model.save_pretrained(folder / "long")
    loaded.tokenizer.save_pretrained(folder / "long")
    texts = ("context", "instruction", "response")
    made = make_samples(SMALL.vocabulary, samples, tokens=tokens, response_tokens=20)
    rows = [{"id": each.sample_id, **{name: getattr(each, name) for name in texts}} for each in made]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = state.config.folder / "gateau.yaml"
    content = yaml.safe_load(file.read_text())
    content |= {"scoring": scoring, "long_sft": {"path": "long.jsonl", "shards": 8}}
    file.write_text(yaml.safe_dump(content))


def _two_state(folder: Path, address: str, workers: int, pool: str) -> State:
    file = folder / "gateau.yaml"
    content = yaml.safe_load(file.read_text())
    ray = {"address": address, "workers": workers, "gpus": 0, "cpus": 1, "piece_minutes": 0.05}
    content["execution"] = {"ray": ray} if pool == "ray" else {}
    content["scoring"].pop("workers", None)
    if pool == "processes":
        content["scoring"]["workers"] = workers
    file.write_text(yaml.safe_dump(content))
    state = State(config=load_project(file))
    for number, frame, rejected in read_shards(
        state.config.located_long_sft, folder, state.index, [int(shard) for shard in state.shards]
    ):
        shard = state.shards[number]
        state.store.write(frame, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleepers", type=int, default=400, help="samples that sleep")
    parser.add_argument("--samples", type=int, default=192, help="samples that a model scores")
    parser.add_argument("--tokens", type=int, default=1024, help="of each of them")
    options = parser.parse_args(arguments)
    slept = sleepers(options.rounds, options.sleepers)["of_ideal"]
    times = two(options.rounds, options.samples, options.tokens)
    speedups = {name: ratios(times[f"{name} 1"], times[f"{name} 2"]) for name in ("ray", "processes")}
    against = ratios(times["ray 2"], times["processes 2"])
    rows = [
        ("eight sleepers, of the ideal time", Spread.of(slept).show()),
        *((f"two workers for one, {name}", spread.show()) for name, spread in speedups.items()),
        ("two on Ray, of two processes' time", against.show()),
    ]
    show(table(["", "median (quartiles)"], rows))
    show(verdict("eight sleepers", Spread.of(slept).median, MOST_OF_IDEAL, at_most=True))
    show(verdict("two for one on Ray", speedups["ray"].median, LEAST_OF_TWO, at_most=False))
    write_json(options.out, {"machine": machine(), "sleepers": slept, "seconds": times})


if __name__ == "__main__":
    main()
