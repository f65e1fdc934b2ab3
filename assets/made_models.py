"""Assets `pre_experience_mix/<model>` and `pre_experienced/<model>`: a model that is trained before it scores."""

from collections.abc import Mapping
from functools import partial

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.homologous import homologous_assets
from assets.model_training import Wanted, trained_model_asset
from assets.training import mix_statistics
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.made_models import embedding_asset, made_asset, mix_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


def made_model_assets(config: Config, own: Mapping[str, dg.AssetsDefinition]) -> dict[str, dg.AssetsDefinition]:
    """What makes the configured models that do not exist beforehand, by asset, in topological order.

    Args:
        own: the tables that models compute for methods; those that these models need are among them.
    """
    found: dict[str, dg.AssetsDefinition] = {}
    for name in config.pre_experienced_models:
        embedding = embedding_asset(config, name)
        found[embedding] = own[embedding]
    for name in config.made_models:
        if config.models[name].is_homologous:
            found |= homologous_assets(config, name)
        else:
            found |= {
                mix_asset(config, name): _mix_asset(config, name),
                made_asset(config, name): _made_asset(config, name),
            }
    return found


def _mix_asset(config: Config, name: str) -> dg.AssetsDefinition:
    asset, embedding = mix_asset(config, name), embedding_asset(config, name)

    @global_asset(
        asset,
        columns=tables.TRAINING_MIX,
        deps=["raw_long_sft", embedding],
        sharded=[embedding],
        kinds={"scikit-learn", "huggingface"},
        description=f"Some samples of every cluster of instructions, tokenised: what `{name}` is trained on before it "
        "scores (Cherry Selection). Over the whole data set: waits for all shards.",
    )
    def pre_experience_mix(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, asset, partial(_mix, name))

    return pre_experience_mix


def _made_asset(config: Config, name: str) -> dg.AssetsDefinition:
    asset, mix = made_asset(config, name), mix_asset(config, name)
    return trained_model_asset(
        asset,
        deps=[mix],
        description=f"The model `{name}`: `{config.origin(name)}`, trained on samples of every kind before it scores "
        "(Cherry Selection); a Hugging Face folder. As with `checkpoint`, a training that was killed goes on.",
        wanted=lambda found: Wanted(
            folder=asset,
            mix=mix,
            model=found.origin(name),
            training=stage_training(found.models[name], found.training),
            scratch=asset,
        ),
    )


def _mix(name: str, state: State, stamp: Stamp, progress: Progress) -> Made:
    from gateau_dagster.demo.inputs import ensure_demo_pair
    from gateau_dagster.methods.pre_experience import pre_experience_sample
    from gateau_dagster.models.loading import load_tokenizer
    from gateau_dagster.training.training_mix import build_training_mix

    config, store = state.config, state.store
    ensure_demo_pair(config, progress)
    stage = config.models[name].pre_experience
    assert stage is not None
    embeddings = store.read_all(embedding_asset(config, name), state.shards, ["sample_id", "embedding"])
    try:
        chosen = pre_experience_sample(embeddings, stage)
    except GateauError as error:
        raise GateauError(f"models.{name}.pre_experience.clusters: {error}") from error
    wanted = chosen.select("sample_id")
    texts = pl.concat([store.read_rows("raw_long_sft", shard, wanted) for shard in state.shards]).sort("sample_id")
    mix, rejected = build_training_mix(
        texts,
        None,
        load_tokenizer(config.located_model(config.origin(name)), folder=config.folder),
        training=stage_training(config.models[name], config.training),
        template=config.scoring.template,
        progress=progress,
    )
    complete, metadata = write_global(state, mix_asset(config, name), stamp, mix, rejected)
    return complete, metadata | mix_statistics(mix) | {"clusters": chosen["cluster"].n_unique()}
