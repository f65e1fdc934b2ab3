"""Tokens and FLOPs beside what a run charges; time by what was recorded, else by the device's speed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from gateau_dagster import tables
from gateau_dagster.execution.row_checkpoints import RowCheckpoints
from gateau_dagster.execution.shard_scorer import ShardScorer
from gateau_dagster.execution.shard_tables import Piece, TableWork
from gateau_dagster.features.estimates.estimator import (
    SPREAD,
    SPREAD_OF_OTHERS,
    Estimator,
    Workers,
    asked_workers,
    configured_workers,
)
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.models import devices
from gateau_dagster.models.loading import load_for_task
from gateau_dagster.models.model_facts import parameter_count
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast
from gateau_dagster.storage import Stamp, Store
from tests.kit.error_codes import refused
from tests.kit.project import configured, make_project, sample
from tests.kit.tiny_models import replace_model, save_encoder

SAMPLES = 12
NEW = Stamp(fingerprint="f")
PAIR: tuple[str, ...] = ("perplexity/long", "cam")
SELECTION = {
    "compare": ["ladm", "delta_perplexity", "ifd"],
    "options": {
        "ladm": {"span_length": 8, "first_scored": 6},
        "delta_perplexity": {"segment_length": 8, "window": 64, "pairs": 12},
    },
    "segment_lengths": [24],
    "preset": "paper",
    "rule": "diverse",
    "encoder": "enc",
}


def state_on(folder: Path, **sections: Any) -> State:
    return state_of(config=load_project(make_project(folder, samples=SAMPLES, shards=2, **sections)))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(devices, "matrix_product_speed", lambda *_: 1e9)
    return state_on(tmp_path)


def by_shard(state: State, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], WorkForecast]:
    """The estimates of every shard by itself."""
    found: dict[tuple[str, str], WorkForecast] = {}
    for shard in state.shards:
        made = Estimator(state).assets({asset: [shard] for asset in wanted})
        found |= {(asset, shard): estimate for asset, estimate in made.items()}
    return found


def charged(state: State, *assets: str) -> Mapping[str, Mapping[str, Any]]:
    """What a run charges for all samples of the project."""
    config, model, store = state.config, Estimator(state).tables[assets[0]][0], Store(state.store.root + "_charged")
    texts = pl.DataFrame([{"sample_id": one.pop("id"), **one, "digest": "d"} for one in map(sample, range(SAMPLES))])
    store.write(texts, "raw_long_sft", "0", Stamp(fingerprint="f"))
    loaded = load_for_task(config.models[model], dtype="float32", device="cpu", folder=config.folder)
    works = [TableWork(asset=asset, columns=state.asset(asset).columns, stamp=NEW, memory="") for asset in assets]
    piece = Piece(shard="0", works=works, lacking=dict.fromkeys(texts["sample_id"], frozenset(assets)))
    effort = (
        ShardScorer(config, lambda: all_sample_tables(config), model, lambda: loaded, [].append)
        .score(store, piece)
        .effort
    )
    assert all(effort[asset]["samples"] == SAMPLES for asset in assets)
    return effort


def test_the_plan_is_near_what_a_run_takes(tmp_path: Path) -> None:
    """From the lengths of texts alone: within a tenth, though a sample's response is taken for an average one."""
    save_encoder(tmp_path / "enc", "bert", "embedding")
    state = state_on(tmp_path, models={"enc": {"path": "enc", "task": "embedding"}}, selection=SELECTION)
    own = ["span_attention/long", "segment_pairs/long", "response_alone/long", "cam_at/24", "embedding/enc"]
    for step in [("perplexity/short",), ("cam",), PAIR, *((asset,) for asset in own)]:
        found, works = Estimator(state).assets(dict.fromkeys(step, state.shards)), charged(state, *step)
        for asset in step:
            assert found[asset].samples == SAMPLES
            assert found[asset].amount == pytest.approx(works[asset]["tokens"], rel=0.1), asset
            assert found[asset].flops == pytest.approx(works[asset]["flops"], rel=0.1), asset
    assert found["embedding/enc"].seconds is None, "a model that reads texts as a whole has to run first"
    for file in (tmp_path / "enc").glob("*.safetensors"):
        file.unlink()
    estimator = Estimator(state_of(config=state.config))
    without = estimator.assets({"embedding/enc": state.shards})["embedding/enc"]
    assert (without.amount, without.flops) == (found["embedding/enc"].amount, None)
    assert "weights are not on this machine" in estimator.model("enc").unknown


def test_the_other_choice_of_segments_is_estimated_beside_the_configured_one(tmp_path: Path) -> None:
    every, screened = (
        Estimator(state_on(tmp_path / how, scoring={"segments": how, "segment_length": 8}))
        for how in ("all", "screened")
    )
    found = {
        how: each.assets({"cam": each.state.shards})["cam"] for how, each in (("all", every), ("screened", screened))
    }
    for how, other in (("all", "screened"), ("screened", "all")):
        (beside,) = found[how].by_setting.items()
        assert beside[0] == f"scoring.segments: {other}"
        assert (beside[1].amount, beside[1].flops) == (found[other].amount, found[other].flops)
    assert (found["screened"].flops or 0) < (found["all"].flops or 0)


def test_no_attention_is_counted_of_a_model_that_shows_none(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=SAMPLES, shards=2)
    replace_model(tmp_path / "long", "stablelm", seed=2, window=512)
    state = state_of(config=load_project(file))
    for step in (("cam",), PAIR):
        found, works = Estimator(state).assets(dict.fromkeys(step, state.shards)), charged(state, *step)
        for asset in step:
            assert found[asset].amount == pytest.approx(works[asset]["tokens"], rel=0.1), asset
            assert (found[asset].flops or 0) < works[asset]["flops"], "its last layer is computed whole, too"


def test_before_any_run_the_time_is_a_range(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = dict.fromkeys(PAIR, state.shards)
    whole, shards = Estimator(state).assets(wanted), by_shard(state, wanted)
    for asset, found in whole.items():
        assert found.seconds and found.flops and found.amount
        assert found.seconds > found.flops / 1e9, "no pass is as fast as a matrix product"
        assert (found.low, found.high) == (found.seconds / SPREAD, found.seconds * SPREAD)
        parts = [shards[asset, shard] for shard in state.shards]
        for name in ("samples", "amount", "flops", "seconds", "low", "high"):
            assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(found, name))
    alone = {asset: Estimator(state).assets({asset: state.shards})[asset] for asset in PAIR}
    assert alone["perplexity/long"].flops == whole["perplexity/long"].flops
    assert (alone["cam"].flops or 0) > (whole["cam"].flops or 0), "the pass that perplexity takes for both"
    monkeypatch.setattr(devices, "matrix_product_speed", lambda *_: None)
    assert Estimator(state).assets(wanted)["cam"].seconds is None, "no memory for a product"
    assert Estimator(state).assets({"cam": []})["cam"].samples == 0


def test_processes_on_one_device_are_no_faster_together(state: State) -> None:
    scoring = state.config.scoring.model_copy(update={"workers": 2})
    both = state_of(config=state.config.model_copy(update={"scoring": scoring}))
    alone, wanted = Estimator(state).assets({"cam": state.shards})["cam"].seconds, {"cam": state.shards}
    assert Estimator(both).assets(wanted)["cam"].seconds == pytest.approx(alone)


def record(state: State, asset: str, *, slower: float, **changes: Any) -> None:
    """Writes shards of another scorer that took `slower` times the seconds that are expected."""
    settings = {"settings": {"scoring.dtype": changes.pop("dtype", "float32")}}
    for (_, shard), found in by_shard(state, {asset: state.shards}).items():
        effort = {"samples": found.samples, "tokens": found.amount, "flops": found.flops, "device": "cpu", **changes}
        effort |= {"seconds": slower * (found.seconds or 1e-3 * (found.amount or 0))}
        stamp = Stamp(fingerprint="f", scorer="other", inputs=settings, effort=effort)
        state.store.write(pl.DataFrame(schema=tables.schema(tables.CAM)), asset, shard, stamp)


def test_what_was_recorded_on_this_device_comes_first(state: State) -> None:
    wanted = dict.fromkeys((*PAIR, "perplexity/short"), state.shards)
    expected = Estimator(state).assets(wanted)
    record(state, "cam", slower=5.0, device="cuda:0")
    record(state, "perplexity/long", slower=5.0, dtype="bfloat16")
    assert Estimator(state).assets(wanted) == expected, "another device, another precision"
    record(state, "cam", slower=3.0)
    estimator = Estimator(state)
    found = estimator.assets(wanted)
    factor = {asset: (found[asset].seconds or 0.0) / (expected[asset].seconds or 0.0) for asset in wanted}
    assert factor == pytest.approx(dict.fromkeys(wanted, 3.0), rel=0.1)
    assert found["cam"].low == found["cam"].seconds == found["cam"].high
    short = found["perplexity/short"]
    assert short.seconds and short.high == pytest.approx(short.seconds * SPREAD_OF_OTHERS)
    assert found["cam"].grounds.startswith("2 recorded shards on this device")


def test_times_on_another_device_follow_from_its_data_sheet_and_not_from_what_ran_here(state: State) -> None:
    wanted = {"perplexity/short": state.shards}
    record(state, "perplexity/short", slower=3.0)
    found = Estimator(state, AssumedDevices(name="h100")).assets(wanted)["perplexity/short"]
    estimator = Estimator(state, AssumedDevices(name="b200"))
    other, model = estimator.assets(wanted)["perplexity/short"], estimator.model("short")
    assert model.shape is not None and found.flops is not None
    # In float32, of tiny models: tokenising is the slower part, which no other device makes faster.
    read = model.rates.seconds * float(state.index.accepted["characters"].sum())
    speed = 0.73 * 67e12 * 0.8 * model.shape.hidden / (model.shape.hidden + 300)
    assert found.seconds is not None and max(read, found.flops / speed) <= found.seconds <= read + found.flops / speed
    assert found.seconds == other.seconds and found.high == pytest.approx(SPREAD * found.seconds)
    assert "h100's peak of 67 TFLOP/s (float32)" in found.grounds


def test_of_a_model_that_is_not_here_only_the_time_it_took_is_known(tmp_path: Path, state: State) -> None:
    (tmp_path / "short" / "config.json").write_text("{}")
    state, wanted = state_of(config=state.config), {"perplexity/short": state.shards}
    estimator = Estimator(state)
    found = estimator.assets(wanted)["perplexity/short"]
    assert found.amount
    assert (found.flops, found.seconds) == (None, None)
    assert "config.json of short" in estimator.model("short").unknown
    record(state, "perplexity/short", slower=2.0, flops=0.0)
    assert Estimator(state).assets(wanted)["perplexity/short"].seconds == pytest.approx(2e-3 * found.amount)


def test_rows_of_an_interrupted_run_are_not_counted(state: State) -> None:
    first = state.index.accepted.filter(pl.col("shard") == 0).row(0, named=True)
    rows = RowCheckpoints(state.store, "cam", "0", state.resolved("cam").scorer, tables.schema(tables.CAM))
    row = {"segments": 0, "segment_perplexity": [], "segment_attention": [], "cas": None}
    rows.add({"sample_id": first["sample_id"], "digest": first["digest"], **row})
    rows.save()
    found = Estimator(state).assets(dict.fromkeys(PAIR, state.shards))
    assert (found["cam"].samples, found["perplexity/long"].samples) == (SAMPLES - 1, SAMPLES)


@pytest.mark.parametrize("rejected", [0, 1])
def test_rows_that_can_be_kept_are_read_once_a_shard(
    state: State, monkeypatch: pytest.MonkeyPatch, rejected: int
) -> None:
    """Tables of all samples of one version of their shard hold the same ones; one that rejected some is read itself."""
    read: list[str] = []
    for shard in state.shards:
        samples = state.index.accepted.filter(pl.col("shard") == int(shard)).select("sample_id", "digest")
        kept = samples.tail(samples.height - 1)  # the first one is new
        state.store.write(kept, "raw_long_sft", shard, Stamp(fingerprint="r", content="c"))
        for asset in PAIR:
            inputs = {"upstream": {"raw_long_sft": "r"}}
            stamp = Stamp(fingerprint="f", scorer=state.resolved(asset).scorer, inputs=inputs)
            state.store.write(kept.tail(kept.height - rejected * (asset == "cam")), asset, shard, stamp)
    reader = state.store.read
    monkeypatch.setattr(state.store, "read", lambda asset, *rest: (read.append(asset), reader(asset, *rest))[1])
    found = Estimator(state).assets(dict.fromkeys(PAIR, state.shards))
    assert [found[asset].samples for asset in PAIR] == [2, 2 + 2 * rejected]
    assert sorted(read) == sorted(["raw_long_sft", *(["cam"] if rejected else [])] * len(state.shards))


CHARACTERS = 4000  # a thousand tokens, as estimates count without a tokenizer


@pytest.mark.parametrize(
    ("model", "content", "tokens"),
    [
        ({}, {"max_position_embeddings": 128}, 800),
        ({"context": "window"}, {"max_position_embeddings": 128}, 128),
        ({"context": "window", "window": 64}, {"max_position_embeddings": 128}, 64),
        ({"context": "window"}, {"text_config": {"max_position_embeddings": 96}}, 96),
        ({"context": "window"}, {"max_position_embeddings": 4096}, 800),
        ({"context": "window"}, {}, 800),
    ],
)
def test_a_window_limits_the_tokens(tmp_path: Path, model: dict[str, Any], content: dict[str, Any], tokens: int):
    state = state_on(tmp_path, scoring={"max_length": 800}, models={"short": {"path": "short", **model}})
    text = {"id": "a", "context": "c" * (CHARACTERS - 40), "instruction": "i" * 39, "response": "r"}
    (tmp_path / "long.jsonl").write_text(json.dumps(text))
    for file in (tmp_path / "short").glob("tokenizer*"):
        file.unlink()
    (tmp_path / "short" / "config.json").write_text(json.dumps(content))
    state = state_of(config=state.config)
    assert Estimator(state).assets({"perplexity/short": state.shards})["perplexity/short"].amount == tokens


OF_FOLDER = {"short": {"path": "short"}, "long": {"path": "long"}}


def test_parameters_are_counted_from_the_file_s_header(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5).bfloat16()}, tmp_path / "short" / "one.safetensors")
    save_file({"c": torch.zeros(2, 2, 2), "scalar": torch.zeros(())}, tmp_path / "short" / "two.safetensors")
    assert parameter_count(configured(models=OF_FOLDER, folder=tmp_path), "short") == 12 + 5 + 8 + 1
    assert parameter_count(configured(models=OF_FOLDER, folder=tmp_path), "long") is None


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 100])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "model.safetensors").write_bytes(content)
    with refused("models.file_damaged", r"models\.short\.path.*model\.safetensors"):
        parameter_count(configured(models=OF_FOLDER, folder=tmp_path), "short")


def test_workers_that_are_asked_for_take_whole_shards(state: State) -> None:
    wanted = dict.fromkeys((*PAIR, "perplexity/short"), state.shards)
    alone, many = Estimator(state).assets(wanted), Estimator(state, AssumedDevices(workers=64)).assets(wanted)
    each = by_shard(state, wanted)
    for asset, found in many.items():
        longest = max(each[asset, shard].seconds or 0.0 for shard in state.shards)
        assert found.seconds == pytest.approx(longest), "two shards: a third worker has nothing to do"
        before = alone[asset]
        assert (found.samples, found.amount, found.flops) == (before.samples, before.amount, before.flops)
        assert 1.0 < (before.seconds or 0.0) / longest <= 2.0
        assert found.high == pytest.approx(longest * SPREAD)
    assert Estimator(state, AssumedDevices(workers=1)).assets(wanted) == alone


def gpus(count: int, piece_seconds: float | None = None) -> Workers:
    return Workers(devices=[f"cuda:{number}" for number in range(count)], piece_seconds=piece_seconds)


def test_equal_shards_divide() -> None:
    assert gpus(1).seconds([2.0] * 8) == 16.0
    assert gpus(4).seconds([2.0] * 8) == 4.0
    assert gpus(3).seconds([2.0] * 8) == 6.0, "two have a third one to do, for which the other waits"
    assert gpus(3).seconds([]) == 0.0


def test_no_number_of_workers_is_faster_than_the_largest_shard() -> None:
    shards = [1.0, 7.0, 2.0, 1.0]
    for count in (2, 4, 64):
        assert gpus(count).seconds(shards) >= max(7.0, sum(shards) / count)
    assert gpus(64).seconds(shards) == 7.0
    assert gpus(2).seconds([1.0, 1.0, 8.0]) == 9.0, "the queue is not sorted by length"


def test_pieces_are_smaller_than_shards() -> None:
    assert gpus(4, piece_seconds=1.0).seconds([8.0]) == 2.0
    assert gpus(8, piece_seconds=1.0).seconds([1.0, 7.0, 0.1]) == pytest.approx(1.1)
    assert gpus(64, piece_seconds=600.0).seconds([8.0]) == 8.0, "a short shard is one piece"


def test_workers_on_one_device_take_turns() -> None:
    both = Workers(devices=["cpu", "cpu"])
    assert both.sharing == 2.0
    # Each takes twice as long beside the other.
    assert both.seconds([2.0, 6.0]) == 4.0
    assert Workers(devices=["cuda:0", "cuda:1"] * 2).seconds([2.0] * 4) == 2.0


def test_more_workers_than_shards_have_nothing_to_do() -> None:
    assert gpus(8).for_shards(3).devices == ["cuda:0", "cuda:1", "cuda:2"]
    assert len(gpus(8).for_shards(0).devices) == 1
    assert len(gpus(8, piece_seconds=60.0).for_shards(3).devices) == 8


def test_how_many_there_are() -> None:
    three = configured(scoring={"device": "cpu", "workers": 3})
    assert configured_workers(three) == Workers(devices=["cpu"] * 3)
    assert len(configured_workers(configured(scoring={"device": "cpu"})).devices) == 1
    found = asked_workers(three, 5)
    assert (len(found.devices), found.sharing) == (5, 1.0)
