"""Find the training runs of a plan, and the lengths of their sequences."""

import polars as pl

from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, MIX, Recipe, recipes
from gateau_dagster.pipeline.state import State


def training_recipes(state: State, plan: Plan) -> dict[str, list[Recipe]]:
    """Return the recipes of the planned training runs, by asset."""
    trained = dict[str, list[Recipe]]()
    for recipe in recipes(state.config):
        if _makes(plan, CHECKPOINT_FOLDER, recipe):
            trained.setdefault(recipe.asset(CHECKPOINT_FOLDER), []).append(recipe)
    return trained


def mixed_lengths(state: State, plan: Plan, recipe: Recipe) -> pl.Series | None:
    """Return the number of tokens of each sequence in a recipe's mix, int64; None if the plan makes the mix again."""
    if _makes(plan, MIX, recipe):
        return None
    mix = state.read(recipe.asset(MIX), ["block_tokens"], recipe.partition)
    return mix["block_tokens"].list.sum().cast(pl.Int64)


def _makes(plan: Plan, key: str, recipe: Recipe) -> bool:
    work = plan.of(recipe.asset(key))
    return work is not None and recipe.partition in work.reasons
