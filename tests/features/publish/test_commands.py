"""`gateau publish`, `run` and `plan` beside a hub that fails, or on which something happened."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.kit.hub_writing import Hub, hub
from tests.kit.project import change_config

__all__ = ["hub"]
NAME = "team/selection"
PAGE = b"<!doctype html><title>Sign in</title>"


def test_a_folder_holds_what_would_be_uploaded(
    whole_run: Path, tmp_path: Path, command: Command, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shutil.copytree(whole_run.parent, tmp_path / "project") / "gateau.yaml"
    change_config(file, publish={"repository": NAME, "license": "cc-by-4.0"})
    folder, to = tmp_path / "set", ("publish", "--to", str(tmp_path / "set"), "--config", str(file))
    token = os.environ["HF_TOKEN"]
    monkeypatch.delenv("HF_TOKEN")
    assert command(*to)[0] == 0 and hub.received == []
    written = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setenv("HF_TOKEN", token)
    assert command("publish", "--config", str(file))[0] == 0
    assert {**hub.repositories[NAME].files} == written | {".gitattributes": b"*.parquet filter=lfs"}
    (folder / "data" / "old.parquet").write_bytes(b"")
    assert command(*to)[0] == 0 and not (folder / "data" / "old.parquet").exists(), "an earlier data set is replaced"
    (folder / "README.md").write_text("mine")
    status, _, errors = command(*to)
    assert status == 1 and "[publish.folder]" in errors and (folder / "README.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".set")] == []


def test_a_fault_is_one_line_and_a_lost_data_set_is_uploaded_again(
    whole_run: Path, tmp_path: Path, command: Command, hub: Hub
) -> None:
    file = shutil.copytree(whole_run.parent, tmp_path / "project") / "gateau.yaml"
    change_config(file, publish={"repository": NAME, "license": "cc-by-4.0"})
    hub.faults = {f"POST /api/datasets/{NAME}/commit": [(200, PAGE)]}
    status, _, errors = command("publish", "--config", str(file))
    assert status == 1 and errors.count("Error: ") == 1 and "Sign in" in errors and "[hub.answer]" in errors
    status, out, _ = command("publish", "--config", str(file))
    assert status == 0 and f"{hub.address}/datasets/{NAME}/tree/{hub.repositories[NAME].sha}" in out
    files = hub.repositories[NAME].files

    requests = len(hub.received)
    hub.faults = {f"GET /api/datasets/{NAME}": [(200, PAGE)] * 2}
    status, out, _ = command("run", "--config", str(file))
    assert status == 0 and "not compared with the hub" in out and "up to date" in out
    status, out, _ = command("plan", "--config", str(file), "--json")
    record = json.loads(out)
    assert status == 0 and record["up_to_date"] and any("not compared" in said for said in record["warnings"])
    assert len(hub.received) == requests + 2, "one request each"

    del hub.repositories[NAME]
    status, out, _ = command("plan", "--config", str(file))
    assert status == 0 and "no longer has" in " ".join(out.split())
    status, out, _ = command("plan", "--config", str(file), "--until", "selected_subset")
    assert status == 0 and "up to date" in out and len(hub.received) == requests + 3
    status, _, _ = command("publish", "--config", str(file))
    assert status == 0 and hub.repositories[NAME].files == files
