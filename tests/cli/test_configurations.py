"""Which configuration a command reads, what it says of it, and which one its follow-up commands name."""

import importlib
import shutil
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.errors import gateau_command
from gateau_dagster.features.demo.prepare import embedded_demo, ensure_demo_data
from gateau_dagster.pipeline.project import EXAMPLE, parse_project
from tests.assets.harness import forget_definitions
from tests.cli.command import Command

SAMPLES = "long_sft: {path: x.jsonl}\nselection: {method: length}\n"
COMMANDS = [("run",), ("plan",), ("validate",), ("status",), ("show", "x"), ("open",), ("dev",), ("clean",)]
ONE_LINE = '{"id": "a", "context": "one two", "instruction": "three", "response": "four"}\n'


def write_length_project(folder: Path, name: str = "gateau.yaml") -> Path:
    """A project without models; returns its configuration file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x.jsonl").write_text(ONE_LINE)
    (folder / name).write_text(SAMPLES)
    return folder / name


@pytest.mark.parametrize("words", COMMANDS)
def test_without_a_configuration_every_command_says_what_to_do(command: Command, words: tuple[str, ...]) -> None:
    status, out, err = command(*words)
    assert (status, out) == (1, "")
    assert "gateau demo" in err and "gateau.yaml" in err and "--config" in err and "GATEAU_CONFIG" in err
    assert not any(Path().iterdir()), "nothing is written"


def test_the_example_of_the_message_is_a_configuration(tmp_path: Path) -> None:
    assert parse_project(EXAMPLE, folder=tmp_path).has_pair


@pytest.mark.parametrize("name", ["gateau.yml", "my gateau.yaml"])
def test_a_file_that_may_be_meant_is_pointed_at(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SAMPLES)
    (tmp_path / "docker-compose.yaml").write_text("services: {}\n")
    err = command("plan")[2]
    assert f"gateau run --config {name if ' ' not in name else repr(name)}\n" in err and "docker" not in err


def test_the_configuration_of_a_folder_above_is_pointed_at(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gateau.yaml").write_text(SAMPLES)
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    assert "gateau run --config ../gateau.yaml\n" in command("status")[2]


def test_the_option_then_the_environment_then_the_usual_file(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gateau", "second", "third"):
        write_length_project(tmp_path, f"{name}.yaml").write_text(f"storage: {{root: {name}}}\n{SAMPLES}")
    assert f"the store is {tmp_path / 'gateau'}\n" in command("status")[1]
    monkeypatch.setenv("GATEAU_CONFIG", "second.yaml")
    assert f"the store is {tmp_path / 'second'}\n" in command("status")[1]
    assert f"the store is {tmp_path / 'third'}\n" in command("status", "--config", "third.yaml")[1]
    monkeypatch.setenv("GATEAU_CONFIG", "")
    assert f"the store is {tmp_path / 'gateau'}\n" in command("status")[1]
    status, _, err = command("status", "--config", "")
    assert status == 1 and "--config is empty" in err


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_usual_file_that_cannot_be_read_is_not_passed_over(command: Command, tmp_path: Path, kind: str) -> None:
    usual = tmp_path / "gateau.yaml"
    usual.mkdir() if kind == "folder" else usual.symlink_to("nowhere")
    status, _, err = command("plan")
    assert status == 1 and f"Cannot read the configuration {usual}" in err


def test_the_demo_has_a_folder_of_its_own(command: Command, tmp_path: Path) -> None:
    """Beside a project, whose store and records it leaves alone."""
    write_length_project(tmp_path)
    out = command("demo", "--until", "raw_long_sft")[1]
    assert "GATEAU on the embedded demo; the store is" in out.splitlines()[0]
    assert "Dagster UI on these assets: gateau dev --config demo\n" in out
    assert {path.name for path in tmp_path.iterdir()} == {"gateau.yaml", "x.jsonl", "gateau_demo"}
    assert command("plan", "--until", "raw_long_sft", "--config", "demo")[1].startswith("Everything is up to date")
    assert "raw_long_sft" in command("plan", "--until", "raw_long_sft")[1]


def test_a_run_names_its_configuration_and_what_follows_it(command: Command, tmp_path: Path) -> None:
    """In the shell's words, from the current folder, whether there is something to do or not."""
    file = write_length_project(tmp_path / "my data", "second try.yaml")
    for worked in (True, False):
        out = command("run", "--config", str(file), "--until", "selected_subset")[1]
        first = out.splitlines()[0]
        assert first == f"GATEAU on my data/second try.yaml; the store is {file.parent / 'gateau_store'}"
        assert ("gateau dev --config 'my data/second try.yaml'\n" in out) == worked
        chosen = f"Chosen samples: {file.parent}/gateau_store/selected_subset.parquet; for a trainer: gateau export"
        assert (f"{chosen} messages --out selected.parquet --config 'my data/second try.yaml'\n" in out) == worked
    assert (
        "`gateau run --config 'my data/second try.yaml'`"
        in command("plan", "--config", str(file), "--until", "raw_long_sft")[1]
    )
    err = command("open", "--config", str(file))[2]
    assert "Run `gateau run --config 'my data/second try.yaml'` to compute it" in " ".join(err.split())


def test_an_earlier_demo_in_a_project_s_store_is_told_apart(command: Command, tmp_path: Path) -> None:
    """Earlier versions ran the demo into the store that a project has by default."""
    demo = embedded_demo(tmp_path / "old")
    ensure_demo_data(demo)
    samples = pl.read_ndjson(next((tmp_path / "old").rglob("samples.jsonl")))
    (tmp_path / "gateau_store" / "raw_long_sft").mkdir(parents=True)
    samples.write_parquet(tmp_path / "gateau_store" / "raw_long_sft" / "0.parquet")
    shutil.rmtree(tmp_path / "old")
    said = f"{tmp_path / 'gateau_store'} contains the embedded demo of an earlier version"
    assert said in " ".join(command("status")[2].split())
    assert said in " ".join(command("plan", "--until", "raw_long_sft", "--config", "demo")[1].split())
    write_length_project(tmp_path)
    said = f"! {tmp_path / 'gateau_store'} contains the tables of the embedded demo."
    assert said in " ".join(command("plan", "--until", "raw_long_sft")[1].split())


def test_the_code_location_without_a_file_is_the_demo_and_beside_one_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def location() -> list[str]:
        monkeypatch.setenv("GATEAU_CONFIG", "")
        forget_definitions()
        found = importlib.import_module("gateau_dagster.definitions").defs.resources["configuration"]
        return [str(found.config.located_root), gateau_command("run")]

    assert location() == [str(tmp_path / "gateau_demo" / "gateau_store"), "gateau run --config demo"]
    write_length_project(tmp_path)
    assert location() == [str(tmp_path / "gateau_store"), "gateau run --config gateau.yaml"]
    forget_definitions()
