"""A shard of two tables that one model fills: each sample is scored once, for the tables that lack it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import Outcomes, RequestedRow, ShardProgress, compute_shard, has_missing_rows
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import SHARD, write_samples

LONG, CAM = "perplexity/long", "cam"
BOTH = (LONG, CAM)
COLUMNS = {LONG: tables.PERPLEXITY, CAM: tables.CAM}


def work(asset: str, **planned: object) -> TableWork:
    stamp = Stamp(fingerprint="f", scorer=f"scorer of {asset}")
    return TableWork(asset=asset, columns=COLUMNS[asset], stamp=stamp, memory="m", planned=planned)


class Scorer:
    """Notes what was asked of it, and fails at a sample."""

    def __init__(self, fail_at: str = "", reject: str = "") -> None:
        self.asked: list[tuple[str, frozenset[str]]] = []
        self._fail_at, self._reject = fail_at, reject

    def __call__(self, asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        for one in asked:
            if one.sample.sample_id == self._fail_at:
                raise RuntimeError("killed in the middle")
            self.asked.append((one.sample.sample_id, one.assets))
            yield {asset: self._outcome(asset, one) for asset in one.assets}

    def _outcome(self, asset: str, asked: RequestedRow) -> dict[str, Any] | Reject:
        sample = asked.sample
        ids: dict[str, Any] = {"sample_id": sample.sample_id, "digest": sample.digest}
        if asset == CAM and sample.sample_id == self._reject:
            return Reject(sample_id=sample.sample_id, reason="no attention")
        if asset == CAM:
            return ids | {"segments": 1, "segment_perplexity": [2.0], "segment_attention": [0.5], "cas": None}
        counts = dict.fromkeys(("context_tokens", "response_tokens", "truncated_tokens"), 1)
        return ids | {"perplexity": 2.0, "mean_nll": 0.7} | counts


def compute(store: Store, scorer: Scorer, *assets: str) -> dict[str, ShardResult]:
    return compute_shard(store, SHARD, [work(asset) for asset in assets], score=scorer, on_sample=lambda progress: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path))
    write_samples(made, 1, 2, 3, 4)
    return made


def test_one_pass_fills_both_tables_as_each_alone_would(store: Store, tmp_path: Path) -> None:
    scorer = Scorer()
    results = compute(store, scorer, *BOTH)
    assert scorer.asked == [(f"s{number}", frozenset(BOTH)) for number in (1, 2, 3, 4)]
    alone = Store(str(tmp_path / "alone"))
    write_samples(alone, 1, 2, 3, 4)
    for asset in BOTH:
        assert compute(alone, Scorer(), asset)[asset].table.equals(results[asset].table)
        assert store.stamp(asset, SHARD) == results[asset].stamp
        assert store.read(asset, SHARD).equals(results[asset].table)


def test_a_sample_is_scored_for_the_tables_that_lack_it_and_no_other(store: Store) -> None:
    compute(store, Scorer(), LONG)
    write_samples(store, 1, 2, 3, 4, 5, edited=2)
    scorer = Scorer()
    results = compute(store, scorer, *BOTH)
    asked = dict(scorer.asked)
    assert asked == {f"s{number}": frozenset(BOTH if number in {2, 5} else (CAM,)) for number in (1, 2, 3, 4, 5)}
    assert (results[LONG].computed, results[LONG].reused) == (2, 3)
    assert (results[CAM].computed, results[CAM].reused) == (5, 0)


def test_a_reject_of_one_table_is_a_row_of_the_other(store: Store) -> None:
    results = compute(store, Scorer(reject="s3"), *BOTH)
    assert results[LONG].table.height == 4 and results[CAM].table.height == 3
    assert store.read_rejected(CAM, [SHARD]).rows() == [("s3", "no attention")]
    scorer = Scorer()
    compute(store, scorer, *BOTH)
    assert scorer.asked == [("s3", frozenset({CAM}))]


def test_each_table_goes_on_where_it_was(store: Store) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        compute(store, Scorer(fail_at="s3"), *BOTH)
    assert not any(store.stamp(asset, SHARD) for asset in BOTH)
    # As if the process had died between the two saves of a group.
    store.files.remove(f"{partial.FOLDER}/{CAM}")
    scorer = Scorer()
    results = compute(store, scorer, *BOTH)
    assert dict(scorer.asked) == {f"s{n}": frozenset(BOTH if n > 2 else (CAM,)) for n in (1, 2, 3, 4)}
    assert (results[LONG].reused, results[CAM].reused) == (2, 0)
    assert not any(store.files.exists(f"{partial.FOLDER}/{asset}/{SHARD}") for asset in BOTH)


def test_a_table_that_cannot_be_written_costs_neither(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Store.write

    def write(self: Store, frame: object, asset: str, *arguments: object, **options: object) -> object:
        if asset == CAM:
            raise GateauError("the disk is full")
        return original(self, frame, asset, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        with pytest.raises(GateauError, match="full"):
            compute(store, Scorer(), *BOTH)
    assert store.stamp(LONG, SHARD) is not None
    scorer = Scorer()
    assert compute(store, scorer, CAM)[CAM].reused == 4 and scorer.asked == []


def test_whether_a_model_is_needed(store: Store) -> None:
    works = [work(asset) for asset in BOTH]
    assert has_missing_rows(store, SHARD, works)
    compute(store, Scorer(), LONG)
    assert has_missing_rows(store, SHARD, works) and not has_missing_rows(store, SHARD, works[:1])
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s4"), CAM)
    assert has_missing_rows(store, SHARD, works)
    compute(store, Scorer(), CAM)
    write_samples(store, 1, 2, 3)
    assert not has_missing_rows(store, SHARD, works), "a removed sample needs no model"


def test_the_stamp_says_what_it_took_and_what_was_planned(store: Store) -> None:
    compute(store, Scorer(), LONG)
    effort = {asset: {"seconds": seconds} for asset, seconds in ((LONG, 0.0), (CAM, 2.5))}
    seen: list[ShardProgress] = []
    results = compute_shard(
        store,
        SHARD,
        [work(LONG, seconds=1.0), work(CAM, seconds=2.0)],
        score=Scorer(),
        on_sample=seen.append,
        effort=lambda: effort,
    )
    assert results[LONG].stamp.effort == {}, "its rows were kept"
    assert results[CAM].stamp.effort == {"seconds": 2.5, "planned": {"seconds": 2.0}}
    assert store.stamp(CAM, SHARD) == results[CAM].stamp
    assert [progress.finished for progress in seen] == [1, 2, 3, 4]
    shares = [progress.share for progress in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] > 0
    assert dict(tables.schema(tables.CAM)) == dict(results[CAM].table.schema)
