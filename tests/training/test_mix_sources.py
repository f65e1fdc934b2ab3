"""How often each sample is taken: the best long ones, and the sources by their weights."""

import polars as pl
import pytest
from pydantic import ValidationError

from gateau_dagster.config.training_sections import MixConfig
from gateau_dagster.training.mix_sources import copies_of, wanted_samples
from tests.error_codes import refused


def table(*sources: str) -> pl.DataFrame:
    """A sample of each source, ranked from the last one (1) to the first."""
    ids = [f"id{number}" for number in range(len(sources))]
    ranks = list(range(10 * len(sources), 0, -10))
    return pl.DataFrame({"sample_id": ids, "source": sources, "rank": ranks}, schema_overrides={"source": pl.String})


def taken(selected: pl.DataFrame, short: pl.DataFrame | None = None, **mix: object) -> dict[str, list[tuple[str, int]]]:
    wanted = wanted_samples(selected, short, mix=MixConfig.model_validate(mix), seed=1)
    return {origin: rows.select("sample_id", "copies").rows() for origin, rows in wanted.items()}


def test_everything_is_taken_once_by_default() -> None:
    assert taken(table("a", "b")) == {"long": [("id0", 1), ("id1", 1)]}
    assert taken(table("a").drop("rank"), table("c")) == {"long": [("id0", 1)], "short": [("id0", 1)]}


@pytest.mark.parametrize(("fraction", "kept"), [(0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_a_fraction_of_the_long_samples_are_the_best_ranked_ones(fraction: float, kept: int) -> None:
    found = taken(table(*"a" * 10), table("c", "c"), long_fraction=fraction)
    assert found["long"] == [(f"id{number}", 1) for number in range(10 - kept, 10)]
    assert len(found["short"]) == 2


def test_without_long_samples_there_have_to_be_short_ones() -> None:
    assert taken(table("a", "b"), table("c"), without_long=True) == {"long": [], "short": [("id0", 1)]}
    with refused("training.no_conversations", "short_chat"):
        taken(table("a"), without_long=True)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0, 2.3, 3.75])
def test_a_weight_is_how_often_a_source_occurs(weight: float) -> None:
    sources = table(*("ab" * 20))
    copies = copies_of(sources, "long", {"a": weight}, 7)
    of_a, of_b = copies[0::2], copies[1::2]
    assert of_b == [1] * 20
    assert sum(of_a) == round(weight * 20)
    assert set(of_a) <= {int(weight), int(weight) + 1}
    assert copies_of(sources, "long", {"a": weight}, 7) == copies


def test_who_occurs_once_more_is_drawn_by_lot_and_hardly_changes_with_other_samples() -> None:
    sources = table(*("a" * 40))
    drawn = [copies_of(sources, "long", {"a": 0.5}, seed) for seed in (1, 2)]
    drawn.append(copies_of(sources, "short", {"a": 0.5}, 1))
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    for count in range(1, 40):
        fewer = copies_of(sources.head(count), "long", {"a": 0.5}, 1)
        more = copies_of(sources.head(count + 1), "long", {"a": 0.5}, 1)
        assert sum(one != other for one, other in zip(fewer, more[:-1], strict=True)) <= 1


def test_samples_of_weight_nothing_are_not_there() -> None:
    assert taken(table("a", "b"), table("c"), weights={"a": 0, "c": 2}) == {"long": [("id1", 1)], "short": [("id0", 2)]}


def test_a_weight_of_a_source_that_was_not_selected_changes_nothing() -> None:
    assert taken(table("a"), table("c"), weights={"a": 2, "x": 1}) == {"long": [("id0", 2)], "short": [("id0", 1)]}
    assert taken(table("a"), table("c"), weights={"a": 2}, without_long=True) == {"long": [], "short": [("id0", 1)]}
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        MixConfig(weights={"a": -1})
