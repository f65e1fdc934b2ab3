"""Scoring on two raylets: the tables are those of one process, whatever happens to actors, nodes and samples."""

import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import tables
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_tables import Piece, PieceResult, ShardResult
from gateau_dagster.features.evaluation.assets.answering import pool_answers
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Outcome
from gateau_dagster.features.evaluation.generation.in_process import InProcess
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.pipeline.loadable import placed_model
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.pools import on_ray
from gateau_dagster.resources.pools.on_ray import POOL
from gateau_dagster.resources.pools.pool import ScoringTask, ScoringWorkers
from gateau_dagster.resources.pools.worker import Failed, ScoringWorker
from gateau_dagster.storage import fence
from gateau_dagster.storage.fence import LeaseLostError, Token, holding
from tests.kit.error_codes import refused
from tests.kit.ray_cluster import RayCluster, ray_cluster
from tests.resources.pools.deadly_samples import Deadly
from tests.resources.pools.killed_once import KilledOnce
from tests.resources.pools.questions import questions
from tests.resources.pools.shards_to_score import ASSETS, alone, ignore, ingested, pieces
from tests.runs.stores import assert_same_rows

pytestmark = pytest.mark.slow
ALONE = {"batch_tokens": 1}  # no prompt shares a pass: the same rounding, whatever is scored together


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(1, 1) as found:
        yield found


def on(cluster: RayCluster, workers: int = 2, **further: Any) -> dict[str, Any]:
    return {"ray": {"address": cluster.address, "workers": workers, "gpus": 0, "cpus": 1, **further}}


def pool(state: State, warned: list[str]) -> AbstractContextManager[ScoringWorkers]:
    config = state.config
    task = ScoringTask(
        config=config,
        model="long",
        placed=placed_model(state, "long"),
        section=None,
        devices=POOL.devices(config, "auto", 1),
        costs=lambda shard: {},
    )
    return POOL.workers(task, warned.append)


def answered(groups: Iterator[Sequence[Outcome]]) -> dict[str, Answer]:
    return {each.question_id: each for group in groups for each in group if isinstance(each, Answer)}


def assert_as_alone(
    state: State, shards: list[Piece], found: list[tuple[str, dict[str, ShardResult]]], *, exactly: bool
) -> None:
    assert sorted(shard for shard, _ in found) == [shard.shard for shard in shards], "each shard once"
    results = dict(found)
    for each in shards:
        shard, made = each.shard, results[each.shard]
        assert not Piece.whole(state.store, shard, each.works).lacking
        stored = {asset: state.store.stamp(asset, shard) for asset in ASSETS}
        here = alone(state, each)
        for asset in ASSETS:
            assert stored[asset] == made[asset].stamp
            if exactly:
                assert made[asset].table.equals(here[asset].table), (asset, shard)
            assert_same_rows(made[asset].table, here[asset].table)
    assert not state.store.files.exists("_partial/cam/0")


@pytest.mark.long
@pytest.mark.parametrize("cut", ["small", "whole"])
def test_scores_are_those_of_one_process(cut: str, cluster: RayCluster, tmp_path: Path) -> None:
    minutes = 0.0001 if cut == "small" else 60
    # A whole shard is scored in the passes of one process; a part of it is where prompts share none.
    scoring = ALONE if cut == "small" else {}
    workers = 2 if cut == "small" else 1
    state = ingested(
        tmp_path, samples=10, shards=2, execution=on(cluster, workers, piece_minutes=minutes), scoring=scoring
    )
    shards, warned, reports = pieces(state), [], []
    with pool(state, warned) as two:
        found = list(two.results(shards, reports.append))
    assert warned == []
    assert_as_alone(state, shards, found, exactly=cut == "small")
    for shard, made in found:
        last = [each for each in reports if each.shard == shard][-1]
        effort = [made[asset].stamp.effort for asset in ASSETS]
        assert last.share == 1 and last.scored == made["cam"].computed
        assert last.tokens == sum(each["tokens"] for each in effort) > 0
        assert [each["samples"] for each in effort] == [made[asset].computed for asset in ASSETS]
    assert cluster.soon_without_actors()


@pytest.mark.long
def test_a_killed_actor_costs_its_piece(cluster: RayCluster, tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=8, shards=2, execution=on(cluster, 1, piece_minutes=0.0001), scoring=ALONE)
    (notes := tmp_path / "notes").mkdir()
    shards, warned, victim = pieces(state, effort=KilledOnce(notes)), [], KilledOnce(notes)

    def hear(report: ShardReport) -> None:
        if report.scored:
            victim.hear()

    with pool(state, warned) as two:
        found = list(two.results(shards, hear))
    assert len(warned) == 1 and f"process {victim.killed}) died" in warned[0]
    assert_as_alone(state, shards, found, exactly=True)


def test_an_actor_proves_the_lease_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task carries the lease: Ray starts the actor on another machine, with another environment."""
    state = ingested(tmp_path, samples=6, shards=1, execution={"ray": {"workers": 1, "gpus": 0}})
    [piece] = pieces(state)
    files, token = state.store.files, Token(root=state.store.files.root, number=1, lease="ours")
    files.create(token.name, b'{"lease": "ours"}')
    monkeypatch.setattr(on_ray, "connected", lambda section: nullcontext())
    on_cluster = on_ray._on_cluster(state.config, placed_model(state, "long"), "long")
    with holding(token, alone=True), on_cluster as task:
        sent = pickle.dumps(task)
    monkeypatch.setattr(fence, "_process", fence._Process())
    actor = ScoringWorker(pickle.loads(sent))
    assert isinstance(actor.work(1, piece.part(["s00000", "s00001"])), PieceResult)
    Path(files.address(token.name)).unlink()
    before = files.sizes()
    failed = actor.work(2, piece.part(["s00002", "s00003"]))
    assert isinstance(failed, Failed) and isinstance(failed.error, LeaseLostError)
    assert files.sizes() == before


@pytest.mark.long
def test_workers_of_a_step_that_lost_the_store_write_nothing_more(cluster: RayCluster, tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=24, shards=2, execution=on(cluster, piece_minutes=0.0001), scoring=ALONE)
    files, token = state.store.files, Token(root=state.store.files.root, number=1, lease="ours")
    files.create(token.name, b'{"lease": "ours"}')

    def lose(report: ShardReport) -> None:
        if report.scored:
            Path(files.address(token.name)).unlink(missing_ok=True)
            before.append(files.sizes())

    before: list[dict[str, int]] = []
    with holding(token, alone=True), pytest.raises(LeaseLostError), pool(state, []) as two:
        _ = [*two.results(pieces(state), lose)]
    assert cluster.soon_without_actors()
    assert files.sizes() == before[0]


@pytest.mark.long
def test_a_sample_that_kills_three_actors_is_rejected_and_the_others_are_scored(
    cluster: RayCluster, tmp_path: Path
) -> None:
    state = ingested(tmp_path, samples=12, shards=1, execution=on(cluster, piece_minutes=60))
    log, warned = tmp_path / "batches", []
    deadly = Deadly(kills=["s00002"], after=1.5, log=str(log))
    shards = pieces(state, assets=ASSETS[:1], effort=deadly, columns=(tables.SAMPLE_ID, tables.DIGEST))
    with pool(state, warned) as two:
        [(shard, made)] = two.results(shards, ignore)
    result = made["perplexity/long"]
    ids = [f"s{number:05d}" for number in range(12)]
    assert result.table["sample_id"].to_list() == [one for one in ids if one != "s00002"]
    [(rejected, reason)] = result.rejected.rows()
    assert rejected == "s00002" and "3 scoring workers died over this sample" in reason
    assert result.stamp.lacking == "m" and result.stamp == state.store.stamp("perplexity/long", shard)
    assert log.read_text().splitlines().count("s00002") == 2, "from the second time on it is alone"
    assert len(warned) == 3 and "s00002, which is rejected" in warned[2]


@pytest.mark.long
def test_a_lost_node_costs_pieces_and_one_that_joins_late_takes_work(tmp_path: Path) -> None:
    with ray_cluster(1) as cluster:
        state = ingested(tmp_path, samples=40, shards=2, execution=on(cluster, piece_minutes=0.0001), scoring=ALONE)
        shards, warned = pieces(state), []
        only, lost, since, joined = cluster.nodes[0], [], [], []

        def lose_it(report: ShardReport) -> None:
            if not lost and report.scored > 3:
                lost.append(cluster.actors())
                cluster.lose(only)
                threading.Timer(3, lambda: (since.append(time.monotonic()), cluster.add(2))).start()
            elif since and not joined and report.scored:
                joined.append(time.monotonic() - since[0])

        with pool(state, warned) as two:
            found = list(two.results(shards, lose_it))
        assert lost and joined and joined[0] < 30
        assert len(warned) >= 1 and "was lost with its machine" in warned[0]
        assert_as_alone(state, shards, found, exactly=True)


def test_where_there_is_no_cluster_the_message_says_so(tmp_path: Path) -> None:
    execution = {"ray": {"address": "127.0.0.1:1", "workers": 1, "gpus": 0}}
    state = ingested(tmp_path, samples=4, shards=1, execution=execution)
    with refused("execution.ray_address", match=r"execution\.ray\.address"):
        pool(state, []).__enter__()
    assert not state.store.files.names("_workers")


@pytest.mark.long
def test_what_a_node_may_not_score_is_said(cluster: RayCluster, tmp_path: Path) -> None:
    """Its model is another one than where the run began."""
    state = ingested(tmp_path, samples=4, shards=1, execution=on(cluster, 1))
    with pool(state, []) as one:
        (tmp_path / "long" / "generation_config.json").write_text("{}")
        with refused("execution.ray_model"):
            list(one.results(pieces(state), ignore))


def test_questions_are_answered_as_in_one_process(cluster: RayCluster, tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=4, shards=1, execution=on(cluster))
    asked = [AskedTurn(question=each) for each in questions([30, 40, 50] * 4)]
    missing = {f"q{number}" for number in range(1, 12)}
    placed = placed_model(state, "long")
    answers = pool_answers(state.config)
    assert answers is not None
    with answers(state.config, placed, "gateau", [].append) as engine:
        there = answered(engine.answers(asked, missing))
    loaded = ModelsResource().load(state.config, placed.section, version="")
    prompts = PromptBuilder(tokenizer=loaded.tokenizer, template="gateau", max_length=512)
    groups = InProcess(loaded, prompts, batch_tokens=16_384).answers(asked, missing)
    here = answered(groups)
    assert {*there} == {*here} == missing
    for name, each in here.items():
        assert replace(there[name], seconds=0.0) == replace(each, seconds=0.0)
    assert cluster.soon_without_actors()
