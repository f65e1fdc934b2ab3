"""A sample that does not fit into memory is no final reject: it is tried again when the memory settings change."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_tables import TableWork
from gateau_dagster.execution.shard_work import compute_shard
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.plan import INPUT, Key, Plan, make_plan
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import SHARD, for_one_table, write_samples
from tests.pipeline.world import declared

ASSET = "perplexity/short"


def nodes(memory: str) -> list[Asset]:
    """One scored table and one global table that reads it."""
    return [
        declared(ASSET, partitions="shard", means=memory),
        declared("scores", reads={ASSET: "fingerprint"}),
    ]


def plan(recorded: dict[Key, Stamp | None], memory: str) -> Plan:
    return make_plan(nodes(memory), {"shard": [SHARD]}, {SHARD: "input"}, recorded)


def score(fits: bool, samples: Iterable[Sample]) -> Iterator[dict[str, object] | Reject]:
    for sample in samples:
        if sample.sample_id == "s2" and not fits:
            yield Reject(sample_id=sample.sample_id, reason="out of memory", short_of_memory=True)
            continue
        yield {
            "sample_id": sample.sample_id,
            "digest": sample.digest,
            "perplexity": 2.0,
            "mean_nll": 1.0,
            "context_tokens": 1,
            "response_tokens": 1,
            "truncated_tokens": 0,
        }


def make(store: Store, recorded: dict[Key, Stamp | None], *, memory: str, fits: bool) -> int:
    """Computes the shard and the global table as the pipeline does; returns how many samples were computed."""
    node, scores = nodes(memory)
    versions = {INPUT: "input"}
    stamp = Stamp(fingerprint=node.fingerprint(versions), inputs=node.made_from(versions), scorer="v1")
    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=stamp, memory=memory)
    scored = for_one_table(lambda samples: score(fits, samples))
    result = compute_shard(store, SHARD, [work], score=scored, on_sample=lambda progress: None)[ASSET]
    recorded[ASSET, SHARD] = result.stamp
    upstream = {ASSET: result.stamp.fingerprint}
    recorded["scores", None] = Stamp(fingerprint=scores.fingerprint(upstream), inputs=scores.made_from(upstream))
    return result.computed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path))
    write_samples(made, 1, 2, 3)
    return made


def test_it_is_tried_again_under_other_settings_and_only_then(store: Store) -> None:
    recorded: dict[Key, Stamp | None] = {}
    assert make(store, recorded, memory="small", fits=False) == 2
    assert store.read_rejected(ASSET, [SHARD])["sample_id"].to_list() == ["s2"]
    assert not plan(recorded, "small"), "the same settings would fail the same way"

    again = plan(recorded, "large")
    assert [work.asset for work in again.work] == [ASSET, "scores"]
    assert "had not fitted into memory" in again.work[0].reasons[SHARD]

    assert make(store, recorded, memory="large", fits=True) == 1, "the rows that fitted are kept"
    assert store.read(ASSET, SHARD)["sample_id"].to_list() == ["s1", "s2", "s3"]
    assert not plan(recorded, "large")
    assert not plan(recorded, "small"), "a complete table does not depend on the memory settings"


def test_the_global_table_sees_that_a_sample_came_in(store: Store) -> None:
    recorded: dict[Key, Stamp | None] = {}
    make(store, recorded, memory="small", fits=False)
    lacking = recorded["scores", None]
    make(store, recorded, memory="large", fits=True)
    complete = recorded["scores", None]
    assert lacking is not None and complete is not None
    assert lacking.fingerprint != complete.fingerprint
