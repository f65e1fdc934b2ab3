import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import PRESETS, Preset
from gateau_dagster.selection.combine import ranked
from gateau_dagster.selection.joining import COLUMNS, MEASURES, check_observed, join_all, join_shard
from tests.error_codes import refused
from tests.selection.slow import slow_combine
from tests.selection.tables_in_test import cam_table, perplexity_table

LENGTH = 8
Tables = dict[str, pl.DataFrame]


def random_tables(seed: int, *, count: int = 60) -> Tables:
    """Samples with zero to six segments, equal values among them, some missing in each table; rows in no order."""
    rng = np.random.default_rng(seed)
    ids = [f"s{number}" for number in rng.permutation(count)]
    contexts = rng.integers(0, 6 * LENGTH, count)
    visible = np.minimum(contexts, rng.choice([1, 3, 2 * LENGTH, 100], count))
    few = [1.0, 2.0, 2.5, 4.0, 9.0]
    segments = [rng.choice(few, -(-int(context) // LENGTH)).tolist() for context in contexts]
    cas, gains = (
        [float(rng.choice(some)) if len(values) > 1 else None for values in segments]
        for some in ([0.2, 0.5], [0.0, 0.1, 0.7])
    )
    made = (
        perplexity_table(rng.choice(few, count).tolist(), context_tokens=visible.tolist(), ids=ids),
        perplexity_table(rng.choice(few, count).tolist(), context_tokens=contexts.tolist(), ids=ids),
        cam_table(segments, cas, ids=ids, far_gain=gains),
    )
    return {
        name: frame.sample(count - int(rng.integers(4)), shuffle=True, seed=seed)
        for name, frame in zip(COLUMNS, made, strict=True)
    }


def in_shards(tables: Tables, shards: int) -> list[Tables]:
    """Every id in the shard of its number; the rows sorted by id in every other shard, as stored tables are."""
    number = pl.col("sample_id").str.slice(1).cast(pl.Int32) % shards
    return [
        {
            name: frame.filter(number == shard) if shard % 2 else frame.filter(number == shard).sort("sample_id")
            for name, frame in tables.items()
        }
        for shard in range(shards)
    ]


def joined(tables: Tables, shards: int = 3) -> pl.DataFrame:
    return join_all(join_shard(part) for part in in_shards(tables, shards))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shards", [1, 3, 80])
def test_shard_by_shard_is_sample_by_sample(shards: int, preset: Preset) -> None:
    for seed in range(3):
        tables = random_tables(seed)
        found = ranked(joined(tables, shards), preset=preset, alpha=0.7)
        wanted = slow_combine(*tables.values(), preset=preset, alpha=0.7)
        assert found.height > 40
        assert found.equals(wanted.select(pl.col(name).cast(kind) for name, kind in found.schema.items()))


def test_the_joined_table_is_sorted_and_typed() -> None:
    found = joined(random_tables(4))
    assert found.schema == MEASURES
    assert found["sample_id"].is_sorted()
    assert found.rechunk().equals(joined(random_tables(4), shards=1))


def changed(tables: Tables, name: str, ids: list[str], **values: object) -> Tables:
    now = [
        pl.when(pl.col("sample_id").is_in(ids)).then(pl.lit(value)).otherwise(key).alias(key)
        for key, value in values.items()
    ]
    return {**tables, name: tables[name].with_columns(now)}


@pytest.mark.parametrize("shards", [1, 4])
def test_problems_of_all_shards_are_told_at_once(shards: int) -> None:
    ids = [f"s{number}" for number in range(9)]
    table = perplexity_table([2.0] * 9, ids=ids)
    tables = {
        "perplexity/short": table,
        "perplexity/long": table,
        "cam": cam_table([[2.0, 2.0]] * 9, [0.5] * 9, ids=ids),
    }
    with refused("storage.out_of_date", "s1.*s2.*s3.*s4.*s5.*2"):
        joined(changed(tables, "cam", ids[1:8], digest="old"), shards)
    with refused("models.not_homologous", "s0.*s7"):
        joined(changed(tables, "perplexity/short", ["s7", "s0"], response_tokens=4), shards)
    twice = {**tables, "cam": pl.concat([tables["cam"], tables["cam"].slice(2, 3), tables["cam"].slice(3, 1)])}
    with refused("storage.out_of_date", "s2.*s3.*s4"):
        joined(changed(twice, "perplexity/long", ["s1"], digest="old"), shards)
    with refused("selection.no_scores", "perplexity/short.*9.*perplexity/long.*9.*0"):
        joined({**tables, "cam": tables["cam"].clear()}, shards)


def test_a_sample_in_two_shards_is_an_error() -> None:
    (part,) = in_shards(random_tables(0), 1)
    with refused("storage.out_of_date"):
        join_all([join_shard(part)] * 2)


def test_scores_by_attention_that_nobody_saw_are_refused() -> None:
    measures = pl.DataFrame(
        {"segments": [1, 2, 3], "cas": [None, None, 0.5]}, schema={"segments": pl.Int32, "cas": pl.Float64}
    )
    check_observed(measures)
    check_observed(measures.head(1))
    with refused("models.no_attention", r"selection\.preset"):
        check_observed(measures.head(2))
