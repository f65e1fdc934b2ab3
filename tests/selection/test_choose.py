import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.combine import choose, ranked_by_score


@pytest.fixture
def scores() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [f"s{i:02d}" for i in range(20)],
            "score": [i / 20 for i in range(20)],
            "rank": [20 - i for i in range(20)],
        },
        schema_overrides={"rank": pl.Int32},
    )


@pytest.fixture
def raw(scores: pl.DataFrame) -> pl.DataFrame:
    ids = scores["sample_id"].to_list()
    return pl.DataFrame(
        {column.name: [f"{column.name} of {name}" for name in ids] for column in tables.RAW_LONG_SFT}
    ).with_columns(sample_id=pl.Series(ids))


def test_the_chosen_get_their_texts_by_rank(scores, raw) -> None:
    wanted = ["s19", "s18", "s16", "s03"]
    chosen = scores.filter(pl.col("sample_id").is_in(wanted)).sample(fraction=1, shuffle=True, seed=1)
    found = choose(chosen, raw.lazy())
    assert found["sample_id"].to_list() == wanted
    assert found["rank"].to_list() == [1, 2, 4, 17]
    assert found.schema == tables.schema(tables.SELECTED_SUBSET)
    assert found["context"].to_list() == [f"context of {name}" for name in wanted]


def test_a_chosen_sample_that_is_gone_is_an_error(scores, raw) -> None:
    with pytest.raises(GateauError, match="1 chosen samples, s18 among them"):
        choose(scores.sort("rank").head(3), raw.filter(pl.col("sample_id") != "s18").lazy())


def test_ranks_of_a_method_leave_out_what_it_cannot_score() -> None:
    scores = pl.DataFrame({"sample_id": ["d", "c", "b", "a"], "score": [2.0, 5.0, None, 2.0]})
    ranked = ranked_by_score(scores)
    assert list(ranked.iter_rows()) == [("c", 5.0, 1), ("a", 2.0, 2), ("d", 2.0, 3)]
    assert ranked.schema["rank"] == pl.Int32


def test_a_method_without_any_score_is_an_error() -> None:
    with pytest.raises(GateauError, match="has no score for any sample"):
        ranked_by_score(pl.DataFrame({"sample_id": ["a"], "score": [None]}, schema_overrides={"score": pl.Float64}))
