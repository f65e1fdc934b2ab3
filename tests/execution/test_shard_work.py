from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution.shard_work import (
    Asked,
    OnSample,
    Outcomes,
    Score,
    ShardProgress,
    ShardResult,
    Suspects,
    TableWork,
    compute_shard,
    samples_of,
)
from gateau_dagster.pipeline.node import Node
from gateau_dagster.storage import Stamp, Store

ASSET, SHARD = "perplexity/short", "1"


def write_samples(store: Store, *numbers: int, edited: int | None = None) -> None:
    rows = []
    for number in numbers:
        text = "edited" if number == edited else f"context {number}"
        sample = Sample(sample_id=f"s{number}", source="x", context=text, instruction="i", response="r")
        rows.append(
            {
                **{
                    name: getattr(sample, name)
                    for name in ("sample_id", "source", "context", "instruction", "response")
                },
                "digest": sample.digest,
            }
        )
    frame = pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT), orient="row")
    store.write(frame, "raw_long_sft", SHARD, Stamp(fingerprint="raw"))


class Scorer:
    """Notes which samples it was given; fails at one, rejects another."""

    def __init__(self, *, version: float = 1.0, fail_at: str = "", reject: str = "") -> None:
        self.version, self.fail_at, self.reject = version, fail_at, reject
        self.scored: list[str] = []

    def __call__(self, samples: Iterable[Sample]) -> Iterator[dict[str, object] | Reject]:
        for sample in samples:
            if sample.sample_id == self.fail_at:
                raise RuntimeError("killed in the middle")
            self.scored.append(sample.sample_id)
            if sample.sample_id == self.reject:
                yield Reject(sample_id=sample.sample_id, reason="too long")
                continue
            yield {
                "sample_id": sample.sample_id,
                "digest": sample.digest,
                "perplexity": self.version + len(sample.context),
                "mean_nll": 0.0,
                "context_tokens": 1,
                "response_tokens": 1,
                "truncated_tokens": 0,
            }


SampleScore = Callable[[Iterable[Sample]], Iterator[dict[str, object] | Reject]]


def for_one_table(score: SampleScore) -> Score:
    """A scorer of ASSET as compute_shard wants it."""

    def by_asset(asked: Iterable[Asked]) -> Iterator[Outcomes]:
        return ({ASSET: outcome} for outcome in score(one.sample for one in asked))

    return by_asset


def compute(
    store: Store,
    scorer: SampleScore,
    name: str = "v1",
    *,
    seen: list[int] | None = None,
    memory: str = "m",
    on_sample: OnSample | None = None,
) -> ShardResult:
    stamp = Stamp(fingerprint=f"f {name}", scorer=name)
    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=stamp, memory=memory)
    finished = seen if seen is not None else []
    on_sample = on_sample or (lambda progress: finished.append(progress.finished))
    return compute_shard(store, SHARD, [work], score=for_one_table(scorer), on_sample=on_sample)[ASSET]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path))
    write_samples(made, 1, 2, 3, 4)
    return made


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


def test_a_run_that_broke_goes_on_where_it_was(store: Store) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        compute(store, Scorer(fail_at="s3"))
    assert store.stamp(ASSET, SHARD) is None, "half a table never counts"
    scorer, seen = Scorer(), []
    result = compute(store, scorer, seen=seen)
    assert scorer.scored == ["s3", "s4"] and seen == [3, 4]
    assert (result.computed, result.reused) == (2, 2)
    whole = Store(str(Path(store.root) / "whole"))
    write_samples(whole, 1, 2, 3, 4)
    assert result.table.equals(compute(whole, Scorer()).table), "the same as without the interruption"
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}")


def test_rows_of_a_broken_run_of_another_scorer_are_not_mistaken(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(version=9.0, fail_at="s3"), name="v9")
    result = compute(store, Scorer(), name="v1")
    assert (result.computed, result.reused) == (4, 0)
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}"), "the other scorer's groups are gone too"


def test_a_sample_edited_after_the_interruption_is_scored_anew(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s3"))
    write_samples(store, 1, 2, 3, 4, edited=1)
    scorer = Scorer()
    result = compute(store, scorer)
    assert scorer.scored == ["s1", "s3", "s4"] and result.table.height == 4


def test_a_sample_edited_and_taken_back_keeps_its_old_row(store: Store) -> None:
    compute(store, Scorer())
    write_samples(store, 1, 2, 3, 4, 5, edited=1)
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s5"))
    write_samples(store, 1, 2, 3, 4)
    scorer = Scorer()
    assert compute(store, scorer).reused == 4 and scorer.scored == []


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

    node = Node(asset=ASSET, partitions="shard", scorer="v1", memory="small")
    result = compute(store, short, memory="small")
    found = store.stamp(ASSET, SHARD)
    assert found == result.stamp and found is not None and found.fingerprint != "f v1"
    assert node.is_current(found, "f v1") and not node.is_current(found, "another")
    assert not replace(node, memory="large").is_current(found, "f v1")
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


def test_many_rows_are_saved_in_groups_while_the_work_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "GROUP_ROWS", 2)
    saved: list[list[str]] = []
    folder = f"{partial.FOLDER}/{ASSET}/{SHARD}/v1"

    def watching(progress: ShardProgress) -> None:
        saved.append(store.files.names(folder))

    compute(store, Scorer(), on_sample=watching)
    assert saved == [[], ["0.parquet"], ["0.parquet"], ["0.parquet", "1.parquet"]]


def test_a_damaged_group_is_computed_again(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s3"))
    (name,) = store.files.names(f"{partial.FOLDER}/{ASSET}/{SHARD}/v1")
    store.files.write(f"{partial.FOLDER}/{ASSET}/{SHARD}/v1/{name}", b"half a fi")
    assert compute(store, Scorer()).computed == 4


def test_tables_become_samples_again(store: Store) -> None:
    frame = store.read("raw_long_sft", SHARD)
    assert [sample.digest for sample in samples_of(frame)] == frame["digest"].to_list()


def test_suspects_are_scored_first_and_one_by_one(store: Store) -> None:
    calls: list[list[str]] = []
    taken: list[str] = []
    scorer, seen = Scorer(), []

    def score(asked: Iterable[Asked]) -> Iterator[Outcomes]:
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
    assert found.stamp.short_of_memory == "m" and found.stamp.complete == "f"
    assert [progress.finished for progress in seen] == [2, 3, 4] and seen[-1].share == 1


def test_a_shard_of_which_only_rejects_are_left(store: Store) -> None:
    """No model is asked for."""
    suspects = Suspects(given_up=dict.fromkeys(("s1", "s2", "s3", "s4"), "deadly"))
    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=Stamp(fingerprint="f", scorer="v1"), memory="m")
    found = compute_shard(store, SHARD, [work], score=forbidden, on_sample=lambda progress: None, suspects=suspects)
    assert found[ASSET].rejected.height == 4 and found[ASSET].table.is_empty()


def forbidden(asked: Iterable[Asked]) -> Iterator[Outcomes]:
    raise AssertionError("there is nothing to score")


def test_all_rows_that_wait_are_saved_at_once_and_none_twice(store: Store) -> None:
    """What a process does that is told to end while its main thread is elsewhere."""

    def interrupted(progress: ShardProgress) -> None:
        if progress.finished == 3:
            partial.save_all_rows()
            partial.save_all_rows()
            assert checkpoint(store).load()["sample_id"].to_list() == ["s1", "s2", "s3"]

    compute(store, Scorer(), on_sample=interrupted)
    partial.save_all_rows()
    assert checkpoint(store).load().is_empty(), "the table stands"


def test_a_lost_store_keeps_no_other_rows_from_being_saved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that wait beside it when the process is told to end, nor those of later work."""
    schema = tables.schema(tables.PERPLEXITY)
    row = next(iter(Scorer()([Sample(sample_id="s1", source="x", context="c", instruction="i", response="r")])))
    assert isinstance(row, dict)
    rows = [partial.RowCheckpoints(store, ASSET, shard, "v1", schema) for shard in "234"]
    for each in rows:
        each.add(row)
    write = Store.write

    def lost(self: Store, frame: pl.DataFrame, asset: str, *args: Any) -> Stamp:
        if f"{ASSET}/3/" in asset:
            raise GateauError("the store is lost")
        return write(self, frame, asset, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", lost)
        with pytest.raises(GateauError, match="lost"):
            partial.save_all_rows()
        assert [each.load().height for each in rows] == [1, 0, 1]
        with pytest.raises(GateauError, match="lost"):
            rows[1].close()
        partial.save_all_rows()
    partial.save_all_rows()
    assert rows[1].load().is_empty(), "given up: its sample is computed again"


def checkpoint(store: Store) -> partial.RowCheckpoints:
    return partial.RowCheckpoints(store, ASSET, SHARD, "v1", tables.schema(tables.PERPLEXITY))
