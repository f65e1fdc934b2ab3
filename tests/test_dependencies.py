"""Whatever is imported is declared, in versions that the installed ones lie in."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from house import imported
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.project import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [*map(Requirement, texts)] for name, texts in PROJECT["optional-dependencies"].items()}
RUN = [Requirement(text) for text in PROJECT["dependencies"]]
DEV = EXTRAS["dev"]
OPTIONAL = [each for name, found in EXTRAS.items() if name != "dev" for each in found]
PRODUCT = ("gateau_dagster", "assets", "resources")
AROUND = ("tests", "examples", "benchmarks", "scripts")
distributions = cache(packages_distributions)


def python_files(folders: Iterable[str]) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def undeclared(files: Iterable[Path], declared: Iterable[Requirement]) -> dict[str, str]:
    """Imported packages that no requirement brings, with a file that imports them; siblings of a script are its own."""
    known = {canonicalize_name(requirement.name) for requirement in declared}
    own = {
        PRODUCT[0],  # the others are below it when installed
        *AROUND,
        *sys.stdlib_module_names,
        *(file.stem for file in python_files(["benchmarks", "examples", "scripts"])),
    }
    found = {}
    for file in files:
        for name in {name.split(".")[0] for name in imported(file)} - own:
            given = {canonicalize_name(by) for by in distributions().get(name, [name])}
            if name.isidentifier() and not given & known and not any(file.parent.rglob(f"{name}.py")):
                found[name] = file.relative_to(ROOT).as_posix()
    return found


def test_the_product_declares_what_it_imports() -> None:
    assert undeclared(python_files(PRODUCT), RUN + OPTIONAL) == {}


def test_tests_and_scripts_declare_what_they_import() -> None:
    assert undeclared(python_files(AROUND), RUN + OPTIONAL + DEV) == {}


def test_an_undeclared_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_dependencies.ROOT", tmp_path)
    file = tmp_path / "x.py"
    file.write_text("import os, yaml\nfrom gateau_dagster import config\ndef f():\n    import fsspec.spec, nothing\n")
    without = [requirement for requirement in RUN if requirement.name != "fsspec"]
    assert undeclared([file], without) == {"fsspec": "x.py", "nothing": "x.py"}


@pytest.mark.parametrize("requirement", RUN + OPTIONAL + DEV, ids=lambda requirement: requirement.name)
def test_the_installed_version_is_one_of_those_declared(requirement: Requirement) -> None:
    assert re.search("[=>]", str(requirement.specifier)), "a lower bound"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        assert requirement in OPTIONAL
        pytest.skip(f"{requirement.name}, of an extra, is not installed")
    assert requirement.specifier.contains(installed, prereleases=True)


def test_dagster_has_an_upper_bound() -> None:
    """The product imports names from `dagster._core`, which any minor version may move."""
    bounds = {requirement.name: str(requirement.specifier) for requirement in RUN if "dagster" in requirement.name}
    assert len(bounds) == 4
    assert all("<1.14" in bound for bound in bounds.values())


@pytest.mark.parametrize(
    ("tag", "section", "passes"), [("v1.2.3", "1.2.3", True), ("v1.2.4", "1.2.3", False), ("v1.2.3", "1.2.2", False)]
)
def test_a_release_is_made_of_the_tagged_version_only(tag: str, section: str, passes: bool, tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if "tag is the version" in step.get("name", "")]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"## [{section}] - 2026-11-25\n")
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=environment, check=False)
    assert (done.returncode == 0) == passes
