"""`gateau clean`: what nothing needs is listed and removed, on a disk and on S3, and nothing else is."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import boto3
import click
import polars as pl
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from gateau_dagster import tables
from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG, process_tag
from gateau_dagster.config import Config
from gateau_dagster.pipeline.loadable import scratch_of_store
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.recipes import CHECKPOINTS
from gateau_dagster.resources.lease import store_lease, whole_store_lease
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import publish_folder
from tests.cli.command import Command
from tests.kit.error_codes import refused
from tests.kit.project import change_config, gateau, make_project

OLD = time.time() - 2 * 24 * 3600
GONE, SCORER = "f" * 64, "0" * 64


def put(root: Path, *names: str, old: bool = False) -> None:
    """Writes files of 1,000 bytes."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * 1000)
        if old:
            os.utime(root / name, (OLD, OLD))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def listed(command: Command, *options: str) -> dict[str, Any]:
    status, out, err = command("clean", "--json", *options)
    assert status == 0, err
    return json.loads(out[out.index("{") :])


def names(record: dict[str, Any], below: Path | str) -> set[str]:
    return {each["where"].removeprefix(f"{below}/") for each in record["leftovers"]}


def test_remains_in_the_store_are_removed_and_nothing_else(command: Command, project: Path) -> None:
    store, config = project.parent / "store", load_project(project)
    shard = state_of(config=config).shards[0]
    scorer = state_of(config=config).row_scorer("perplexity/long")
    unfinished = f"_partial/perplexity/long/{shard}"
    remains = [".cam.parquet.0123abcd.tmp", "cam/.0.parquet.lease-12.0123abcd.tmp", "cam/0.parquet.damaged"]
    remains += [f"variant/models/{GONE}/model.safetensors", f"variant/models/{GONE}/gateau.json"]
    remains += [".checkpoint.discarded/model.safetensors", ".checkpoint.lease-3.new/config.json"]
    kept = ["cam/0.parquet", "cam/1.parquet.damaged", "notes.tmp", "report.html", "variant/models/own/README.md"]
    kept += [".other.new/gateau.json", ".gone.old/config.json", f"{unfinished}/{scorer}/0-a.parquet"]
    kept += [f"_partial/perplexity/gone/{shard}/{SCORER}/0-b.parquet"]  # another configuration's, of now
    put(store, *remains, *kept)
    remains += [f"{unfinished}/{SCORER}/0-a.parquet", f"_partial/gone/{shard}/{SCORER}/0-a.parquet"]
    put(store, *remains[-2:], old=True)
    assert files(store) == {*remains, *kept}

    found = listed(command)
    assert names(found, store) == {
        *remains[:3],
        f"variant/models/{GONE}",
        ".checkpoint.discarded",
        ".checkpoint.lease-3.new",
        *(name.rpartition("/")[0] for name in remains[-2:]),
    }
    assert found["bytes"] == 1000 * len(remains) and found["removed_bytes"] == 0
    assert files(store) == {*remains, *kept}, "without --yes it only looks"
    status, out, _ = command("clean")
    assert status == 0 and "add --yes" in out and "8 items, 9.0 kB" in out
    assert files(store) == {*remains, *kept}
    assert listed(command, "--yes")["removed_bytes"] == 1000 * len(remains)
    assert {name for name in files(store) if not name.startswith("_lease")} == {*kept}
    assert listed(command) == {"leftovers": [], "bytes": 0, "removed_bytes": 0}


def test_scratch_is_kept_while_its_training_is_to_go_on(command: Command, project: Path) -> None:
    change_config(project, training={"enabled": True})
    config, work = load_project(project), project.parent / ".gateau"
    own = scratch_of_store(state_of(config=config)).relative_to(work).as_posix()
    scratch = [f"{own}/work/checkpoint-1/model.safetensors", f"{own}/output/config.json"]
    variant = f"{own}/variant/models/{GONE}/work/plan.json"
    others = ["training/copy/config.json", "training/0123456789ab/work/plan.json", variant]
    put(work, *scratch, *others, "dagster/storage/.log.0123abcd.tmp")
    assert names(listed(command), work) == {"training/copy"}
    put(project.parent / "store", f"variant/models/{GONE}/gateau.json")  # that training is done
    assert names(listed(command), work) > {"training/copy", f"{own}/variant/models/{GONE}"}
    shutil.rmtree(project.parent / "store")
    put(work, *others, old=True)
    assert names(listed(command), work) == {"training/copy", "training/0123456789ab", f"{own}/variant/models/{GONE}"}
    change_config(project, training={"enabled": False})
    assert not {f"{own}/work", f"{own}/output"} & names(listed(command), work), "another configuration may train"
    put(work, *scratch, old=True)
    assert names(listed(command, "--yes"), work) == {
        "training/copy",
        "training/0123456789ab",
        *(f"{own}/{name}" for name in ("work", "output", f"variant/models/{GONE}")),
    }
    assert not [name for name in files(work) if name.startswith("training/")]
    assert "dagster/storage/.log.0123abcd.tmp" in files(work)


def test_a_variant_that_is_to_be_trained_keeps_its_scratch(command: Command, tmp_path: Path) -> None:
    variants = {"fractions": [0.5], "also": ["full"]}
    file = make_project(tmp_path, samples=8, shards=1, training=True, variants=variants)
    config = load_project(file)
    scratch = scratch_of_store(state_of(config=config)) / "variant" / "models" / GONE
    put(scratch, "work/plan.json")
    assert state_of(config=config).whole_plan().of(CHECKPOINTS) is not None
    assert listed(command)["leftovers"] == [], "the fingerprints are known once the mixes are made"


def test_a_link_is_neither_followed_nor_removed(command: Command, project: Path, tmp_path: Path) -> None:
    own = scratch_of_store(state_of(config=load_project(project)))
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere, "gateau.json", "checkpoint-1/model.safetensors", old=True)
    links = [
        own / "work",
        own.parent / "copy",
        own.parents[1] / "models" / "a",
        own.parents[1] / "cache" / "input-index-0",
    ]
    links.append(project.parent / "store" / "variant" / "models" / GONE)
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(elsewhere)
        os.utime(link, (OLD, OLD), follow_symlinks=False)
    assert listed(command, "--yes")["leftovers"] == []
    assert all(link.is_symlink() for link in links) and len(files(elsewhere)) == 2


def test_a_model_of_another_configuration_is_named(command: Command, project: Path) -> None:
    store = state_of(config=load_project(project)).store
    put(Path(store.root), f"variant/models/{GONE}/gateau.json", f"variant/models/{'e' * 64}/gateau.json")
    row = pl.DataFrame(schema=tables.schema(tables.VARIANT_CHECKPOINT))
    store.write(row, "variant/checkpoint", "ladm-0.1", Stamp(fingerprint=GONE))
    whats = {each["where"][-64:]: each["what"] for each in listed(command)["leftovers"]}
    assert whats == {
        GONE: "model of variant ladm-0.1, which this configuration does not have",
        "e" * 64: "model of no variant",
    }


def test_caches_of_interrupted_work_are_removed(command: Command, project: Path) -> None:
    work = project.parent / ".gateau"
    listed(command)  # makes the index of the data
    before = files(work)
    assert [name for name in before if name.startswith("cache/input-index-")]
    put(work, "cache/short_tasks/part-0123abcd/a", "cache/.a.json.0123abcd.tmp", "progress/r/.b.1.2.tmp")
    assert listed(command)["leftovers"] == [], "another process may be writing them"
    put(work, "cache/short_tasks/part-0123abcd/a", "cache/.a.json.0123abcd.tmp", "progress/r/.b.1.2.tmp", old=True)
    put(work, "cache/input-index-0000.parquet", "models/checkpoint/config.json", "models/a/b/config.json")
    put(work, "publish/data/selected.parquet")  # of a killed upload
    put(work, "models/checkpoint.version")
    found = listed(command, "--yes")
    assert names(found, work) == {
        "cache/short_tasks/part-0123abcd",
        "cache/.a.json.0123abcd.tmp",
        "progress/r/.b.1.2.tmp",
        "cache/input-index-0000.parquet",
        "publish",
        *("models/checkpoint", "models/checkpoint.version", "models/a/b"),
    }
    assert files(work) == before


def test_it_asks_first(command: Command, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remains = project.parent / "store" / ".cam.parquet.0123abcd.tmp"
    put(remains.parent, remains.name)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for agreed, line in ((False, "Nothing was removed."), (True, "Removed 1.0 kB.")):
        monkeypatch.setattr(click, "confirm", lambda _, agreed=agreed: agreed)
        status, out, _ = command("clean")
        assert status == 0 and out.rstrip().endswith(line)
        assert remains.exists() != agreed
    status, out, _ = command("clean")
    assert status == 0 and "nothing to clean" in out


def test_it_is_refused_while_a_run_is_at_work(command: Command, project: Path) -> None:
    config = load_project(project)
    put(project.parent / "store", ".cam.parquet.0123abcd.tmp")
    with store_lease(config, str(project), exclusive=False, say=print):
        status, _, err = command("clean", "--yes")
        assert status == 1 and "is in use by process" in err and "[storage.lease_held]" in err
        with refused("storage.lease_held"), whole_store_lease(config, "gateau clean", print):
            pass
    with (
        whole_store_lease(config, "gateau clean", print),
        refused("storage.lease_held", match="gateau clean"),
        store_lease(config, str(project), exclusive=False, say=print),
    ):
        pass
    with open_instance(config) as instance:
        tags = {PROCESS_TAG: process_tag()}
        run = create_run_for_test(instance, job_name="everything", status=DagsterRunStatus.STARTED, tags=tags)
        status, _, err = command("clean", "--yes")  # between two steps a run has no lease
        assert status == 1 and run.run_id in err
        assert (project.parent / "store" / ".cam.parquet.0123abcd.tmp").exists()
        instance.report_run_canceled(run)
    assert listed(command, "--yes")["removed_bytes"] == 1000


def test_on_s3_unfinished_uploads_and_old_models_are_removed(
    command: Command, project: Path, bucket: str, tmp_path: Path
) -> None:
    root = f"s3://{bucket}/team/store"
    change_config(project, storage={"root": root})
    state, client = state_of(config=load_project(project)), boto3.client("s3")
    state.store.files.write("report.html", b"<p>")
    state.store.files.write("_commits/lease-7/0123", b"x" * 500)
    for name in ("models", "models/other"):
        put(tmp_path / "new", "config.json", "model.safetensors")
        place = f"variant/{name}/{GONE}" if name == "models" else f"other/{GONE}"
        publish_folder(state.store, tmp_path / "new", place, Stamp(fingerprint=GONE))
    for key in ("team/store/checkpoint/model.safetensors", "team/storehouse/model.safetensors"):
        upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 2000)
    with store_lease(_elsewhere(state.config, tmp_path), "elsewhere.yaml", exclusive=False, say=print):
        assert command("clean", "--yes")[0] == 1, "another machine works on the store"
    found = listed(command, "--yes")
    assert names(found, root) == {
        f"variant/models/{GONE}",
        "_commits/lease-7/0123",
        "checkpoint/model.safetensors",
    }
    assert found["removed_bytes"] == found["bytes"] > 4500
    left = {name for name in state.store.files.sizes() if not name.startswith("_lease")}
    assert left == {
        "report.html",
        *(f"other/{GONE}/{name}" for name in ("config.json", "model.safetensors", "gateau.json")),
    }
    uploads = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [each["Key"] for each in uploads] == ["team/storehouse/model.safetensors"]


def _elsewhere(config: Config, folder: Path) -> Config:
    """The configuration as another machine has it: its work folder is another one."""
    return config.model_copy(update={"folder": folder / "elsewhere"})


@pytest.mark.long
def test_after_a_whole_run_nothing_that_is_needed_is_removed(whole_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "project" / whole_run.name
    shutil.copytree(whole_run.parent, file.parent)
    before = {name for name in files(file.parent / "store") if not name.startswith("_lease/")}
    found = json.loads(gateau("clean", "--yes", "--json", folder=file.parent).stdout)
    assert {each["what"] for each in found["leftovers"]} <= {"scratch of a training run", "index of other data"}
    assert before <= files(file.parent / "store")
    plan = json.loads(gateau("plan", "--json", folder=file.parent).stdout)
    assert plan["work"] == []
    assert json.loads(gateau("clean", "--json", folder=file.parent).stdout)["leftovers"] == []
