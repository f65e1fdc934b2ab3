"""Send the data of a training to the trackers that keep data sets, W&B and MLflow, as the input of its run."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.training.spec import TrainingSpec

NAME = "gateau-training-data"
"""The data set's name in a tracker."""
_MLFLOW_DIGEST = 36  # characters that MLflow takes at most


def send_data(spec: TrainingSpec) -> None:
    """Send the files of `spec.data` to each tracker whose run is open. Equal files make no new version in W&B.

    Raises:
        GateauError: a tracker does not take them, or cannot be reached.
    """
    for tracker in spec.training.report_to if spec.data else ():
        if tracker not in _SENDERS:
            continue
        try:
            _SENDERS[tracker](spec)
        except Exception as error:  # a tracker's own classes, and those of its HTTP client
            reason = redacted(" ".join(str(error).split())) or type(error).__name__
            raise GateauError(
                "training.report_data",
                f"training.report_data: {tracker} does not take the data ({reason}). Correct its settings in the "
                "environment, or set report_data to false.",
            ) from error


def _to_wandb(spec: TrainingSpec) -> None:
    import wandb  # pyright: ignore[reportMissingImports]

    run = wandb.run
    assert run is not None, "the Trainer's callback has opened it"
    artifact = wandb.Artifact(NAME, type="dataset", metadata=_facts(spec))
    for name, path in sorted(spec.data.items()):
        artifact.add_file(str(path), name=name)
    # A run that is offline cannot name its inputs.
    if run.offline:
        run.log_artifact(artifact)
    else:
        run.use_artifact(artifact)


def _to_mlflow(spec: TrainingSpec) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]
    from mlflow.data.dataset_source_registry import resolve_dataset_source  # pyright: ignore[reportMissingImports]
    from mlflow.data.meta_dataset import MetaDataset  # pyright: ignore[reportMissingImports]

    for name, path in sorted(spec.data.items()):
        mlflow.log_artifact(str(path), "data")
        source = resolve_dataset_source(mlflow.get_artifact_uri(f"data/{path.name}"))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:_MLFLOW_DIGEST]
        data = MetaDataset(source, name=f"{NAME}/{name}", digest=digest)
        mlflow.log_input(data, context="training", tags=_facts(spec))


def _facts(spec: TrainingSpec) -> dict[str, str]:
    return {**spec.provenance, "fingerprint": spec.fingerprint}


_SENDERS: Mapping[str, Callable[[TrainingSpec], Any]] = {"wandb": _to_wandb, "mlflow": _to_mlflow}
