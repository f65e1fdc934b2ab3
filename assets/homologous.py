"""Assets `homologous_mix/<model>` and `homologous_model/<model>`: a model that is trained on to read further."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import dagster as dg

from assets.definition import global_asset
from assets.model_training import Wanted, trained_model_asset
from assets.training import mix_statistics
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.made_models import homologous_options, stage_training
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.made_models import made_asset, mix_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import frame_digest
from gateau_dagster.training.homologous_texts import text_files
from resources.configuration import ConfigurationResource


def homologous_assets(config: Config, name: str) -> dict[str, dg.AssetsDefinition]:
    """The mix and the model, by asset."""
    return {mix_asset(config, name): _mix_asset(config, name), made_asset(config, name): _model_asset(config, name)}


def _mix_asset(config: Config, name: str) -> dg.AssetsDefinition:
    asset = mix_asset(config, name)

    @global_asset(
        asset,
        columns=tables.TRAINING_MIX,
        deps=[],
        kinds={"parquet", "huggingface"},
        description=f"Long texts, and short ones by their share of tokens, tokenised and cut into sequences: what "
        f"`{config.origin(name)}` is trained on to become `{name}`.",
    )
    def homologous_mix(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        return materialise(context, configuration, asset, partial(_mix, name))

    return homologous_mix


def _model_asset(config: Config, name: str) -> dg.AssetsDefinition:
    asset, mix = made_asset(config, name), mix_asset(config, name)
    return trained_model_asset(
        asset,
        deps=[mix],
        description=f"The model `{name}`: `{config.origin(name)}`, trained on with long texts and an extended rotary "
        "embedding until it reads further; a Hugging Face folder. As with `checkpoint`, a training that was killed "
        "goes on.",
        wanted=lambda found: Wanted(
            folder=asset,
            mix=mix,
            model=found.origin(name),
            training=stage_training(found.models[name], found.training),
            scratch=asset,
            own_rotary=True,
        ),
    )


def _mix(name: str, state: State, stamp: Stamp, progress: Progress) -> Made:
    from gateau_dagster.demo.inputs import ensure_demo_pair
    from gateau_dagster.models.loading import load_tokenizer
    from gateau_dagster.training.text_mix import build_text_mix
    from gateau_dagster.training.text_pieces import TextSource

    config = state.config
    ensure_demo_pair(config, progress)
    options, files = homologous_options(config.models[name]), text_files(config, name)
    read = _bytes_read(sum(file.size for found in files.values() for file in found), progress)
    sources = {
        key: TextSource(
            origin="long" if key == "texts" else "short",
            files=found,
            text_field=options.text_field,
            least_tokens=options.least_tokens if key == "texts" else 0,
            on_bytes=read,
        )
        for key, found in files.items()
    }
    tokenizer = load_tokenizer(config.located_model(config.origin(name)), folder=config.folder)
    try:
        made = build_text_mix(sources["texts"], sources.get("short_texts"), tokenizer, options=options)
    except GateauError as error:
        raise GateauError(f"models.{name}.homologous.{error}") from error
    # What is trained on: files that go by other names must not train again.
    stamp = replace(stamp, content=frame_digest(made.mix.select("position", "input_ids", "labels")))
    complete, metadata = write_global(state, mix_asset(config, name), stamp, made.mix, made.rejected)
    epochs = {f"times that {origin} texts occur": round(times, 3) for origin, times in made.epochs.items()}
    return complete, metadata | mix_statistics(made.mix) | epochs


def _bytes_read(total: int, progress: Progress) -> Callable[[int], None]:
    """Reports what is read; files are read once to know their texts, and again for those that are drawn."""
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done += count
        progress(done, None if done > total else total, "bytes", "reading texts")

    return note
