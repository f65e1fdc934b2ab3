"""Comparing what two runs left in their stores."""

from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from safetensors.torch import load_file

from gateau_dagster.storage import Store


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


def assert_same_tables(one: Store, other: Store) -> None:
    """The same files with the same rows, to the last bit."""
    first, second = frames(one), frames(other)
    assert list(first) == list(second)
    assert first, "nothing was compared"
    for name, frame in first.items():
        assert_frame_equal(frame, second[name], check_exact=True)


def assert_same_stamps(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    """The same data versions and contents."""
    assert {key: (stamp.fingerprint, stamp.content) for key, stamp in one.items()} == {
        key: (stamp.fingerprint, stamp.content) for key, stamp in other.items()
    }


def assert_same_weights(one: Path, other: Path) -> None:
    """The same tensors in both model folders, to the last bit."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
