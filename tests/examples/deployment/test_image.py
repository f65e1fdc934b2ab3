"""The Dockerfile, without Docker: what it copies is there and enough, and its versions are those of its users."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

from tests.examples.deployment.compose_file import DEPLOYMENT
from tests.project import ROOT

DOCKERFILE = (DEPLOYMENT / "Dockerfile").read_text()
COPIES = [line.split() for line in DOCKERFILE.splitlines() if line.startswith("COPY")]
COPIED = [(word, words[-1]) for words in COPIES for word in words[1:-1] if not word.startswith("--")]


def test_what_is_copied_is_there_and_not_left_out() -> None:
    ignore = (DEPLOYMENT / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    assert {source for source, _ in COPIED} == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / source).exists() for source, _ in COPIED)
    assert os.access(DEPLOYMENT / "entrypoint.sh", os.X_OK)


def test_what_is_copied_makes_the_whole_package(tmp_path: Path) -> None:
    """Every file of the three packages is in what `pip install /src` installs."""
    for source, target in COPIED:
        if target.startswith("/src"):
            into = tmp_path / "src" / (source if (ROOT / source).is_dir() else Path(source).name)
            into.parent.mkdir(exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "./src"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packages = ("gateau_dagster", "assets", "resources")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(packages) and ".dist-info/" not in name}
    assert held == wanted


def test_ray_has_one_version() -> None:
    (version,) = re.findall(r"^ARG RAY=ray\[default\]==(\S+)$", DOCKERFILE, re.MULTILINE)
    cluster, job = (
        yaml.safe_load((DEPLOYMENT / "kubernetes" / name).read_text())["spec"]
        for name in ("raycluster.yaml", "rayjob.yaml")
    )
    assert cluster["rayVersion"] == job["rayClusterSpec"]["rayVersion"] == version
    assert re.search(r"^torch==\S+$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
