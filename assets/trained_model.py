"""Make the models that a separate process trains: `checkpoint`, and those that the pipeline scores with."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import chart, figures_metadata, rounded
from gateau_dagster.assets.steps.step import Output, Step, heed_termination, makes_asset
from gateau_dagster.config import TrainingConfig
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.loadable import downloads, loadable_model, scratch_of_store
from gateau_dagster.pipeline.project import remove_old_models
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, IN_STORE, MIX, MIXES, TRAINED, recipe_of
from gateau_dagster.pipeline.scoring_assets import mix_asset
from gateau_dagster.pipeline.selection_reads import CHOSEN, has_evidence
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.training import TrainingResource
from gateau_dagster.selection.evidence import far_share
from gateau_dagster.selection.wording import chosen_by, ranked_by
from gateau_dagster.storage import Stamp, fence
from gateau_dagster.storage.content import file_digests, model_content
from gateau_dagster.storage.documents import (
    fetched_folder,
    finish_publishing,
    folder_stamp,
    publish_folder,
    read_training_log,
    read_training_record,
)
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.training.launch import CODE_VERSION as TRAINING_CODE_VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gateau_dagster.training.launch import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """A model to train.

    folder: in the store, the asset's name. mix: the asset with the tokenised samples. subset: the asset with the chosen
    samples; empty for a model that the pipeline makes for others. model: the configured model that
    training starts from. own_rotary: whether to start from the rotary base of the original training, ignoring
    rope_theta in the configuration.
    """

    folder: str
    mix: str
    model: str
    training: TrainingConfig
    subset: str = ""
    own_rotary: bool = False

    @classmethod
    def of(cls, output: Output) -> "TrainingRequest":
        """Return the training of the single run, of a variant, or of a model that the pipeline makes for others."""
        config, asset = output.state.config, output.asset
        if asset not in {CHECKPOINT_FOLDER, CHECKPOINTS}:
            return cls(
                folder=asset,
                mix=mix_asset(config, output.name),
                model=config.origin(output.name),
                training=stage_training(config.models[output.name], config.training),
                own_rotary=config.models[output.name].is_homologous,
            )
        recipe = recipe_of(config, output.partition)
        return cls(
            folder=CHECKPOINT_FOLDER if recipe.is_main else f"{TRAINED}/{output.wanted.fingerprint}",
            mix=recipe.table(MIX),
            subset=recipe.table(CHOSEN),
            model=config.training.model,
            training=recipe.config.training,
        )


@makes_asset
def trained_model(step: Step, models: ModelsResource, training: TrainingResource) -> None:
    """Train the models (Eq. 7), or resume a training run that was killed; record which model each variant is.

    A variant is not trained if a training run was the same. Outdated models are removed before the first training of a
    variant.
    """
    made_room = False
    for output in step.in_turn():
        of_variant = output.asset == CHECKPOINTS
        if of_variant and not output.variant.trained:
            _write_untrained(output)
            continue
        models.release()
        # Not before a training run needs the room: until then, an edit that is reverted finds its model again.
        if of_variant and not made_room:
            output.metadata["removed_models"] = len(remove_old_models(step.state))
            made_room = True
        wanted = TrainingRequest.of(output)
        stamp = _train(output, wanted, training)
        if of_variant:
            shutil.rmtree(scratch_of(step.state, wanted), ignore_errors=True)  # the next one has a new folder
            _write_row(output, wanted.folder, wanted.mix, stamp)
        else:
            output.finish(stamp)
        output.metadata |= trained_model_metadata(step.state, wanted.folder, wanted.mix, wanted.training)


def _train(output: Output, wanted: TrainingRequest, training: TrainingResource) -> Stamp:
    """Return the stamp of the model's folder: trained now, or by an equal training before.

    Raises:
        GateauError: the training failed, or the folder cannot be written.
    """
    context, state, stamp = output.context, output.state, output.wanted
    finish_publishing(state.store, wanted.folder)
    found = folder_stamp(state.store, wanted.folder)
    # A kill may have come between the publication of the model and its record, or an edit was reverted.
    if found is not None and found.fingerprint == stamp.fingerprint:
        context.log.info(f"an earlier run trained this {wanted.folder}")
        return found
    if output.asset == CHECKPOINTS and (copied := _copy_of_checkpoint(output, wanted.folder)) is not None:
        return copied
    prepare_inputs(state.config, "models", output.progress)
    scratch = scratch_of(state, wanted)
    spec = specification(state, stamp, wanted, scratch)
    training.run(context, spec, scratch / "spec.json", output.progress, partial(heed_termination, context))
    files = file_digests(spec.output)
    complete = Stamp(fingerprint=stamp.fingerprint, inputs=stamp.inputs, content=model_content(files), files=files)
    publish_folder(state.store, spec.output, wanted.folder, complete)
    return complete


def _copy_of_checkpoint(output: Output, folder: str) -> Stamp | None:
    """Copy the checkpoint to a variant's `folder` if its training was the same; return None otherwise.

    A copy is needed, since the single run may be replaced later.
    """
    state, wanted, made = output.state, output.wanted, output.state.stamp(CHECKPOINT_FOLDER, None)
    as_main = {MIX if name == MIXES else name: version for name, version in wanted.inputs["upstream"].items()}
    same = {"code": TRAINING_CODE_VERSION, "settings": wanted.inputs["settings"], "upstream": as_main}
    if made is None or fingerprint(made.inputs) != fingerprint(same):
        return None
    copy = state.config.work_folder / "training" / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(fetched_folder(state.store, CHECKPOINT_FOLDER, downloads(state)), copy)
    stamp = Stamp(fingerprint=wanted.fingerprint, inputs=wanted.inputs, content=made.content, files=made.files)
    publish_folder(state.store, copy, folder, stamp)
    output.metadata["same_as"] = CHECKPOINT_FOLDER
    return stamp


def scratch_of(state: State, wanted: TrainingRequest) -> Path:
    """Return the folder of a training run's unfinished work, which is separate for each store."""
    return scratch_of_store(state) / ("" if wanted.folder == CHECKPOINT_FOLDER else wanted.folder)


def specification(state: State, stamp: Stamp, wanted: TrainingRequest, scratch: Path) -> "TrainingSpec":
    """Return the specification for the training process, with its unfinished work below `scratch`."""
    from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
    from gateau_dagster.training.launch import TrainingSpec

    config = state.config
    model = loadable_model(state, wanted.model)
    local = config.folder / Path(model.path).expanduser()
    mix = state.store.fetched(wanted.mix, scratch)
    data = {"training_mix.parquet": mix} if wanted.training.report_data else {}
    if data and wanted.subset:
        data["selected_subset.parquet"] = state.store.fetched(wanted.subset, scratch)
    return TrainingSpec(
        mix=mix,
        data=data,
        base_model=str(local.absolute()) if local.is_dir() else model.path,
        revision=model.revision,
        rope_theta=None if wanted.own_rotary else model.rope_theta,
        trust_remote_code=model.trust_remote_code,
        output=scratch / "output",
        work=scratch / "work",
        training=wanted.training,
        hostfile=None if wanted.training.hostfile is None else config.folder / wanted.training.hostfile,
        deepspeed=agreed_deepspeed_config(wanted.training, folder=config.folder),
        fingerprint=stamp.fingerprint,
        template=config.scoring.template,
        provenance=provenance(state, wanted.folder, wanted.mix),
        leases=fence.exported(),
    )


def _write_row(output: Output, folder: str, mix: str, stamp: Stamp) -> None:
    """Write the row of a model that was trained here; `stamp`: of its folder."""
    long = output.state.store.read(mix, columns=["sample_id", "origin"]).filter(pl.col("origin") == "long")
    log = read_training_log(output.state.store, folder)
    row: dict[str, Any] = {
        "model": f"{IN_STORE}{folder}",
        "samples": long["sample_id"].n_unique(),
        "tokens": log[-1]["tokens"] if log else None,
        "seconds": _seconds(log),
    }
    output.write(pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT)), content=stamp.content)


def _seconds(log: list[dict[str, Any]]) -> float | None:
    # By the rates of the steps, not by the clock: a training run that was resumed has begun several times.
    before = [0, *(metrics["tokens"] for metrics in log)]
    each = [
        (metrics["tokens"] - done) / metrics["tokens_per_second"]
        for done, metrics in zip(before, log, strict=False)
        if metrics["tokens_per_second"] > 0
    ]
    return sum(each) if each else None


def _write_untrained(output: Output) -> None:
    """Write the row of a variant that is not trained for itself: the single run's model, or one from elsewhere."""
    config, other = output.state.config, output.variant.other
    if output.variant.kind == CHECKPOINT:
        stamp = output.state.stamp(CHECKPOINT_FOLDER, None)
        assert stamp is not None, "it is upstream"
        _write_row(output, CHECKPOINT_FOLDER, MIX, stamp)
        return
    assert other is not None or output.variant.kind == BASE
    path = config.models[config.training.model].path if other is None else other.path
    row = {"model": path, "samples": None, "tokens": None, "seconds": None}
    made_from = {name: output.wanted.inputs[name] for name in ("settings", "upstream")}
    table = pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT))
    output.write(table, content=fingerprint(made_from))


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
    from gateau_dagster.plots.training_plots import training_curve, training_speed
    from gateau_dagster.small_charts import curve

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
    last = len(log) - 1
    places = sorted({round(last * part / (_SHOWN_STEPS - 1)) for part in range(_SHOWN_STEPS)})
    return [{name: rounded(log[place].get(name)) for name in _COLUMNS} for place in places]


def _distances(state: State, mix: str, training: TrainingConfig) -> "Figure":
    """Draw SkipAlign's Figure 2 on this mix: the first epoch's positions."""
    from gateau_dagster.plots.training_plots import relative_distances as drawn
    from gateau_dagster.training.skip_positions import relative_distances

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
        selection, made = state.config.selection, state.stamp(CHOSEN, None)
        far = None
        if has_evidence(state.config):
            far = far_share(state.store.read(CHOSEN, columns=["dependency"])["dependency"])
        by = chosen_by(selection, "" if made is None else made.rule, far=far)
        found["Selection"] = f"{ranked_by(selection)}, chosen by {by}"
    if stamp is not None:
        found[mix] = f"fingerprint {stamp.fingerprint}, content {stamp.content}"
    return found
