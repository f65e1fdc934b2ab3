"""Shards among workers: the time is that of the last one to be done."""

import pytest

from gateau_dagster.config import Config
from gateau_dagster.estimate.estimator import Workers, asked_workers, configured_workers


def config(**scoring: object) -> Config:
    models = {"short": {"path": "a"}, "long": {"path": "b"}}
    return Config.model_validate({"models": models, "long_sft": {"path": "x.jsonl"}, "scoring": scoring})


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
    assert configured_workers(config(device="cpu", workers=3)) == Workers(devices=["cpu"] * 3)
    assert len(configured_workers(config(device="cpu")).devices) == 1
    found = asked_workers(config(device="cpu", workers=3), 5)
    assert (len(found.devices), found.sharing) == (5, 1.0)
