"""A fraction counted in what is to be equal."""

import polars as pl
import pytest

from gateau_dagster.config import SelectionConfig
from gateau_dagster.selection.equal_amounts import equal_amount
from gateau_dagster.selection.rules import chosen_ids

# Ten candidates, of which the method scores six; 100 tokens in all.
TOKENS = [5, 5, 10, 10, 10, 10, 10, 10, 20, 10]
SAMPLES = pl.DataFrame(
    {
        "sample_id": [f"s{number}" for number in range(10)],
        "source": ["a"] * 10,
        "digest": [f"t{number}" for number in range(10)],
        "score": [float(10 - number) if number < 6 else None for number in range(10)],
        "rank": [number + 1 if number < 6 else None for number in range(10)],
        "tokens": TOKENS,
    }
)


def chosen(equal: object, **rule: object) -> list[str]:
    selection = SelectionConfig.model_validate(rule)
    return chosen_ids(SAMPLES, equal_amount(selection, equal, SAMPLES))  # type: ignore[arg-type]


def test_a_fraction_of_the_scored_samples_of_all_of_them_and_of_their_tokens() -> None:
    assert chosen(None, fraction=0.5) == ["s0", "s1", "s2"]
    assert chosen("samples", fraction=0.5) == ["s0", "s1", "s2", "s3", "s4"]
    assert chosen("tokens", fraction=0.2) == ["s0", "s1", "s2"]
    assert chosen("steps", fraction=0.5) == chosen(None, fraction=0.5)


def test_as_many_as_there_are() -> None:
    assert len(chosen("samples", fraction=1.0)) == 6
    assert len(chosen("tokens", fraction=1.0)) == 6


@pytest.mark.parametrize("equal", [None, "samples", "tokens"])
def test_what_counts_so_already_stays(equal: object) -> None:
    for rule in ({"count": 2}, {"rule": "token_budget", "budget": 20}):
        selection = SelectionConfig.model_validate(rule)
        assert equal_amount(selection, equal, SAMPLES) is selection  # type: ignore[arg-type]
