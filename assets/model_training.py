"""Trains a model in a process of its own and publishes its folder in the store."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.definition import global_asset
from assets.trained_model import provenance, trained_model_metadata
from assets.unpartitioned_step import Made, materialise
from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.data.sample import text_digest
from gateau_dagster.pipeline.loadable import loadable_model
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import folder_content
from gateau_dagster.storage.documents import finish_publishing, folder_stamp, publish_folder
from gateau_dagster.storage.files import local_copy
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource
from resources.training import TrainingResource

if TYPE_CHECKING:
    from gateau_dagster.training.spec import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model to train.

    folder: in the store, the asset's name. mix: asset with the tokenised samples. model: of the configuration, which
    it begins as. scratch: folder of its unfinished work, below the one of the store; a store has one of each model.
    own_rotary: from the rotary base that it was trained with, whatever its rope_theta in the configuration is.
    """

    folder: str
    mix: str
    model: str
    training: TrainingConfig
    scratch: str = ""
    own_rotary: bool = False


def trained_model_asset(
    asset: str, *, deps: list[str], description: str, wanted: Callable[[Config], Wanted]
) -> dg.AssetsDefinition:
    """A model that a process of its own trains: a Hugging Face folder in the store.

    Args:
        asset: its name, and the folder's.
        deps: what it is made from; the mix among them.
        description: for the asset's page.
        wanted: what to train under the configuration of the run.
    """

    @global_asset(asset, deps=deps, kinds={"pytorch", "huggingface", "deepspeed"}, pool="gpu", description=description)
    def trained_model(
        context: dg.AssetExecutionContext,
        configuration: ConfigurationResource,
        models: ModelsResource,
        training: TrainingResource,
    ) -> dg.MaterializeResult:
        def make(state: State, stamp: Stamp, progress: Progress) -> Made:
            models.release()
            return _train_and_publish(context, state, stamp, wanted(state.config), training, progress)

        return materialise(context, configuration, asset, make)

    return trained_model


def _train_and_publish(
    context: dg.AssetExecutionContext,
    state: State,
    stamp: Stamp,
    wanted: Wanted,
    training: TrainingResource,
    progress: Progress,
) -> Made:
    """Trains, or goes on with a training that was killed; returns the completed stamp and metadata.

    Raises:
        GateauError: the training failed, or the folder cannot be written.
    """
    from gateau_dagster.demo.inputs import ensure_demo_pair

    finish_publishing(state.store, wanted.folder)
    found = folder_stamp(state.store, wanted.folder)
    if found is not None and found.fingerprint == stamp.fingerprint:
        context.log.info(f"an earlier run trained this {wanted.folder} and was ended while it published it")
        return found, trained_model_metadata(state, wanted.folder, wanted.mix, wanted.training)
    ensure_demo_pair(state.config, progress)
    # Another store's unfinished training is not touched.
    scratch = state.config.work_folder / "training" / text_digest([state.store.root])[:12] / wanted.scratch
    spec = _spec(state, stamp, wanted, scratch)
    training.run(context, spec, scratch / "spec.json", progress)
    complete = Stamp(fingerprint=stamp.fingerprint, inputs=stamp.inputs, content=folder_content(spec.output))
    publish_folder(state.store, spec.output, wanted.folder, complete)
    return complete, trained_model_metadata(state, wanted.folder, wanted.mix, wanted.training)


def _spec(state: State, stamp: Stamp, wanted: Wanted, scratch: Path) -> "TrainingSpec":
    """What the training process is told; its unfinished work is kept below `scratch`, by what is being trained."""
    from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config
    from gateau_dagster.training.spec import TrainingSpec

    config = state.config
    model = loadable_model(state, wanted.model)
    local = config.folder / Path(model.path).expanduser()
    return TrainingSpec(
        mix=local_copy(state.store.files, state.store.table_name(wanted.mix), scratch),
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
    )
