"""The compose file against the schema of the Compose specification, and against what its services name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from assets.runs.instance import prepare_home
from assets.runs.launching import LOCATION
from gateau_dagster.config import Config
from tests.examples.deployment.compose_file import COMPOSE, services

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
