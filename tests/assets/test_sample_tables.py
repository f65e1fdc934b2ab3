"""One step of theta_B makes two assets, or the one that is asked for; in this process or in workers."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from gateau_dagster.assets import sample_tables as scored_shards
from gateau_dagster.assets.steps.progress import ScoringProgress
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report, ShardScorer
from gateau_dagster.execution.shard_tables import Piece
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.pools.pool import Pool, ScoringTask, Warn
from gateau_dagster.storage import Store
from tests.assets.harness import Pipeline, asset_key, failure_of, in_range, key_of, value_of
from tests.assets.steps.test_step import assert_own_versions, execute
from tests.kit.project import change_config

PAIR = ["perplexity/long", "cam"]
EVERY_SHARD = in_range("0", "2")
MEASURED = {"scoring_seconds", "samples_per_second", "tokens_per_second", "flops", "flops_per_second"}


def test_both_keep_a_description_a_schema_and_kinds_of_their_own(fresh: Pipeline) -> None:
    repository = fresh.definitions().get_repository_def()
    definitions = {repository.assets_defs_by_key[asset_key(asset)] for asset in PAIR}
    assert len(definitions) == 1 and next(iter(definitions)).op.name == "perplexity__long_and_cam"
    perplexity, cam = (next(iter(definitions)).specs_by_key[asset_key(asset)] for asset in PAIR)
    assert "Eq. 1" in (perplexity.description or "") and "Eq. 3-5" in (cam.description or "")
    schemas = [{column.name for column in spec.metadata["dagster/column_schema"].columns} for spec in (perplexity, cam)]
    assert "perplexity" in schemas[0] and "cas" in schemas[1]
    assert perplexity.kinds == cam.kinds == {"pytorch", "huggingface"}


def test_one_step_makes_both_and_each_alone(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ScoringProgress] = []

    def loaded(progress: ScoringProgress) -> None:
        told.append(progress)

    monkeypatch.setattr(ScoringProgress, "loaded", loaded)
    events = execute(fresh, ["raw_long_sft", *PAIR], tags=EVERY_SHARD)
    assert len(told) == 3 and len({*told}) == 1, "each shard of the step is told that the model is there"
    made = [event for event in events if key_of(event)[0] in PAIR]
    assert [key_of(event) for event in made] == [(asset, shard) for shard in ("0", "1", "2") for asset in PAIR]
    assert_own_versions(fresh, events)
    for event in made:
        found = {name: value_of(event, name) for name in MEASURED}
        assert all(value > 0 for value in found.values()), found
        assert found["flops_per_second"] == pytest.approx(found["flops"] / found["scoring_seconds"], rel=0.02)
        assert 0 < value_of(event, "share_of_matrix_product_peak") < 2
        assert value_of(event, "device") == "cpu"
        assert any(name.startswith("peak_process_memory") for name in event.metadata)
    effort = fresh.stamp("cam", "0").effort
    assert {"samples", "tokens", "flops", "seconds", "peak_memory"} <= set(effort)
    steps = {entry.step_key for entry in fresh.instance.all_logs(fresh.runs()[0].run_id) if entry.step_key}
    assert "perplexity__long_and_cam" in steps

    for asset in PAIR:
        fresh.state().store.files.remove(f"{asset}/1.parquet")
        assert [*fresh.made(asset)] == [(asset, "1")]
        assert fresh.stamp(asset, "1")


class InThisProcess:
    """Stands for the workers: notes their task, warns, scores in this process, and may fail after some shards."""

    task: ClassVar[ScoringTask]
    fails_after: int | None = None
    ended = False

    def __init__(self, task: ScoringTask, warn: Warn) -> None:
        InThisProcess.task, self.warn = task, warn

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *error: object) -> None:
        InThisProcess.ended = True

    def results(self, shards: Sequence[Piece], report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
        self.warn("a worker is lost")
        config, models, section = self.task.config, ModelsResource(), self.task.section
        assert section is not None
        scorer = ShardScorer(
            config, lambda: all_sample_tables(config), "long", lambda: models.load(config, section, version=""), report
        )
        for number, shard in enumerate(reversed(shards)):
            if number == self.fails_after:
                raise GateauError("machine.killed", "no worker is left")
            yield shard.shard, scorer.shard(Store(config.located_root), shard)


def test_the_chosen_pool_takes_the_shards_and_what_it_finished_stands(
    fresh: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_shards, "chosen_pool", lambda config: Pool(name="here", workers=InThisProcess))
    execute(fresh, ["raw_long_sft"], tags=EVERY_SHARD)
    change_config(fresh.file, scoring={"workers": 5})
    monkeypatch.setattr(InThisProcess, "fails_after", 1)
    done = fresh.execute(PAIR, tags=EVERY_SHARD, fails=True)
    assert failure_of(done) == "no worker is left"
    assert [key_of(event) for event in fresh.materialised(done.run_id)] == [(asset, "2") for asset in PAIR]
    assert InThisProcess.ended
    assert InThisProcess.task.devices == ["cpu"] * 3, "no more workers than shards"
    log = [entry for entry in fresh.instance.all_logs(done.run_id) if "a worker is lost" in entry.user_message]
    assert [entry.level for entry in log] == [logging.WARNING]

    monkeypatch.setattr(InThisProcess, "fails_after", None)
    execute(fresh, PAIR, tags=EVERY_SHARD)
    assert len(InThisProcess.task.devices) == 2, "two shards were left"
    for shard in ("0", "1", "2"):
        texts = (
            fresh.state().store.read("raw_long_sft", shard).select("sample_id", "context", "instruction", "response")
        )
        lengths = {name: sum(map(len, parts)) for name, *parts in texts.iter_rows()}
        assert InThisProcess.task.costs(shard) == lengths
    change_config(fresh.file, scoring={"max_length": 16})
    costs = scored_shards.text_lengths(fresh.state(), "long")("0")
    assert {*costs.values()} == {64}, "text that is cut costs nothing"
    assert all(fresh.state().stamp(asset, shard) for asset in PAIR for shard in ("0", "1", "2"))
