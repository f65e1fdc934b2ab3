"""Send a training's data to trackers: check the files and what happens if one does not take them."""

import base64
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.training import trainer
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.trainer import send_data
from tests.kit.error_codes import refused
from tests.kit.project import command_environment
from tests.training.builders import make_spec

PACKAGES = ("mlflow-skinny==3.17.2", "sqlalchemy", "alembic", "wandb==0.31.0")
# Behind the project's own packages on the path, whose versions are used where both have one.
_TRAIN = """
import json, sys
from pathlib import Path
sys.path.append(sys.argv[2])
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.train import train
train(TrainingSpec.load(Path(sys.argv[1])), lambda metrics: None, cpu=True)
import mlflow
(run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
def content(path):
    return Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path=path)).read_bytes().hex()
listed = mlflow.artifacts.list_artifacts(run_id=run.info.run_id, artifact_path="data")
files = {each.path: content(each.path) for each in listed}
inputs = {
    each.dataset.name: (each.dataset.digest, {tag.key: tag.value for tag in each.tags})
    for each in run.inputs.dataset_inputs
}
print("FOUND" + json.dumps({"inputs": inputs, "files": files, "metrics": [*run.data.metrics]}))
"""


def with_data(spec: TrainingSpec) -> TrainingSpec:
    selected = spec.mix.with_name("selected.parquet")
    selected.write_bytes(b"the chosen samples")
    data = {"training_mix.parquet": spec.mix, "selected_subset.parquet": selected}
    return replace(spec, data=data, provenance={"Selection": "by gateau"})


def test_a_tracker_that_does_not_take_the_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: TrainingSpec) -> None:
        raise RuntimeError("401:\nno access")

    asked: list[str] = []
    monkeypatch.setattr(trainer, "_SENDERS", {"wandb": lambda spec: asked.append(spec.fingerprint), "mlflow": fails})
    plain = make_spec(tmp_path, report_to=["wandb", "mlflow"])
    send_data(plain)
    assert asked == []
    whole = with_data(replace(plain, training=plain.training.model_copy(update={"report_data": True})))
    whole.save(tmp_path / "spec.json")
    loaded = TrainingSpec.load(tmp_path / "spec.json")
    assert loaded == whole and loaded.resume_key == plain.resume_key
    with refused("training.report_data", r"mlflow does not take the data \(401: no access\)"):
        send_data(loaded)
    assert asked == ["fingerprint"]


@pytest.mark.long
def test_mlflow_and_wandb_receive_the_files_as_the_input_of_the_run(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", packages, *PACKAGES], check=True)
    spec = with_data(make_spec(tmp_path, max_steps=1, report_to=["mlflow", "wandb"], report_data=True))
    spec.save(tmp_path / "spec.json")
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, tmp_path / "spec.json", packages],
        cwd=tmp_path,
        env=command_environment(MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db", WANDB_MODE="offline"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rpartition("FOUND")[2].splitlines()[0])
    content = {name: path.read_bytes() for name, path in spec.data.items()}
    assert found["files"] == {f"data/{path.name}": path.read_bytes().hex() for path in spec.data.values()}
    for name, (digest, tags) in found["inputs"].items():
        assert digest == hashlib.sha256(content[name.rpartition("/")[2]]).hexdigest()[:36]
        assert tags == {"Selection": "by gateau", "fingerprint": "fingerprint", "mlflow.data.context": "training"}
    assert len(found["inputs"]) == 2 and "loss" in found["metrics"]
    (log,) = tmp_path.rglob("run-*.wandb")
    for name, data in content.items():
        assert name.encode() in log.read_bytes()
        assert base64.b64encode(hashlib.md5(data).digest()) in log.read_bytes()
    assert b"gateau-training-data" in log.read_bytes()
