"""The bound of a batch: the user's, or what has fitted, for as long as the model is loaded."""

import gc

from gateau_dagster.models import memory as token_budget
from gateau_dagster.models.memory import TokenBudget
from tests.scoring.builders import loaded_model


def test_it_halves_what_failed_and_never_grows() -> None:
    loaded = loaded_model("llama")
    budget = TokenBudget(loaded.model, 1000)
    assert budget.tokens == 1000
    budget.halve(900)
    assert budget.tokens == 450
    budget.halve(900)  # a failure of an older, larger batch is no reason to grow
    assert budget.tokens == 225
    for _ in range(20):
        budget.halve(budget.tokens)
    assert budget.tokens == 1


def test_it_is_remembered_with_the_model_and_forgotten_with_it() -> None:
    gc.collect()
    before = len(token_budget._fitting)
    loaded = loaded_model("llama")
    TokenBudget(loaded.model, 1000).halve(1000)
    assert TokenBudget(loaded.model, 1000).tokens == 500
    assert TokenBudget(loaded.model, 300).tokens == 300
    assert TokenBudget(loaded_model("llama").model, 1000).tokens == 1000
    del loaded
    gc.collect()
    assert len(token_budget._fitting) == before
