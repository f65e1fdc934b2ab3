"""What the data comes to, over all partitions of a table."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.pipeline.losses import Totals, totals
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.project import sample, write_samples

SCORED, RAW = "perplexity/short", "raw_long_sft"


def table(columns: tuple[tables.Column, ...], rows: int, **values: int) -> pl.DataFrame:
    schema = tables.schema(columns)
    return pl.DataFrame({name: pl.Series([values.get(name)] * rows, dtype=kind) for name, kind in schema.items()})


def effort(tokens: int, seconds: float) -> dict[str, float]:
    return {"tokens": tokens, "seconds": seconds}


@pytest.fixture
def state(tmp_path: Path) -> State:
    """Three samples in two shards, one of which was rejected when it was scored."""
    content = {
        "storage": {"root": str(tmp_path / "store")},
        "long_sft": {"path": "long.jsonl", "shards": 2},
        "models": {"short": {"path": "a"}, "long": {"path": "b"}},
    }
    write_samples(tmp_path / "long.jsonl", [sample(0)])
    found = State(config=Config.model_validate({**content, "folder": tmp_path}))
    rejected = pl.DataFrame({"sample_id": ["x"], "reason": ["the response is empty"]})
    for shard, rows in (("0", 2), ("1", 1)):
        found.store.write(table(tables.RAW_LONG_SFT, rows), RAW, shard, Stamp(fingerprint="f"))
    kept = Stamp(fingerprint="f", effort=effort(100, 2.0))
    two, none = (table(tables.PERPLEXITY, rows, context_tokens=30, truncated_tokens=10) for rows in (2, 0))
    found.store.write(two, SCORED, "0", kept)
    found.store.write(none, SCORED, "1", Stamp(fingerprint="f", effort=effort(50, 1.5)), rejected)
    return found


def made(state: State, *assets: str) -> list[Totals]:
    recorded = {key: stamp for asset in assets for key, stamp in state.store.stamps(
        (asset, shard) for shard in state.shards
    ).items()}  # fmt: skip
    return [*totals(state, assets, recorded)]


def test_shards_are_added_up(state: State) -> None:
    (found,) = made(state, SCORED)
    assert (found.asset, found.rows, found.tokens, found.seconds) == (SCORED, 2, 150, 3.5)
    assert found.rejected is not None and (found.rejected.count, found.rejected.given) == (1, 3)
    assert found.reasons == "1 x the response is empty"
    assert found.truncation is not None and (found.truncation.tokens, found.truncation.cut_tokens) == (80, 20)


def test_what_no_model_read_has_no_tokens_and_the_order_is_that_of_the_flow(state: State) -> None:
    raw, scored = made(state, SCORED, RAW)
    assert (raw.asset, scored.asset) == (RAW, SCORED)
    assert (raw.rows, raw.tokens, raw.seconds, raw.truncation) == (3, None, None, None)


def test_what_was_not_made_is_left_out(state: State) -> None:
    assert made(state, "cam") == []
