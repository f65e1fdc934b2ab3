"""The compose file's Ray nodes on machines of their own, with its commands and addresses as they are."""

import json
import shlex
from pathlib import Path

import pytest

from tests.examples.deployment.builders import DEPLOYMENT, Service, missing, run_on_machines, services

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.skipif(bool(missing()), reason=missing())]
SECRETS = {"POSTGRES_PASSWORD": "x", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
# What a process on the code location's machine sees by `address: auto`, and where an actor that needs a core is put.
LOOK = """\
import json, time, ray
ray.init(address="auto", log_to_driver=False)
end = time.monotonic() + 60
while len(ray.nodes()) < 3 and time.monotonic() < end:
    time.sleep(0.5)
nodes = {node["NodeManagerHostname"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]}
place = ray.get(ray.remote(num_cpus=1)(lambda: __import__("socket").gethostname()).remote())
print("seen", json.dumps([nodes, place]))
"""


def exported(service: Service) -> str:
    """Its environment as shell text, without what needs other services."""
    kept = {name: value for name, value in service.environment.items() if name.startswith("GATEAU_RAY")}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in kept.items())


def test_head_worker_and_code_location_are_one_cluster_that_scores_on_the_worker(tmp_path: Path) -> None:
    found = services({**SECRETS, "RAY_WORKER_CPUS": "1"})
    (tmp_path / "look.py").write_text(LOOK)
    head, worker, code = (found[name] for name in ("ray-head", "ray-worker", "code"))
    healthy = f"until {shlex.join(head.health)} > /dev/null 2>&1; do sleep 1; done\n".replace("localhost", "ray-head")
    entrypoint = str(DEPLOYMENT / "entrypoint.sh")
    scripts = {
        "code": exported(code) + healthy + shlex.join([entrypoint, "python", "look.py"]),
        "ray-head": f"exec {shlex.join(head.command)}",
        "ray-worker": healthy + f"exec {shlex.join(worker.command)}",
    }
    done = run_on_machines(tmp_path, scripts, seconds=300)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + logs
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("seen ")]
    nodes, place = json.loads(line.removeprefix("seen "))
    assert nodes == {"code": 0, "ray-head": 0, "ray-worker": 1}
    assert place == "ray-worker"


def test_without_a_cluster_the_entrypoint_only_starts_the_command(tmp_path: Path) -> None:
    done = run_on_machines(tmp_path, {"alone": f"exec {DEPLOYMENT / 'entrypoint.sh'} echo started"}, seconds=60)
    assert (done.returncode, done.stdout) == (0, "started\n")
