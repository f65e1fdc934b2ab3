"""Build the metadata of a trained model's page in Dagster, and the model card's lines on the data."""

from typing import TYPE_CHECKING, Any

import dagster as dg

from gateau_dagster.assets.steps.metadata import chart, figures_metadata, rounded
from gateau_dagster.config import TrainingConfig
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.provenance import chosen_by, ranked_by
from gateau_dagster.storage.training_record import read_training_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_STEPS = 20
_COLUMNS = (
    *("step", "loss", "learning_rate", "grad_norm", "tokens", "seconds", "tokens_per_second", "mfu"),
    *("peak_memory_bytes", "host_memory_bytes"),
)


def trained_model_metadata(state: State, folder: str, mix: str, training: TrainingConfig) -> dict[str, Any]:
    """Return the outcome, the curve, some steps as a table, the batches, and the settings that the training used.

    Args:
        state: of the project.
        folder: of the published model.
        mix: asset that it was trained on.
        training: the settings; with skips, their distances are drawn.
    """
    from gateau_dagster.report.plots.small_charts import curve
    from gateau_dagster.report.plots.training_plots import training_curve, training_speed

    record = read_training_record(state.store, folder)
    log = record.get("steps", [])
    address = state.store.files.address(folder)
    metadata: dict[str, Any] = {"dagster/uri": address, "steps": len(log)}
    if state.store.files.is_local:
        metadata["path"] = dg.MetadataValue.path(address)
    if not log:
        return metadata
    figures: dict[str, Figure] = {"training curve": training_curve(log), "speed and memory": training_speed(log)}
    if training.skip is not None:
        figures["relative distances"] = _distances(state, mix, training)
    return {
        **metadata,
        "loss": chart(curve([step["loss"] for step in log], name="loss")),
        "final_loss": log[-1]["loss"],
        "tokens": log[-1]["tokens"],
        "log": dg.MetadataValue.table([dg.TableRecord(row) for row in _some(log)]),
        "batches": dg.MetadataValue.json(record.get("batches", {})),
        "settings": dg.MetadataValue.json(record.get("settings", {})),
        **figures_metadata(figures),
    }


def _some(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `_SHOWN_STEPS` evenly spaced steps, including the first and the last."""
    last = len(log) - 1
    places = sorted({round(last * part / (_SHOWN_STEPS - 1)) for part in range(_SHOWN_STEPS)})
    return [{name: rounded(log[place].get(name)) for name in _COLUMNS} for place in places]


def _distances(state: State, mix: str, training: TrainingConfig) -> "Figure":
    """Draw SkipAlign's Figure 2 on this mix: the first epoch's positions."""
    from gateau_dagster.report.plots.training_plots import relative_distances as drawn
    from gateau_dagster.training.relative_distances import relative_distances

    skip = training.skip
    assert skip is not None
    samples = state.store.read(mix, columns=["sample_id", "block_tokens"]).iter_rows()
    found = relative_distances(
        samples, strategy=skip.strategy, length=skip.length, probability=skip.probability, seed=training.seed
    )
    return drawn(found)


def provenance(state: State, folder: str, mix: str) -> dict[str, str]:
    """Return lines of the model card: how the samples were selected, and the training mix."""
    stamp = state.store.stamp(mix)
    found = {}
    if folder == CHECKPOINT_FOLDER:
        selection = state.config.selection
        found["Selection"] = f"{ranked_by(selection)}, chosen by {chosen_by(selection)}"
    if stamp is not None:
        found[mix] = f"fingerprint {stamp.fingerprint}, content {stamp.content}"
    return found
