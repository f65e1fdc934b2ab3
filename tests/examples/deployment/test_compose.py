"""The compose file against the schema of the Compose specification, and against what its services name."""

import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.ref import InstanceRef

from gateau_dagster.assets.runs.instance import prepare_home
from gateau_dagster.assets.runs.launching import LOCATION
from gateau_dagster.config import Config
from gateau_dagster.config.load import read_config
from tests.examples.deployment.builders import COMPOSE, DEPLOYMENT, services
from tests.kit.local_server import QuietHandler, served
from tests.kit.project import ROOT, command_environment

SECRETS = {"POSTGRES_PASSWORD": "p", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


def refused(*files: Path) -> str:
    """What the specification's schema has against the files; empty: nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_files_are_of_the_specification(tmp_path: Path) -> None:
    assert refused(COMPOSE / "compose.yaml", COMPOSE / "compose.gpu.yaml") == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((COMPOSE / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace_time"))
    assert "stop_grace_time" in refused(wrong)


def test_env_example_has_every_variable() -> None:
    used = {*re.findall(r"\$\{(\w+)", (COMPOSE / "compose.yaml").read_text())}
    named = {*re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", (COMPOSE / "env.example").read_text(), re.MULTILINE)}
    assert used == named


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_that_is_not_set_is_asked_for(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        services({key: value for key, value in SECRETS.items() if key != name})


def test_ray_has_no_access_to_the_records() -> None:
    found = services(SECRETS)
    for name in ("ray-head", "ray-worker"):
        assert not {"GATEAU_POSTGRES_URL", "DAGSTER_HOME"} & found[name].environment.keys()
    assert {"GATEAU_POSTGRES_URL", "DAGSTER_HOME"} <= found["code"].environment.keys()


def test_all_that_is_mounted_and_waited_for_is_there() -> None:
    found, content = services(SECRETS), yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    for service in found.values():
        for source in service.volumes.values():
            assert (COMPOSE / source).exists() if source.startswith("./") else source in content["volumes"]
        for other, wait in service.keys.get("depends_on", {}).items():
            assert found[other].health or wait["condition"] != "service_healthy"
            assert found[other].keys["restart"] == "no" or wait["condition"] != "service_completed_successfully"


def test_dagster_yaml_is_what_gateau_run_makes_and_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So `docker compose exec code gateau run` changes nothing of a file that it may not write to."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "made"))
    config = Config.model_validate(
        {
            "long_sft": {"path": "x.jsonl"},
            "selection": {"method": "length"},
            "execution": {"postgres": "GATEAU_POSTGRES_URL"},
        }
    )
    made = prepare_home(config) / "dagster.yaml"
    ours = COMPOSE / "dagster.yaml"
    assert yaml.safe_load(made.read_text()) == yaml.safe_load(ours.read_text())
    mounted = tmp_path / "mounted" / "dagster.yaml"
    mounted.parent.mkdir()
    mounted.write_bytes(ours.read_bytes())
    monkeypatch.setenv("DAGSTER_HOME", str(mounted.parent))
    prepare_home(config)
    assert mounted.read_bytes() == ours.read_bytes()


def test_the_workspace_is_the_code_location() -> None:
    (entry,) = yaml.safe_load((COMPOSE / "workspace.yaml").read_text())["load_from"]
    command = services(SECRETS)["code"].command
    assert entry["grpc_server"] == {"host": "code", "port": 4000, "location_name": LOCATION}
    assert command[command.index("--port") + 1] == "4000"
    assert command[command.index("--location-name") + 1] == LOCATION


FILES = [
    COMPOSE / "project" / "gateau.yaml",
    DEPLOYMENT / "kubernetes" / "gateau.yaml",
    DEPLOYMENT / "slurm" / "gateau.yaml",
]


def ray_of(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())["execution"]["ray"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(DEPLOYMENT).as_posix())
def test_a_configuration_is_read_and_what_is_the_users_is_marked(file: Path) -> None:
    assert read_config(file).long_sft.shards > 1
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


def look(**environment: str) -> subprocess.CompletedProcess[str]:
    """The command of the service `store`."""
    command = [sys.executable, str(COMPOSE / "make_bucket.py"), "gateau"]
    return subprocess.run(
        command, env=command_environment(**environment), capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture
def ignoring_server() -> Iterator[str]:
    """It takes everything."""

    class Takes(QuietHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_PUT

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Takes)) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_server_that_knows_conditional_writes(s3_environment: str) -> None:
    """Also where the bucket is there. moto looks and then writes: once in 150 times two writers win."""
    done = [look() for _ in range(3)]
    good = [each.stdout for each in done if each.returncode == 0]
    assert len(good) >= 2, [each.stderr for each in done]
    assert "knows conditional writes" in good[0]


def test_a_server_that_ignores_them_is_refused(s3_environment: str, ignoring_server: str) -> None:
    done = look(AWS_ENDPOINT_URL=ignoring_server)
    assert done.returncode == 1
    assert "9 of 9 writers" in done.stderr and "Take another server" in done.stderr


def test_a_server_that_is_just_starting_is_waited_for(s3_environment: str) -> None:
    """Its port answers a little later."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done: list[subprocess.CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: done.append(look(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")))
    thread.start()
    thread.join(timeout=4)
    assert thread.is_alive(), done
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    running.start()
    try:
        thread.join(timeout=100)
        assert done[0].returncode == 0 or "writers" in done[0].stderr, done[0].stderr
    finally:
        running.stop()


DOCKERFILE = (DEPLOYMENT / "Dockerfile").read_text()
COPIES = [line.split() for line in DOCKERFILE.splitlines() if line.startswith("COPY")]
COPIED = [(word, words[-1]) for words in COPIES for word in words[1:-1] if not word.startswith("--")]


def test_what_is_copied_is_there_and_not_left_out() -> None:
    ignore = (DEPLOYMENT / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    assert {source for source, _ in COPIED} == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / source).exists() for source, _ in COPIED)
    assert os.access(DEPLOYMENT / "entrypoint.sh", os.X_OK)


@pytest.mark.long
@pytest.mark.parametrize("made", [None, "report.html"])
def test_what_is_copied_makes_the_whole_package(tmp_path: Path, made: str | None) -> None:
    """Every file is in what `pip install /src` installs, which works beside other packages `assets` and `resources`."""
    for source, target in COPIED:
        if target.startswith("/src"):
            into = tmp_path / "src" / (source if (ROOT / source).is_dir() else Path(source).name)
            into.parent.mkdir(exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "./src"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packages = ("gateau_dagster", "gateau_dagster/assets", "gateau_dagster/resources")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(packages) and ".dist-info/" not in name}
        archive.extractall(tmp_path / "site")
    assert held == wanted
    for name in ("assets", "resources"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "__init__.py").write_text("MINE = True\n")
    code = (
        "import sys, assets, resources, gateau_dagster.assets\n"
        "assert assets.MINE and resources.MINE\n"
        f"assert gateau_dagster.assets.__file__.startswith({str(tmp_path / 'site')!r})\n"
        "from gateau_dagster.cli import main\n"
        f"sys.argv = ['gateau', *{['demo'] if made else ['schema']!r}]\n"
        "main()"
    )
    path = os.pathsep.join(str(tmp_path / name) for name in ("site", "other"))
    environment = command_environment(PYTHONPATH=path)
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert made is None or (tmp_path / "gateau_demo" / "gateau_store" / made).is_file()


def test_ray_has_one_version() -> None:
    (version,) = re.findall(r"^ARG RAY=ray\[default\]==(\S+)$", DOCKERFILE, re.MULTILINE)
    cluster, job = (
        yaml.safe_load((DEPLOYMENT / "kubernetes" / name).read_text())["spec"]
        for name in ("raycluster.yaml", "rayjob.yaml")
    )
    assert cluster["rayVersion"] == job["rayClusterSpec"]["rayVersion"] == version
    assert re.search(r"^torch==\S+$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


EXAMPLE = DEPLOYMENT / "dagster_ray" / "dagster.yaml"


def test_all_but_the_launcher_is_that_of_compose() -> None:
    ours, compose = (yaml.safe_load(file.read_text()) for file in (EXAMPLE, COMPOSE / "dagster.yaml"))
    assert {**ours, "run_launcher": None} == {**compose, "run_launcher": None}


@pytest.mark.skipif(find_spec("dagster_ray") is None, reason="not installed: pip install dagster-ray==0.4.8")
def test_dagster_ray_takes_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_bytes(EXAMPLE.read_bytes())
    launcher = InstanceRef.from_dir(str(tmp_path)).run_launcher
    assert getattr(launcher, "address", None) == "http://ray-head:8265"
