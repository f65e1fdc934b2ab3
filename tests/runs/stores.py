"""Comparing what two runs left in their stores."""

from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from safetensors.torch import load_file

from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Store

ROUNDING = 1e-6
ROUNDING_OF_ZERO = 1e-7  # attention means are near 1e-2 here
# Eq. 3's softmax over raw perplexities turns a rounding of 1e-7 of a perplexity of 400 into 4e-5 of a share.
AMPLIFIED = dict.fromkeys(("cas", "cas_paper", "cas_official", "score_paper", "score_official"), 1e-4)
# A sum of differences, each of which is off by the rounding of a probability; and a difference of two perplexities of
# 400, each off by 1e-7 of itself, that is divided by the range of its table.
SUMMED = ("segment_gain", "hmp_official")
ROUNDING_OF_SUM = 1e-5
PACKED = "segment_probability"  # bytes, which a rounding changes; other columns of its table are made of them
# Depend on the choice, not on the scores behind it.
DOWNSTREAM = ("selected_subset", "training_mix", "checkpoint")


def table_names(store: Store) -> list[str]:
    """Every parquet file, relative to the root."""
    root = store.root.removeprefix("s3://")
    found = store.files.filesystem.find(store.root)
    return sorted(
        name.removeprefix("s3://").removeprefix(root).lstrip("/") for name in found if name.endswith(".parquet")
    )


def frames(store: Store) -> dict[str, pl.DataFrame]:
    """Every table by the name of its file."""
    return {name: pl.read_parquet(store.files.read(name)) for name in table_names(store)}


def assert_same_scores(one: State, other: State) -> None:
    """The same input, figures and scores."""
    for asset in ("raw_long_sft", "perplexity/short", "perplexity/long", "cam"):
        for shard in one.shards:
            assert_same_rows(one.store.read(asset, shard), other.store.read(asset, shard))
    assert_same_rows(one.store.read("combined_scores"), other.store.read("combined_scores"))


def assert_same_rows(one: pl.DataFrame, other: pl.DataFrame) -> None:
    """The same rows in the same order; which samples shared a pass changes the rounding of float32, and no more."""
    exact = [name for name in one.columns if name not in {*AMPLIFIED, *SUMMED, PACKED}]
    assert one.columns == other.columns
    assert_frame_equal(one.select(exact), other.select(exact), rel_tol=ROUNDING, abs_tol=ROUNDING_OF_ZERO)
    for name in {*SUMMED} & {*one.columns}:
        assert_frame_equal(one.select(name), other.select(name), abs_tol=ROUNDING_OF_SUM)
    for name in AMPLIFIED.keys() & {*one.columns}:
        assert_frame_equal(one.select(name), other.select(name), rel_tol=AMPLIFIED[name])


def assert_same_tables(one: Store, other: Store) -> None:
    """The same files with the same rows."""
    first, second = frames(one), frames(other)
    assert list(first) == list(second)
    assert first, "nothing was compared"
    for name, frame in first.items():
        assert_same_rows(frame, second[name])


def assert_same_stamps(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    """The same data versions, and the same contents where no rounding of scores is in them."""
    assert {key: stamp.fingerprint for key, stamp in one.items()} == {
        key: stamp.fingerprint for key, stamp in other.items()
    }
    exact = [key for key in one if key[0].split("/")[0] in {"raw_long_sft", "short_chat_mix", *DOWNSTREAM}]
    assert {key: one[key].content for key in exact} == {key: other[key].content for key in exact}


def assert_same_weights(one: Path, other: Path) -> None:
    """The same tensors in both model folders, to the last bit."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
