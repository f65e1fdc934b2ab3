import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config import SelectionConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.choose import choose


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


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (SelectionConfig(count=3), ["s19", "s18", "s17"]),
        (SelectionConfig(fraction=0.2), ["s19", "s18", "s17", "s16"]),
        (SelectionConfig(), ["s19", "s18"]),
    ],
)
def test_the_best_ranks_are_chosen(scores, raw, selection: SelectionConfig, wanted: list[str]) -> None:
    found = choose(scores.sample(fraction=1, shuffle=True, seed=1), raw.lazy(), selection)
    assert found["sample_id"].to_list() == wanted
    assert found["rank"].to_list() == list(range(1, len(wanted) + 1))
    assert found.schema == tables.schema(tables.SELECTED_SUBSET)
    assert found["context"].to_list() == [f"context of {name}" for name in wanted]


def test_a_count_above_the_data_takes_all(scores, raw) -> None:
    assert choose(scores, raw.lazy(), SelectionConfig(count=50)).height == 20


def test_a_chosen_sample_that_is_gone_is_an_error(scores, raw) -> None:
    with pytest.raises(GateauError, match="1 chosen samples, s18 among them"):
        choose(scores, raw.filter(pl.col("sample_id") != "s18").lazy(), SelectionConfig(count=3))
