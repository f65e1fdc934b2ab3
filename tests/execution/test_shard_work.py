"""A shard is computed, kept where it still holds, and written whole."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_work import (
    Outcomes,
    RequestedRow,
    Suspects,
    TableWork,
    compute_shard,
    samples_of,
)
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import ASSET, SHARD, Scorer, compute, for_one_table, write_samples
from tests.pipeline.world import declared


def test_a_shard_is_computed_written_and_stamped(store: Store) -> None:
    seen: list[int] = []
    result = compute(store, Scorer(), seen=seen)
    assert (result.computed, result.reused, seen) == (4, 0, [1, 2, 3, 4])
    assert store.read(ASSET, SHARD).equals(result.table) and result.table["sample_id"].to_list() == [
        "s1",
        "s2",
        "s3",
        "s4",
    ]
    assert dict(result.table.schema) == dict(tables.schema(tables.PERPLEXITY))
    assert store.stamp(ASSET, SHARD) == result.stamp


def test_an_edited_an_added_and_a_removed_sample_cost_only_themselves(store: Store) -> None:
    before = compute(store, Scorer()).table
    write_samples(store, 1, 2, 4, 5, edited=2)
    scorer = Scorer()
    result = compute(store, scorer)
    assert sorted(scorer.scored) == ["s2", "s5"]
    assert (result.computed, result.reused) == (2, 2)
    assert result.table["sample_id"].to_list() == ["s1", "s2", "s4", "s5"]
    kept = result.table.filter(pl.col("sample_id").is_in(["s1", "s4"]))
    assert kept.equals(before.filter(pl.col("sample_id").is_in(["s1", "s4"])))


def test_unchanged_samples_call_no_scorer_at_all(store: Store) -> None:
    compute(store, Scorer())

    def never(samples: Iterable[Sample]) -> Iterator[dict[str, object]]:
        raise AssertionError("no model is needed")

    result = compute(store, never)
    assert (result.computed, result.reused) == (0, 4)


def test_another_scorer_computes_everything_again(store: Store) -> None:
    compute(store, Scorer())
    result = compute(store, Scorer(version=2.0), name="v2")
    assert (result.computed, result.reused) == (4, 0)
    assert result.table["perplexity"].min() == 2.0 + len("context 1")


def test_rejects_are_listed_and_tried_again_next_time(store: Store) -> None:
    result = compute(store, Scorer(reject="s2"))
    assert store.read_rejected(ASSET, [SHARD]).rows() == [("s2", "too long")]
    assert result.table.height == 3
    scorer = Scorer()
    assert compute(store, scorer).rejected.is_empty() and scorer.scored == ["s2"]
    assert store.read_rejected(ASSET, [SHARD]).is_empty()


def test_a_sample_that_does_not_fit_into_memory_is_tried_again_when_memory_changes(store: Store) -> None:
    def short(samples: Iterable[Sample]) -> Iterator[dict[str, object] | Reject]:
        for outcome, sample in zip(Scorer()(samples := list(samples)), samples, strict=True):
            is_last = sample.sample_id == "s4"
            yield Reject(sample_id="s4", reason="no memory", short_of_memory=True) if is_last else outcome

    node = declared(ASSET, partitions="shard", means="small")
    result = compute(store, short, memory="small")
    found = store.stamp(ASSET, SHARD)
    assert found == result.stamp and found is not None and found.fingerprint != "f v1"
    assert node.is_current(found, "f v1") and not node.is_current(found, "another")
    assert not replace(node, means="large").is_current(found, "f v1")
    scorer = Scorer()
    assert compute(store, scorer).stamp.fingerprint == "f v1" and scorer.scored == ["s4"]


def test_an_empty_shard_is_an_empty_table(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_samples(store)
    result = compute(store, Scorer())
    assert result.table.is_empty() and dict(result.table.schema) == dict(tables.schema(tables.PERPLEXITY))


def test_a_scorer_that_forgets_a_sample_is_a_defect(store: Store) -> None:
    def forgetful(samples: Iterable[Sample]) -> Iterator[dict[str, object] | Reject]:
        yield from list(Scorer()(samples))[1:]

    with pytest.raises(AssertionError, match="scored or rejected"):
        compute(store, forgetful)


def test_tables_become_samples_again(store: Store) -> None:
    frame = store.read("raw_long_sft", SHARD)
    assert [sample.digest for sample in samples_of(frame)] == frame["digest"].to_list()


def test_suspects_are_scored_first_and_one_by_one(store: Store) -> None:
    calls: list[list[str]] = []
    taken: list[str] = []
    scorer, seen = Scorer(), []

    def score(asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        given = [*asked]
        calls.append([one.sample.sample_id for one in given])
        return for_one_table(scorer)(given)

    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=Stamp(fingerprint="f", scorer="v1"), memory="m")
    found = compute_shard(
        store,
        SHARD,
        [work],
        score=score,
        on_sample=seen.append,
        on_taken=taken.append,
        suspects=Suspects(alone=frozenset({"s2", "s4", "unknown"}), given_up={"s4": "deadly", "unknown": "?"}),
    )[ASSET]
    assert calls == [["s2"], ["s1", "s3"]] and taken == ["s2", "s1", "s3"]
    assert found.table["sample_id"].to_list() == ["s1", "s2", "s3"]
    assert found.rejected.rows() == [("s4", "deadly")]
    assert found.stamp.lacking == "m" and found.stamp.complete == "f"
    assert [progress.finished for progress in seen] == [2, 3, 4] and seen[-1].share == 1


def test_a_shard_of_which_only_rejects_are_left(store: Store) -> None:
    """No model is asked for."""
    suspects = Suspects(given_up=dict.fromkeys(("s1", "s2", "s3", "s4"), "deadly"))
    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=Stamp(fingerprint="f", scorer="v1"), memory="m")
    found = compute_shard(store, SHARD, [work], score=forbidden, on_sample=lambda progress: None, suspects=suspects)
    assert found[ASSET].rejected.height == 4 and found[ASSET].table.is_empty()


def forbidden(asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
    raise AssertionError("there is nothing to score")
