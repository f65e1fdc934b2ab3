"""Another window of theta_A: `cam` follows from stored probabilities, and theta_B reads nothing."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.cli.plan import plan_record
from gateau_dagster.models import forward
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.models import ModelsResource
from tests.assets.harness import Pipeline, pipeline_on
from tests.kit.project import change_config, copied, make_project, sample, write_samples
from tests.runs.test_kill import killed_run

NEW = ["context_tokens", "tail_tokens", "segment_probability"]


def short(window: int, **further: Any) -> dict[str, Any]:
    """The section of models with this window of theta_A."""
    pair = {"short": {"path": "short", "context": "window", "window": window}, "long": {"path": "long"}}
    return {"models": pair, **further}


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of prompts that each model read, by the model's name, and of its loads."""
    counts, batch, one = Counter[str](), forward.response_nll, forward.context_attention

    def batches(loaded: Any, read: Sequence[Any]) -> Any:
        counts[loaded.name] += len(read)
        return batch(loaded, read)

    def whole(loaded: Any, read: Any) -> Any:
        counts[loaded.name] += 1
        return one(loaded, read)

    def load(self: ModelsResource, config: Any, model: Any, **options: Any) -> Any:
        counts[f"loads of {model.path}"] += 1
        return own(self, config, model, **options)

    own = ModelsResource.load
    monkeypatch.setattr(ModelsResource, "load", load)
    monkeypatch.setattr(forward, "response_nll", batches)
    monkeypatch.setattr(forward, "context_attention", whole)
    return counts


def planned(state: State, asset: str) -> tuple[str, int, int]:
    """The reason, samples and tokens that `gateau plan` names for an asset."""
    record = plan_record(state, checked_plan(state, "combined_scores"))
    [why] = [work["why"] for work in record["work"] if work["asset"] == asset]
    scoring = record["estimates"][asset]
    return why, scoring["samples"], scoring["tokens"]


def assert_same_cam(one: State, other: State) -> None:
    for shard in one.shards:
        assert_frame_equal(one.store.read("cam", shard), other.store.read("cam", shard), check_exact=True)
        stamps = [state.stamp("cam", shard) for state in (one, other)]
        assert stamps[0] and stamps[1] and stamps[0].content == stamps[1].content
    assert one.read_rejected("cam").equals(other.read_rejected("cam"))


def test_the_table_is_that_of_a_fresh_store_to_the_bit(tmp_path: Path, prompts: Counter[str]) -> None:
    file = make_project(tmp_path / "project", samples=400, **short(64))
    records = [sample(number) for number in range(400)]
    records[7]["instruction"] += " note" * 600  # too long for theta_B: a reject
    write_samples(file.parent / "long.jsonl", records)
    other = copied(file, tmp_path / "fresh")
    with pipeline_on(file) as pipeline:
        pipeline.refresh("combined_scores")
        read, loads = prompts["long"], prompts["loads of long"]
        change_config(file, **short(32))
        why, samples, tokens = planned(pipeline.state(), "cam")
        assert (samples, tokens) == (1, 0), "a reject has no tokens"
        assert why == "changed: models.short.window 64 → 32 (derived: no segment is read)"
        assert planned(pipeline.state(), "perplexity/short")[1] == 400
        pipeline.refresh("combined_scores")
        assert prompts["long"] == read > 400 and prompts["loads of long"] == loads > 0
        state = pipeline.state()
        assert not state.plan_until("combined_scores")
    change_config(other, **short(32))
    with pipeline_on(other) as pipeline:
        pipeline.refresh("combined_scores")
        assert_same_cam(state, pipeline.state())
        assert state.read("combined_scores").equals(pipeline.state().read("combined_scores"))


def without_probabilities(state: State) -> None:
    """Leave tables of `cam` as an earlier release wrote them."""
    for shard in state.shards:
        stamp = state.stamp("cam", shard)
        assert stamp is not None
        state.store.write(state.store.read("cam", shard).drop(NEW), "cam", shard, stamp)


def test_an_earlier_table_is_current_and_read_once_more_for_another_window(
    fresh: Pipeline, prompts: Counter[str]
) -> None:
    change_config(fresh.file, **short(64))
    fresh.refresh("cam")
    without_probabilities(fresh.state())
    assert not fresh.state().plan_until("cam")
    write_samples(fresh.file.parent / "long.jsonl", [sample(number) for number in range(13)])
    fresh.refresh("cam")  # a new row beside the old ones of its shard
    change_config(fresh.file, **short(32))
    why, samples, tokens = planned(fresh.state(), "cam")
    assert "12 rows of an earlier release lack segment_probability" in why
    assert samples == 12 and tokens > 12
    before = prompts["long"]
    fresh.refresh("cam")
    assert prompts["long"] > before + 12
    for window in (64, 32):
        change_config(fresh.file, **short(window))
        assert "derived" in planned(fresh.state(), "cam")[0]
        before = prompts["long"]
        fresh.refresh("cam")
        assert prompts["long"] == before


def test_a_damaged_table_is_read_again(fresh: Pipeline) -> None:
    change_config(fresh.file, **short(64))
    fresh.refresh("cam")
    path = Path(fresh.state().store.address("cam", "1"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1  # in the first column, the ids
    path.write_bytes(data)
    rows = fresh.state().read("raw_long_sft", ["sample_id"], "1").height
    change_config(fresh.file, **short(32))
    assert planned(fresh.state(), "cam")[1] == rows
    fresh.refresh("cam")
    assert fresh.state().read("cam", ["sample_id"]).height == 12


@pytest.mark.parametrize(
    "change",
    [
        {"scoring": {"segment_length": 8}},
        {"scoring": {"max_length": 128}},
        {"scoring": {"segments": "screened"}},
    ],
)
def test_with_another_setting_nothing_is_derived(fresh: Pipeline, change: dict[str, Any]) -> None:
    change_config(fresh.file, **short(64))
    fresh.refresh("cam")
    change_config(fresh.file, **short(32, **change))
    why, samples, _ = planned(fresh.state(), "cam")
    assert "derived" not in why and "lack" not in why and samples == 12


def test_an_edited_sample_is_read_and_the_others_are_derived(fresh: Pipeline, prompts: Counter[str]) -> None:
    change_config(fresh.file, **short(64))
    fresh.refresh("cam")
    records = [sample(number) for number in range(12)]
    records[5] |= {"context": records[6]["context"]}
    write_samples(fresh.file.parent / "long.jsonl", records)
    change_config(fresh.file, **short(32))
    assert planned(fresh.state(), "cam")[1] == 1
    before = prompts["long"]
    fresh.refresh("cam")
    state = fresh.state()
    segments = {row[0]: row[1] for row in state.read("cam", ["sample_id", "segments"]).iter_rows()}
    # Each segment, no context, and the whole prompt once for both tables.
    assert prompts["long"] - before == segments["s00005"] + 2


@pytest.mark.slow
def test_killed_while_deriving(tmp_path: Path) -> None:
    """After the second of four tables: the next run derives the others, and all are those of a fresh store."""
    file = make_project(tmp_path / "project", samples=12, **short(64))
    other = copied(file, tmp_path / "fresh")
    with pipeline_on(file) as pipeline:
        pipeline.refresh("cam")
    change_config(file, **short(32))
    killed_run(file, "table", 2, "--until", "cam")
    with pipeline_on(file) as pipeline:
        work = pipeline.state().plan_until("cam").of("cam")
        assert work is not None and len(work.partitions) == 2
        assert planned(pipeline.state(), "cam")[1:] == (0, 0)
        pipeline.refresh("cam")
        state = pipeline.state()
    change_config(other, **short(32))
    with pipeline_on(other) as pipeline:
        pipeline.refresh("cam")
        assert_same_cam(state, pipeline.state())
