"""Make the training data: `training_mix` and `pre_experience_mix/<model>`."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import chart, figures_metadata
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.config import Config
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.choice import trimmed_samples
from gateau_dagster.pipeline.data_checks import check_sources
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.model_checks import require_end
from gateau_dagster.pipeline.recipes import mix_columns, recipe_of, trims_contexts, weighs_responses
from gateau_dagster.pipeline.scoring_assets import embedding_asset
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage.content import frame_digest


@makes_asset
def training_mix(step: Step) -> None:
    """Tokenise the selected samples and the short conversations, in training order; nothing for an untrained model."""
    from gateau_dagster.models.prompt import answer_ends
    from gateau_dagster.training.training_mix import build_training_mix

    for output in step.in_turn():
        state, recipe = output.state, recipe_of(output.state.config, output.partition)
        if not recipe.variant.trained:
            output.write(pl.DataFrame(schema=tables.schema(mix_columns(recipe))))
            continue
        config, chosen = recipe.config, state.read(recipe.asset(CHOSEN), partition=recipe.partition)
        check_sources(config, state.index.accepted)
        tokenizer = mix_tokenizer(state, config.training.model, output.progress)
        if config.scoring.template == "gateau" or tokenizer.chat_template:
            require_end(answer_ends(tokenizer, config.scoring.template), config)
        mix, rejected, unlearned = build_training_mix(
            chosen,
            state.read("short_chat_mix") if config.short_chat else None,
            tokenizer,
            training=config.training,
            template=config.scoring.template,
            progress=output.progress,
            weights=_token_weights(state, config, chosen, output.progress),
            kept_context=_kept_contexts(state, config),
            trained_turns=config.trained_turns,
        )
        # A renamed source must not retrain, and neither must another text that is trimmed.
        content = frame_digest(mix.drop("source", "trimmed_tokens", strict=False))
        output.write(mix, rejected, content=content)
        output.metadata |= mix_statistics(mix, unlearned, drawn=recipe.is_main)


def _token_weights(state: State, config: Config, chosen: pl.DataFrame, progress: Progress) -> Any:
    """Return the `TokenWeights` of the chosen samples, or None under a loss without any in the mix."""
    training = config.training
    if not training.weighs_in_mix:
        return None
    from gateau_dagster.training.token_weights import READS, SCORERS, TokenWeights, response_weights

    weights = {}
    if weighs_responses(config):
        wanted = chosen.select("sample_id")
        scored = {
            asset: pl.concat([state.store.read_rows(asset, shard, wanted).select(columns) for shard in state.shards])
            for asset, columns in READS[training.loss].items()
        }
        weights = response_weights(chosen, scored, loss=training.loss, gamma=training.longce_gamma)
    return TokenWeights(
        loss=training.loss,
        weights=weights,
        tokenizer=mix_tokenizer(state, training.model, progress),
        scorers={name: mix_tokenizer(state, name, progress) for name in SCORERS[training.loss]},
        template=config.scoring.template,
    )


def _kept_contexts(state: State, config: Config) -> dict[str, int] | None:
    if not config.training.trim:
        return None
    return dict(trimmed_samples(state, config).iter_rows()) if trims_contexts(config) else {}


@makes_asset
def pre_experience_mix(step: Step) -> None:
    """Tokenise a few samples of every cluster of instructions."""
    for output in step.in_turn():
        from gateau_dagster.methods.pre_experience import pre_experience_sample
        from gateau_dagster.training.training_mix import build_training_mix

        state, config, model = output.state, output.state.config, output.name
        stage = config.models[model].pre_experience
        assert stage is not None
        embeddings = state.read(embedding_asset(config, model), ["sample_id", "embedding", "perplexity"])
        try:
            chosen = pre_experience_sample(embeddings, stage)
        except GateauError as error:
            raise error.reworded(f"models.{model}.pre_experience.clusters: {error}") from error
        wanted = chosen.select("sample_id")
        parts = [state.store.read_rows("raw_long_sft", shard, wanted) for shard in state.shards]
        texts = pl.concat(parts, how="diagonal")  # not every shard has the column `conversation`
        mix, rejected, unlearned = build_training_mix(
            texts.sort("sample_id"),
            None,
            mix_tokenizer(state, model, output.progress),
            training=stage_training(config.models[model], config.training),
            template=config.scoring.template,
            progress=output.progress,
            trained_turns="last",  # the response is what the model scores afterwards
        )
        output.write(mix, rejected)
        output.metadata |= mix_statistics(mix, unlearned) | {"clusters": chosen["cluster"].n_unique()}


def mix_tokenizer(state: State, model: str, progress: Progress) -> Any:
    """Return the tokenizer of a configured model, or of the one that it is made from."""
    from gateau_dagster.models.loading import load_tokenizer

    config = state.config
    prepare_inputs(config, "models", progress)
    return load_tokenizer(config.located_model(config.origin(model)), folder=config.folder)


def mix_statistics(
    mix: pl.DataFrame, unlearned: Mapping[str, int] | None = None, *, drawn: bool = True
) -> dict[str, Any]:
    """Return token counts and lengths by origin and source; with a plot if `drawn`.

    `mix`: see training_mix.mix_columns. `unlearned`: answers without loss by reason, shown if there are any.
    """
    from gateau_dagster.plots.training_plots import mix_contents
    from gateau_dagster.small_charts import shares
    from gateau_dagster.training.training_mix import by_source, mix_sequences, mix_summary

    sequences = mix_sequences(mix)
    figures = by_source(sequences)
    sources = [dg.TableRecord(row) for row in figures.iter_rows(named=True)]
    trained = [*figures.group_by("source").agg(pl.col("trained_tokens").sum()).sort("source").iter_rows()]
    return {
        **mix_summary(sequences),
        "by_source": dg.MetadataValue.table(sources),
        "sources": chart(shares(trained, name="trained tokens")),
        **({"answers_without_loss": dict(unlearned)} if unlearned else {}),
        **(figures_metadata({"mix contents": mix_contents(sequences)}) if drawn else {}),
    }
