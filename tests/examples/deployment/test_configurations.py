"""The configurations of the deployments: they are read, and ask Ray for what the nodes beside them have."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateau_dagster.config.load import read_config
from tests.examples.deployment.compose_file import COMPOSE, DEPLOYMENT

FILES = [
    COMPOSE / "project" / "gateau.yaml",
    DEPLOYMENT / "kubernetes" / "gateau.yaml",
    DEPLOYMENT / "slurm" / "gateau.yaml",
]


def ray_of(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())["execution"]["ray"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(DEPLOYMENT).as_posix())
def test_a_configuration_is_read(file: Path) -> None:
    assert read_config(file).long_sft.shards > 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(DEPLOYMENT).as_posix())
def test_what_is_the_users_is_marked(file: Path) -> None:
    edited = [line for line in file.read_text().splitlines() if "EDIT" in line]
    assert all(
        any(line.lstrip().startswith(key) for line in edited) for key in ("long_sft:", "short:", "long:", "ray:")
    )


def test_the_compose_nodes_have_what_is_asked_for() -> None:
    asked, lines = ray_of(FILES[0]), (COMPOSE / "env.example").read_text().splitlines()
    sizes = dict(line.split("=") for line in lines if line.startswith("RAY_"))
    assert asked["workers"] * asked["cpus"] == int(sizes["RAY_WORKERS"]) * int(sizes["RAY_WORKER_CPUS"])
    assert asked["gpus"] == 0


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_the_pods_have_what_is_asked_for(name: str) -> None:
    asked = ray_of(FILES[1])
    spec = yaml.safe_load((DEPLOYMENT / "kubernetes" / name).read_text())["spec"]
    (group,) = spec.get("rayClusterSpec", spec)["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == asked["workers"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (int(limits["cpu"]), int(limits["nvidia.com/gpu"])) == (asked["cpus"], asked["gpus"])


def test_the_slurm_job_has_what_is_asked_for() -> None:
    lines = (DEPLOYMENT / "slurm" / "gateau.sbatch").read_text().splitlines()
    sizes = dict(
        line.split("#")[1].split()[1].split("=") for line in lines if line.startswith("#SBATCH --") and "=" in line
    )
    asked = ray_of(FILES[2])
    assert asked["workers"] * asked["gpus"] == int(sizes["--nodes"]) * int(sizes["--gpus-per-node"])
