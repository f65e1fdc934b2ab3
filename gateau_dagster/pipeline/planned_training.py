"""Find the training runs of a plan, and the lengths of their sequences."""

import polars as pl

from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, Recipe
from gateau_dagster.pipeline.state import State


def training_recipes(state: State, plan: Plan) -> dict[str, list[Recipe]]:
    """Return the recipes of the planned training runs, by asset."""
    variants = plan.of(CHECKPOINTS)
    stale = [state.config.variant_set[name] for name in (variants.partitions if variants else ())]
    found = {
        CHECKPOINT_FOLDER: [Recipe(state.config)] if plan.of(CHECKPOINT_FOLDER) is not None else [],
        CHECKPOINTS: [Recipe(state.config, variant) for variant in stale if variant.trained],
    }
    return {asset: recipes for asset, recipes in found.items() if recipes}


def mixed_lengths(state: State, plan: Plan, recipe: Recipe) -> pl.Series | None:
    """Return the number of tokens of each sequence in a recipe's mix, int64; None if the plan makes the mix again."""
    work = plan.of(recipe.mix)
    if work is not None and (recipe.partition is None or recipe.partition in work.partitions):
        return None
    return state.read(recipe.mix, ["block_tokens"], recipe.partition)["block_tokens"].list.sum().cast(pl.Int64)
