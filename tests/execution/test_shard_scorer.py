"""A shard is scored for the tables that lack its samples; what still holds is kept, and what was done is saved."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution import shard_scorer
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_tables import Piece, samples_of
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.plan import INPUT, Key, Plan, make_plan
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import ASSET, BOTH, CAM, SHARD, Scorer, compute, compute_one, work, write_samples
from tests.pipeline.world import declared
from tests.resources.pools.shards_to_score import alone, ingested, pieces


def test_a_shard_is_computed_written_and_stamped(store: Store) -> None:
    reports: list[ShardReport] = []
    begun: list[str] = []
    result = compute(store, Scorer(), ASSET, report=reports.append, begin=begun.append)[ASSET]
    assert (result.computed, result.reused) == (4, 0)
    ids = ["s1", "s2", "s3", "s4"]
    assert store.read(ASSET, SHARD).equals(result.table) and result.table["sample_id"].to_list() == ids == begun
    assert dict(result.table.schema) == dict(tables.schema(tables.PERPLEXITY))
    assert store.stamp(ASSET, SHARD) == result.stamp
    assert [report.scored for report in reports] == [1, 2, 3, 4]
    shares = [report.share for report in reports]
    assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] > 0


def test_tokens_and_seconds_grow_while_a_sample_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_scorer, "_SECONDS_BETWEEN_PASSES", 0.0)
    state = ingested(tmp_path, samples=4, shards=1)
    reports: list[ShardReport] = []
    results = alone(state, pieces(state)[0], reports.append)
    first = [report for report in reports if not report.scored]
    assert len(first) > 1 and {report.share for report in first} == {0.0}
    for before, after in pairwise(reports):
        assert before.tokens <= after.tokens and before.seconds < after.seconds and before.scored <= after.scored
    assert first[0].tokens < first[-1].tokens
    assert reports[-1].tokens == sum(result.stamp.effort["tokens"] for result in results.values())


def test_an_edited_an_added_and_a_removed_sample_cost_only_themselves(store: Store) -> None:
    before = compute_one(store, Scorer()).table
    write_samples(store, 1, 2, 4, 5, edited=2)
    scorer = Scorer()
    result = compute_one(store, scorer)
    assert sorted(scorer.scored) == ["s2", "s5"]
    assert (result.computed, result.reused) == (2, 2)
    assert result.table["sample_id"].to_list() == ["s1", "s2", "s4", "s5"]
    kept = result.table.filter(pl.col("sample_id").is_in(["s1", "s4"]))
    assert kept.equals(before.filter(pl.col("sample_id").is_in(["s1", "s4"])))


def test_another_scorer_computes_everything_again(store: Store) -> None:
    compute_one(store, Scorer())
    result = compute_one(store, Scorer(version=2.0), "v2")
    assert (result.computed, result.reused) == (4, 0)
    assert result.table["perplexity"].min() == 2.0 + len("context 1")


def test_rejects_are_listed_and_tried_again_next_time(store: Store) -> None:
    result = compute_one(store, Scorer(reject="s2"))
    assert store.read_rejected(ASSET, [SHARD]).rows() == [("s2", "too long")]
    assert result.table.height == 3
    scorer = Scorer()
    assert compute_one(store, scorer).rejected.is_empty() and scorer.scored == ["s2"]
    assert store.read_rejected(ASSET, [SHARD]).is_empty()


def test_an_empty_shard_is_an_empty_table(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_samples(store)
    result = compute_one(store, Scorer())
    assert result.table.is_empty() and dict(result.table.schema) == dict(tables.schema(tables.PERPLEXITY))


@pytest.mark.parametrize("kept", [0, 3])
def test_a_scorer_that_forgets_a_sample_is_a_defect(kept: int, store: Store) -> None:
    def forgetful(requests: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        yield from islice(Scorer()(requests), kept)

    with pytest.raises(AssertionError, match="scored or rejected"):
        compute(store, forgetful, ASSET)


def test_tables_become_samples_again(store: Store) -> None:
    frame = store.read("raw_long_sft", SHARD)
    assert [sample.digest for sample in samples_of(frame)] == frame["digest"].to_list()


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
    compute(store, Scorer(), ASSET)
    write_samples(store, 1, 2, 3, 4, 5, edited=2)
    scorer = Scorer()
    results = compute(store, scorer, *BOTH)
    asked = dict(scorer.asked)
    assert asked == {f"s{number}": frozenset(BOTH if number in {2, 5} else (CAM,)) for number in (1, 2, 3, 4, 5)}
    assert (results[ASSET].computed, results[ASSET].reused) == (2, 3)
    assert (results[CAM].computed, results[CAM].reused) == (5, 0)


def test_a_reject_of_one_table_is_a_row_of_the_other(store: Store) -> None:
    results = compute(store, Scorer(reject="s3", of=CAM), *BOTH)
    assert results[ASSET].table.height == 4 and results[CAM].table.height == 3
    assert store.read_rejected(CAM, [SHARD]).rows() == [("s3", "too long")]
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
    assert (results[ASSET].reused, results[CAM].reused) == (2, 0)
    assert not any(store.files.exists(f"{partial.FOLDER}/{asset}/{SHARD}") for asset in BOTH)


def test_a_table_that_cannot_be_written_costs_neither(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Store.write

    def write(self: Store, frame: object, asset: str, *arguments: object, **options: object) -> object:
        if asset == CAM:
            raise GateauError("storage.disk_full", "the disk is full")
        return original(self, frame, asset, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        with pytest.raises(GateauError, match="full"):
            compute(store, Scorer(), *BOTH)
    assert store.stamp(ASSET, SHARD) is not None
    scorer = Scorer()
    assert compute(store, scorer, CAM)[CAM].reused == 4 and scorer.asked == []


def test_which_samples_need_a_model(store: Store) -> None:
    def lacking(*assets: str) -> set[str]:
        return {*Piece.whole(store, SHARD, [work(asset) for asset in assets]).ids}

    assert lacking(*BOTH) == {"s1", "s2", "s3", "s4"}
    compute(store, Scorer(), ASSET)
    assert len(lacking(*BOTH)) == 4 and not lacking(ASSET)
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s4"), CAM)
    assert lacking(*BOTH) == {"s4"}
    compute(store, Scorer(), CAM)
    write_samples(store, 1, 2, 3)
    assert not lacking(*BOTH), "a removed sample needs no model"


def test_the_stamp_says_what_it_took(store: Store) -> None:
    compute(store, Scorer(), ASSET)
    effort = {asset: {"seconds": seconds} for asset, seconds in ((ASSET, 1.5), (CAM, 2.5))}
    works = [work(ASSET), work(CAM)]
    results = compute(store, Scorer(), works=works, effort=effort)
    assert results[ASSET].stamp.effort == {}, "its rows were kept"
    assert results[CAM].stamp.effort["seconds"] == 2.5
    assert store.stamp(CAM, SHARD) == results[CAM].stamp
    assert dict(tables.schema(tables.CAM)) == dict(results[CAM].table.schema)


def nodes(memory: str) -> list[Asset]:
    """One scored table and one global table that reads it."""
    return [
        declared(ASSET, partitions="shard", means=memory),
        declared("scores", reads={ASSET: "fingerprint"}),
    ]


def plan(recorded: dict[Key, Stamp | None], memory: str) -> Plan:
    return make_plan(nodes(memory), {"shard": [SHARD]}, {SHARD: "input"}, recorded)


def make(store: Store, recorded: dict[Key, Stamp | None], *, memory: str, fits: bool) -> int:
    """Computes the shard and the global table as the pipeline does; returns how many samples were computed."""
    node, scores = nodes(memory)
    versions = {INPUT: "input"}
    stamp = Stamp(fingerprint=node.fingerprint(versions), inputs=node.made_from(versions), scorer="v1")
    scorer = Scorer(reject="" if fits else "s2", short_of_memory=True)
    result = compute_one(store, scorer, stamp=stamp, memory=memory)
    recorded[ASSET, SHARD] = result.stamp
    upstream = {ASSET: result.stamp.fingerprint}
    recorded["scores", None] = Stamp(fingerprint=scores.fingerprint(upstream), inputs=scores.made_from(upstream))
    return result.computed


def test_a_sample_that_does_not_fit_into_memory_is_tried_again_when_memory_changes_and_only_then(store: Store) -> None:
    recorded: dict[Key, Stamp | None] = {}
    assert make(store, recorded, memory="small", fits=False) == 3
    found, node = store.stamp(ASSET, SHARD), nodes("small")[0]
    assert found is not None and found.fingerprint != found.complete
    assert node.is_current(found, found.complete) and not node.is_current(found, "another")
    assert not replace(node, means="large").is_current(found, found.complete)
    assert not plan(recorded, "small"), "the same settings would fail the same way"
    again = plan(recorded, "large")
    assert [each.asset for each in again.work] == [ASSET, "scores"]
    assert "did not fit into memory" in again.work[0].reasons[SHARD]

    lacking = recorded["scores", None]
    assert make(store, recorded, memory="large", fits=True) == 1, "the rows that fitted are kept"
    assert store.read(ASSET, SHARD)["sample_id"].to_list() == ["s1", "s2", "s3", "s4"]
    assert not plan(recorded, "large")
    assert not plan(recorded, "small"), "a complete table does not depend on the memory settings"
    complete = recorded["scores", None]
    assert lacking is not None and complete is not None and lacking.fingerprint != complete.fingerprint
