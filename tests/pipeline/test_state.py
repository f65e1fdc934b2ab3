"""What the planner is given, from a real small project on disk; nothing is computed by a model."""

import json
import os
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.errors import MissingUpstreamError
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import INPUT, Plan
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import WorkForecast
from gateau_dagster.storage.documents import write_document
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project, sample, write_samples


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path, samples=12, shards=3)


def opened(project: Path) -> State:
    return state_of(config=load_project(project))


def estimated(state: State, plan: Plan) -> dict[str, WorkForecast]:
    estimator = Estimator(state)
    return estimator.assets(estimator.scored(plan))


def fill(state: State) -> None:
    """Stands in for a run: an output with its right stamp for each asset, without the methods."""
    for asset in state.pipeline.assets:
        if asset.file:
            for name in (asset.file, *asset.further_files):
                write_document(state.store, name, "x", state.wanted_stamp(asset.key, None))
            continue
        for shard in state.pipeline.partitions(asset.key):
            ids = state.index.accepted
            rows = ids if shard is None else ids.filter(pl.col("shard") == int(shard))
            frame = rows.select("sample_id", "digest")
            state.store.write(frame, asset.key, shard, state.wanted_stamp(asset.key, shard))


def test_an_empty_store_misses_everything(project: Path) -> None:
    state = opened(project)
    assert set(state.recorded().values()) == {None}
    plan = state.plan()
    assert [work.asset for work in plan.work] == [asset.key for asset in state.pipeline.assets]
    found = estimated(state, plan)
    assert set(found) == {"perplexity/short", "perplexity/long", "cam"}
    assert all(each.samples == 12 and each.amount for each in found.values())
    assert (found["cam"].amount or 0) > (found["perplexity/long"].amount or 0)


def test_a_full_store_is_up_to_date_until_something_changes(project: Path, tmp_path: Path) -> None:
    fill(opened(project))
    assert not opened(project).plan()
    change_config(project, scoring={"batch_tokens": 7}, execution={"retries": 0})
    assert not opened(project).plan()
    records = [sample(number) for number in range(12)]
    records[4] = {**records[4], "response": "another answer ."}
    write_samples(tmp_path / "long.jsonl", records)
    state = opened(project)
    plan = state.plan()
    raw = plan.of("raw_long_sft")
    assert raw is not None and len(raw.partitions) == 1 and raw.reasons[raw.partitions[0]] == "changed: input"
    found = estimated(state, plan)
    assert {asset: each.samples for asset, each in found.items()} == dict.fromkeys(found, 1), "the others are kept"
    write_samples(tmp_path / "long.jsonl", [sample(number) for number in range(11)])
    plan = opened(project).plan()
    assert plan.work[0].asset == "raw_long_sft" and len(plan.work[0].partitions) == 1, "one is removed"
    assert plan.of("report") is not None


def test_a_change_under_the_same_size_and_time_is_planned_where_contents_are_verified(
    project: Path, tmp_path: Path
) -> None:
    fill(opened(project))
    reading, trusting = ({"path": "long", "verify": verify} for verify in ("content", "signature"))
    change_config(project, long_sft={"verify": "content"}, models={"long": reading})
    assert not opened(project).plan(), "how a change is noticed changes nothing"
    change_config(project, long_sft={"verify": "signature"}, models={"long": trusting})
    assert not opened(project).plan()
    for file, old, new in (("long.jsonl", b"recall", b"rECALL"), ("long/config.json", b"silu", b"gelu")):
        path = tmp_path / file
        status, content = path.stat(), path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
    assert not opened(project).plan(), "nothing tells that they were written"
    change_config(project, long_sft={"verify": "content"})
    raw = opened(project).plan().of("raw_long_sft")
    assert raw is not None and list(raw.reasons.values()) == ["changed: input"]
    change_config(project, models={"long": reading})
    work = opened(project).plan().of("perplexity/long")
    assert work is not None and all("models.long weights" in reason for reason in work.reasons.values())


def test_new_weights_at_the_same_path_change_what_that_model_made(project: Path, tmp_path: Path) -> None:
    fill(opened(project))
    config = tmp_path / "short" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 1e-3}))
    planned = {work.asset for work in opened(project).plan().work}
    assert planned == {"perplexity/short", "combined_scores", "selected_subset", "report"}


def test_versions_of_inputs_and_of_upstreams(project: Path) -> None:
    state = opened(project)
    assert state.versions_now("raw_long_sft", "0") == {INPUT: state.shard_input("0")}
    with pytest.raises(MissingUpstreamError, match=r"cam\[1\] needs raw_long_sft\[1\].*gateau run"):
        state.versions_now("cam", "1")
    with pytest.raises(MissingUpstreamError, match=r"^selected_subset needs raw_long_sft\[0\]"):
        state.wanted_stamp("selected_subset", None)
    fill(state)
    stamp = state.stamp("raw_long_sft", "1")
    assert stamp is not None and state.versions_now("cam", "1") == {"raw_long_sft": stamp.fingerprint}
    assert state.wanted_stamp("cam", "1").fingerprint == getattr(state.stamp("cam", "1"), "fingerprint", None)


def test_a_rule_that_the_data_cannot_meet_is_known_before_anything_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path, selection={"rule": "per_source", "shares": {"far": 1, "absent": 2}})
    with refused("selection.unknown_source", match=r"selection\.shares: .*'absent'; .*far, near"):
        checked_plan(opened(project))


def test_a_model_that_cannot_serve_its_method_is_known_before_anything_runs(tmp_path: Path) -> None:
    options = {"ladm": {"model": "short", "span_length": 16, "first_scored": 6}}  # 112 tokens, where theta_A sees 64
    project = make_project(tmp_path, selection={"method": "ladm", "options": options})
    with refused("methods.no_sample_fits", match=r"^selection\.options\.ladm: .*112 "):
        checked_plan(opened(project))
    change_config(project, models={"short": {"path": "short"}, "long": {"path": "long"}})
    assert checked_plan(opened(project))


def test_data_that_a_method_cannot_use_are_refused_before_anything_runs(project: Path) -> None:
    options = {"target": {"encoder": "mini", "sources": ["nowhere"]}}
    change_config(project, models={"mini": {"path": "mini", "task": "embedding"}},
                  selection={"compare": ["target"], "options": options})  # fmt: skip
    with refused("methods.embedding_target", match="'nowhere'"):
        checked_plan(opened(project))
