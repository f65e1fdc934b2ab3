"""Make the models that a separate process trains: `checkpoint`, and those that the pipeline scores with."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.steps.step import Step, heed_termination, makes_asset
from assets.steps.training_metadata import provenance, trained_model_metadata
from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.data.sample import text_digest
from gateau_dagster.demo.prepare import ensure_demo_pair
from gateau_dagster.pipeline.loadable import loadable_model
from gateau_dagster.pipeline.made_models import mix_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.training_assets import CHECKPOINT_FOLDER
from gateau_dagster.progress import TimedProgress
from gateau_dagster.storage import Stamp, fence
from gateau_dagster.storage.content import file_digests, model_content
from gateau_dagster.storage.documents import finish_publishing, folder_stamp, publish_folder
from resources.models import ModelsResource
from resources.training import TrainingResource

if TYPE_CHECKING:
    from gateau_dagster.training.spec import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """A model to train.

    folder: in the store, the asset's name. mix: the asset with the tokenised samples. model: the configured model that
    training starts from. scratch: the folder of unfinished work, below the one of the store. own_rotary: whether to
    start from the rotary base of the original training, ignoring rope_theta in the configuration.
    """

    folder: str
    mix: str
    model: str
    training: TrainingConfig
    scratch: str = ""
    own_rotary: bool = False

    @classmethod
    def of(cls, config: Config, asset: str) -> "TrainingRequest":
        """Return the job of the checkpoint, or of a model that the pipeline makes for others."""
        if asset == CHECKPOINT_FOLDER:
            return cls(folder=asset, mix="training_mix", model=config.training.model, training=config.training)
        model = asset.split("/", maxsplit=1)[1]
        return cls(
            folder=asset,
            mix=mix_asset(config, model),
            model=config.origin(model),
            training=stage_training(config.models[model], config.training),
            scratch=asset,
            own_rotary=config.models[model].is_homologous,
        )


@makes_asset
def trained_model(step: Step, models: ModelsResource, training: TrainingResource) -> None:
    """Train the model, or resume a training that was killed (Eq. 7)."""
    for output in step.in_turn():
        models.release()
        wanted = TrainingRequest.of(output.state.config, output.asset)
        stamp = train_and_publish(step.context, output.state, output.wanted, wanted, training, output.progress)
        output.finish(stamp, **trained_model_metadata(output.state, wanted.folder, wanted.mix, wanted.training))


def train_and_publish(
    context: dg.AssetExecutionContext,
    state: State,
    stamp: Stamp,
    wanted: TrainingRequest,
    training: TrainingResource,
    progress: TimedProgress,
) -> Stamp:
    """Train and publish the model's folder, and return its stamp, which completes `stamp`.

    Raises:
        GateauError: the training failed, or the folder cannot be written.
    """
    finish_publishing(state.store, wanted.folder)
    found = folder_stamp(state.store, wanted.folder)
    if found is not None and found.fingerprint == stamp.fingerprint:
        context.log.info(f"an earlier run trained this {wanted.folder} and was ended while it published it")
        return found
    ensure_demo_pair(state.config, progress)
    scratch = scratch_of(state, wanted)
    spec = _spec(state, stamp, wanted, scratch)
    training.run(context, spec, scratch / "spec.json", progress, partial(heed_termination, context))
    files = file_digests(spec.output)
    complete = Stamp(fingerprint=stamp.fingerprint, inputs=stamp.inputs, content=model_content(files), files=files)
    publish_folder(state.store, spec.output, wanted.folder, complete)
    return complete


def scratch_of(state: State, wanted: TrainingRequest) -> Path:
    """Return the folder of a training's unfinished work, which is separate for each store."""
    return state.config.work_folder / "training" / text_digest([state.store.root])[:12] / wanted.scratch


def _spec(state: State, stamp: Stamp, wanted: TrainingRequest, scratch: Path) -> "TrainingSpec":
    """Return the specification for the training process, with its unfinished work below `scratch`."""
    from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config
    from gateau_dagster.training.spec import TrainingSpec

    config = state.config
    model = loadable_model(state, wanted.model)
    local = config.folder / Path(model.path).expanduser()
    return TrainingSpec(
        mix=state.store.fetched(wanted.mix, scratch),
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
