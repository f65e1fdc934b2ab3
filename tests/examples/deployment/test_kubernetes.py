"""The Kubernetes files: against one another, and against Kubernetes' and KubeRay's own schemas where they are there."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance
from dagster._core.test_utils import create_run_for_test

from gateau_dagster.assets.runs.launching import LOCATION
from gateau_dagster.assets.runs.run_launcher import RunLauncher
from tests.examples.deployment.builders import DEPLOYMENT, services
from tests.kit.postgres_server import PASSWORD, PostgresServer

FOLDER = DEPLOYMENT / "kubernetes"
MANIFESTS = ["code-location.yaml", "raycluster.yaml", "rayjob.yaml"]
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "dagster-values.yaml").read_text())
PAGE = (FOLDER / "README.md").read_text()
SECRETS = {"POSTGRES_PASSWORD": "p", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
VALIDATOR = shutil.which("kubernetes-validate", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
CRDS = os.environ.get("KUBERAY_CRDS")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def inside(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a value."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from inside(each)
    elif isinstance(value, list):
        for each in value:
            yield from inside(each)


def code_location() -> dict[str, Any]:
    return next(each for each in documents("code-location.yaml") if each["kind"] == "Deployment")


def test_secrets_configuration_and_claims_are_made_by_the_page_or_the_files() -> None:
    made = set(re.findall(r"kubectl create (?:secret generic|configmap) (\S+)", PAGE))
    keys = set(re.findall(r"--from-literal=([\w-]+)=", PAGE))
    claims = {each["metadata"]["name"] for each in documents("code-location.yaml") if each["kind"].endswith("Claim")}
    for each in inside([documents(name) for name in MANIFESTS]):
        for kind in ("secretKeyRef", "secretRef", "configMap"):
            assert kind not in each or each[kind]["name"] in made
        assert "secretKeyRef" not in each or each["secretKeyRef"]["key"] in keys
        assert "persistentVolumeClaim" not in each or each["persistentVolumeClaim"]["claimName"] in claims
    assert VALUES["global"]["postgresqlSecretName"] in made
    assert {"postgresql-password", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= keys


def test_ray_workers_have_no_access_to_the_records() -> None:
    for name in ("raycluster.yaml", "rayjob.yaml"):
        spec = documents(name)[0]["spec"]
        groups = json.dumps(spec.get("rayClusterSpec", spec)["workerGroupSpecs"])
        assert "gateau-store" in groups and "gateau-postgres" not in groups


def test_all_pods_have_one_image() -> None:
    images = {each["image"] for each in inside([documents(name) for name in MANIFESTS]) if "image" in each}
    own = VALUES["dagsterWebserver"]["image"]
    assert images == {f"{own['repository']}:{own['tag']}"}
    assert VALUES["dagsterDaemon"]["image"] == own


def test_the_code_location_is_that_of_the_compose_file() -> None:
    """Whose command and health check tests/examples/deployment/test_compose_run.py runs."""
    pod, compose = code_location()["spec"]["template"]["spec"], services(SECRETS)["code"]
    (container,) = pod["containers"]
    assert container["args"] == compose.command
    assert container["readinessProbe"]["exec"]["command"] == compose.health
    given = {each["name"] for each in container["env"]}
    assert {name for name in compose.environment if name.startswith(("GATEAU", "DAGSTER"))} <= given
    (server,) = VALUES["dagsterWebserver"]["workspace"]["servers"]
    service = next(each for each in documents("code-location.yaml") if each["kind"] == "Service")
    assert server == {"host": service["metadata"]["name"], "port": 4000, "name": LOCATION}
    assert service["spec"]["selector"].items() <= code_location()["spec"]["template"]["metadata"]["labels"].items()
    head = next(each["value"] for each in container["env"] if each["name"] == "GATEAU_RAY_HEAD")
    assert head == f"{documents('raycluster.yaml')[0]['metadata']['name']}-head-svc:6379"


def chart_instance(port: int) -> dict[str, Any]:
    """The dagster.yaml that the chart makes of the values, with the database elsewhere."""
    database = {
        "username": VALUES["postgresql"]["postgresqlUsername"],
        "password": {"env": "DAGSTER_PG_PASSWORD"},
        "hostname": "127.0.0.1",
        "port": port,
        "db_name": VALUES["postgresql"]["postgresqlDatabase"],
        "params": {},
    }
    storages = {
        "run_storage": ("run_storage", "PostgresRunStorage"),
        "event_log_storage": ("event_log", "PostgresEventLogStorage"),
        "schedule_storage": ("schedule_storage", "PostgresScheduleStorage"),
    }
    pools, monitoring = VALUES["concurrency"]["pools"], VALUES["dagsterDaemon"]["runMonitoring"]
    return {
        **{
            name: {"module": f"dagster_postgres.{module}", "class": kind, "config": {"postgres_db": database}}
            for name, (module, kind) in storages.items()
        },
        "run_launcher": VALUES["runLauncher"]["config"]["customRunLauncher"],
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator", "config": {}},
        "concurrency": {"pools": {"granularity": pools["granularity"], "default_limit": pools["defaultLimit"]}},
        "run_monitoring": {
            "enabled": monitoring["enabled"],
            "start_timeout_seconds": monitoring["startTimeoutSeconds"],
            "poll_interval_seconds": monitoring["pollIntervalSeconds"],
            "free_slots_after_run_end_seconds": monitoring["freeSlotsAfterRunEndSeconds"],
        },
        "telemetry": VALUES["telemetry"],
    }


def test_dagster_works_on_the_values_and_shares_its_records_with_gateau_run(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = VALUES["postgresql"]["postgresqlDatabase"]
    if not postgres.ask(f"select 1 from pg_database where datname = '{name}'"):
        postgres.new_database(name)
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", PASSWORD)
    monkeypatch.setenv("GATEAU_POSTGRES_URL", postgres.url(name))
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(chart_instance(postgres.port)))
    home = tmp_path / "of_gateau_run"
    home.mkdir()
    (home / "dagster.yaml").write_bytes((DEPLOYMENT / "compose" / "dagster.yaml").read_bytes())
    with DagsterInstance.from_config(str(tmp_path)) as chart, DagsterInstance.from_config(str(home)) as terminal:
        assert isinstance(chart.run_launcher, RunLauncher)
        pools = [each.get_concurrency_config().pool_config for each in (chart, terminal)]
        assert pools[0] == pools[1]
        run = create_run_for_test(chart, job_name="shared")
        assert terminal.get_run_by_id(run.run_id) is not None


def strict(schema: Any) -> Any:
    """A CRD's schema in which an unknown key is an error, as `kubectl apply` with strict validation takes it."""
    for each in inside(schema):
        if "properties" in each and not each.get("x-kubernetes-preserve-unknown-fields"):
            each.setdefault("additionalProperties", False)
        if each.get("x-kubernetes-int-or-string"):
            each.pop("type", None)
    return schema


@pytest.mark.long
@pytest.mark.skipif(VALIDATOR is None, reason="not installed: pip install kubernetes-validate")
def test_pods_are_of_kubernetes_schema(tmp_path: Path) -> None:
    assert VALIDATOR is not None
    pods = tmp_path / "pods.yaml"
    templates = [each["template"] for each in inside([documents(name) for name in MANIFESTS[1:]]) if "template" in each]
    assert len(templates) == 4
    kept = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": each["spec"]} for each in templates]
    pods.write_text(yaml.safe_dump_all(kept))
    command = [VALIDATOR, "--strict", str(FOLDER / "code-location.yaml"), str(pods)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(
    CRDS is None, reason="KUBERAY_CRDS does not name the folder helm-chart/kuberay-operator/crds of KubeRay"
)
@pytest.mark.parametrize(("name", "crd"), [("raycluster.yaml", "rayclusters"), ("rayjob.yaml", "rayjobs")])
def test_ray_is_of_kuberays_schema(name: str, crd: str, tmp_path: Path) -> None:
    assert CRDS is not None
    definition = yaml.safe_load((Path(CRDS) / f"ray.io_{crd}.yaml").read_text())
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    wrong = tmp_path / name
    wrong.write_text((FOLDER / name).read_text().replace("groupName", "group"))
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(tmp_path / "schema.json")]
    results = [
        subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
        for file in (FOLDER / name, wrong)
    ]
    assert results[0].returncode == 0, results[0].stdout
    assert results[1].returncode != 0
