"""A feature is a folder: one is added as CONTRIBUTING.md shows, and each that exists is taken out of a copy."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from house import feature_of, import_graph, modules

from gateau_dagster import features
from gateau_dagster.assets.steps.definition import asset_functions
from gateau_dagster.config.base import FeatureSection
from gateau_dagster.registry import feature_parts
from tests.kit.contributing import block
from tests.kit.error_codes import refused
from tests.kit.project import ROOT, change_config, command_environment

FEATURES = sorted(each.parent.name for each in (ROOT / "gateau_dagster/features").glob("*/__init__.py"))
FILES = ("config", "feature", "assets", "report", "commands")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package's files in another folder, which a process may import instead."""
    shutil.copytree(ROOT / "gateau_dagster", tmp_path / "copy/gateau_dagster", ignore=shutil.ignore_patterns("*.pyc"))
    return tmp_path / "copy"


def gateau(copied: Path, *arguments: str) -> str:
    code = "import sys; from gateau_dagster.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**command_environment(), "PYTHONPATH": os.pathsep.join([str(copied), str(ROOT)])},
        cwd=copied,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    (folder / "extra").mkdir()
    for name, source in {"__init__": "", **modules}.items():
        (folder / "extra" / f"{name}.py").write_text(source)
    monkeypatch.setattr(features, "__path__", [*features.__path__, str(folder)])
    for name in [name for name in sys.modules if name.startswith("gateau_dagster.features.extra")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_part_of_another_kind_and_a_name_that_is_taken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes = "from gateau_dagster.assets.steps.step import makes_asset\n@makes_asset\ndef report(step): ...\n"
    add(tmp_path, monkeypatch, config="SECTION = 3", assets=makes)
    (tmp_path / "notes.py").write_text("raise ValueError")
    with refused("plugins.incomplete"):
        list(feature_parts("config", "SECTION", FeatureSection))
    with refused("plugins.name"):
        asset_functions()
    assert [*feature_parts("commands", "COMMANDS", tuple)], "a file that is no folder is no feature"


def test_a_feature_is_one_folder(copied: Path, made_once: Path, tmp_path: Path) -> None:
    folder = copied / "gateau_dagster/features/largest"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""The largest sources."""\n')
    for number, name in enumerate(FILES):
        (folder / f"{name}.py").write_text(block("Adding a feature", number))
    file = Path(shutil.copytree(made_once, tmp_path / "project")) / "gateau.yaml"
    change_config(file, largest={"count": 1})
    given = ("--config", str(file))
    assert "gateau largest    the sources with the most samples" in gateau(copied, "--help")
    assert json.loads(gateau(copied, "schema"))["properties"]["largest"]["description"].startswith("The sources")
    plan = json.loads(gateau(copied, "plan", *given, "--json"))
    assert [each["asset"] for each in plan["work"]] == ["largest_sources", "report"]
    gateau(copied, "run", *given)
    assert gateau(copied, "largest", *given).count("\n") == 1
    assert "<h2>Largest sources</h2>" in (file.parent / "store/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FEATURES)
def test_the_kernel_chooses_without_a_feature(name: str, copied: Path, made_once: Path, tmp_path: Path) -> None:
    """And without those that are built on it."""
    gone = with_readers(name)
    for each in gone:
        shutil.rmtree(copied / "gateau_dagster/features" / each)
    file = Path(shutil.copytree(made_once, tmp_path / "project")) / "gateau.yaml"
    whole, without = ({*json.loads(gateau(each, "schema"))["properties"]} for each in (ROOT, copied))
    assert whole - without == {each for each in gone if (ROOT / f"gateau_dagster/features/{each}/config.py").exists()}
    content = yaml.safe_load(file.read_text()) | {"selection": {"fraction": 0.5}}
    file.write_text(yaml.safe_dump({key: each for key, each in content.items() if key not in whole - without}))
    chosen = ("--config", str(file), "--until", "selected_subset")
    gateau(copied, "run", *chosen)
    assert json.loads(gateau(copied, "plan", *chosen, "--json"))["work"] == []


def with_readers(name: str) -> set[str]:
    """Return a feature and all that import it, directly or not."""
    found, graph = {name}, import_graph(modules(ROOT, ["gateau_dagster"]))
    pairs = {(feature_of(each), feature_of(other)) for each, others in graph.items() for other in others}
    while more := {reader for reader, read in pairs if reader and read in found} - found:
        found |= more
    return found
