"""The ways in which a project's shards are scored, each in processes of its own, and what they take."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common_measure import say
from common_models import TINY, build_model, make_samples

SCORED = ("perplexity/short", "perplexity/long", "cam")
_ASSETS = ("raw_long_sft", *SCORED)
_IMPORTS = "import dagster, torch; from transformers import AutoTokenizer, LlamaForCausalLM"
_ONE_PROCESS = """
import sys, time
import dagster as dg
from assets.runs.instance import open_instance
from assets.steps.partitions import asset_key
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.definitions import defs

job = defs.resolve_job_def("everything")
keys = [asset_key(name) for name in sys.argv[2].split(",")]
with open_instance(load_project(sys.argv[1])) as instance:
    for shard in sys.argv[3].split(","):
        started = time.perf_counter()
        done = job.execute_in_process(
            instance=instance, partition_key=shard, asset_selection=keys,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        assert done.success
        print(shard, time.perf_counter() - started, flush=True)
"""
_OPEN = "from assets.runs.instance import open_instance; from gateau_dagster.pipeline.project import load_project; "
_TEXTS = ("source", "context", "instruction", "response")


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
    from gateau_dagster.pipeline.project import load_project
    from gateau_dagster.pipeline.state import State

    stamps = State(config=load_project(str(file))).store.stamps((name, shard) for name in SCORED for shard in shards)
    return sum(stamp.effort.get("seconds", 0.0) for stamp in stamps.values() if stamp is not None)


def prepare_home(file: Path) -> None:
    """Dagster's home, as `gateau run` makes it; none of the ways is charged for creating its databases."""
    process([sys.executable, "-c", f"{_OPEN}open_instance(load_project({str(file)!r})).get_run_ids()"], file)


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
