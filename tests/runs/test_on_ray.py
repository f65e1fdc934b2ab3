"""`gateau run` with a Ray cluster: store on S3, a model that the pipeline makes, and kills at random moments."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage import Store
from tests.assets.test_pre_experienced import SECTIONS, UNTIL
from tests.kit.project import ROOT, command_environment, gateau, make_project
from tests.kit.ray_cluster import RayCluster, ray_cluster
from tests.resources.pools.shards_to_score import ingested
from tests.runs.stores import assert_same_rows

pytestmark = pytest.mark.long
KILLS = 20


def on(address: str, **further: object) -> dict[str, object]:
    ray = {"address": address, "workers": 2, "gpus": 0, "cpus": 1, "piece_minutes": 0.001, **further}
    return {"ray": ray}


def test_a_store_on_s3_and_a_model_that_the_pipeline_made(bucket: str, tmp_path: Path) -> None:
    """The nodes fetch the model into a folder of their own, and have their credentials from their environment."""
    with ray_cluster(1, 1) as cluster:
        scratch = tmp_path / "scratch"
        remote = {"storage": {"root": f"s3://{bucket}/gateau"}, "execution": on(cluster.address, scratch=str(scratch))}
        file = make_project(tmp_path / "ray", samples=18, shards=3, **SECTIONS, **remote)
        done = gateau("run", "--config", str(file), "--until", UNTIL, folder=file.parent)
        assert "Done" in done.stdout
    fetched = [*scratch.rglob("model.safetensors")]
    assert len(fetched) == 1 and "pre_experienced" in str(fetched[0])
    local = make_project(tmp_path / "here", samples=18, shards=3, **SECTIONS)
    gateau("run", "--config", str(local), "--until", UNTIL, folder=local.parent)
    here, there = state_of(config=load_project(local)), state_of(config=load_project(file))
    for shard in here.shards:
        assert_same_rows(there.store.read(UNTIL, shard), here.store.read(UNTIL, shard))
    assert not there.store.files.names("_workers") and not there.store.files.names("_partial")
    assert not [path for path in file.parent.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_ctrl_c_keeps_what_was_scored_and_leaves_no_actor(tmp_path: Path) -> None:
    with ray_cluster(1, 1) as cluster:
        file = make_project(tmp_path / "project", samples=600, shards=2, execution=on(cluster.address))
        store = Store(load_project(file).located_root)
        command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file), "--until", "cam"]
        run = subprocess.Popen(
            command, env=command_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not store.files.exists("_partial/cam"):
            assert run.poll() is None, run.communicate()
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=30)
        assert run.returncode == 130 and "Interrupted" in said and "Traceback" not in said
        assert cluster.soon_without_actors()
        saved = {shard: rows(store, shard) for shard in ("0", "1")}
        assert sum(saved.values()) > 0
        gateau("run", "--config", str(file), "--until", "cam", folder=file.parent)
        stamps = {shard: store.stamp("cam", shard) for shard in saved}
    assert sum(each.rows or 0 for each in stamps.values() if each) == 600
    scored = sum(each.effort.get("samples", 0) for each in stamps.values() if each)
    assert scored == 600 - sum(saved.values()), "what was saved was not scored again"


def rows(store: Store, shard: str) -> int:
    """Rows of `cam` that an interrupted run saved."""
    folder = f"_partial/cam/{shard}"
    found = [
        f"{folder}/{scorer}/{name}"
        for scorer in store.files.names(folder)
        for name in store.files.names(f"{folder}/{scorer}")
    ]
    frames = [store.read(name.removesuffix(".parquet")) for name in found]
    return pl.concat(frames)["sample_id"].n_unique() if frames else 0


SCRIPT = """
import sys
import time
from pathlib import Path
from gateau_dagster import tables
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.storage import Store
from tests.resources.pools.deadly_samples import Deadly
from tests.resources.pools.shards_to_score import ASSETS, pieces
from tests.resources.pools.test_on_ray import pool

file, log = sys.argv[1:]
state = state_of(config=load_project(Path(file)))
slow = Deadly(kills=[], seconds=0.05, log=log)
changes = {"effort": slow, "columns": (tables.SAMPLE_ID, tables.DIGEST)}
shards = [shard for shard in pieces(state, assets=ASSETS[:1], every=changes) if shard.lacking]
with pool(state, []) as some:
    for shard, made in some.results(shards, lambda report: None):
        print("done", shard, flush=True)
"""


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """Kill actors, raylets and drivers: every row exists once, and at most unfinished rows are scored again."""
    draws, killed, rounds = random.Random(14), {"actor": 0, "raylet": 0, "driver": 0}, 0
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    with ray_cluster(1, 1) as cluster:
        while sum(killed.values()) < KILLS:
            folder, rounds = tmp_path / str(rounds), rounds + 1
            state = ingested(folder, samples=240, shards=4, execution=on(cluster.address, piece_minutes=0.02))
            log, before = folder / "batches", sum(killed.values())
            while (step := _until_killed(script, folder, log, cluster, draws, killed)) is None:
                pass
            assert step == 0
            for shard in state.shards:
                ids = state.store.read("raw_long_sft", shard)["sample_id"].sort()
                assert state.store.read("perplexity/long", shard)["sample_id"].to_list() == ids.to_list()
            scored = log.read_text().split()
            again, kills = len(scored) - len({*scored}), sum(killed.values()) - before
            # A piece takes 1.2 s at most, so 24 samples, and some more where it began before its loss was known.
            assert len({*scored}) == 240 and again <= kills * 2 * 28, (again, kills)
    assert all(killed.values()), killed


def _until_killed(
    script: Path, folder: Path, log: Path, cluster: RayCluster, draws: random.Random, killed: dict[str, int]
) -> int | None:
    """Runs the step and kills something now and then; its status, or None where it was the step itself."""
    command = [sys.executable, str(script), str(folder / "gateau.yaml"), str(log)]
    step = subprocess.Popen(command, env=command_environment(), cwd=ROOT, start_new_session=True)
    try:
        while step.poll() is None:
            try:
                return step.wait(draws.uniform(2, 12))
            except subprocess.TimeoutExpired:
                pass
            if sum(killed.values()) >= KILLS:
                continue
            what = draws.choice([*killed])
            if what == "driver":
                step.send_signal(signal.SIGKILL)
                killed[what] += 1
                return None
            if what == "actor" and (actors := cluster.actors()):
                os.kill(draws.choice(actors), signal.SIGKILL)
                killed[what] += 1
            elif what == "raylet":
                cluster.lose(draws.choice(cluster.nodes))
                killed[what] += 1
                cluster.add(1)
    finally:
        if step.poll() is None:
            step.kill()
        step.wait()
    return step.returncode
