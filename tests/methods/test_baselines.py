"""Perplexity, length, response length and random order."""

import hashlib
import math
from typing import Any

import polars as pl
import pytest

from gateau_dagster.selection.statistics import uniform
from tests.methods.configured import configured, method_of, scores_of

IDS = [f"s{number}" for number in range(4)]
PERPLEXITY = pl.DataFrame(
    {
        "sample_id": IDS,
        "digest": IDS,
        "perplexity": [3.0, 90.5, 1.25, 7.0],
        "mean_nll": [math.log(value) for value in [3.0, 90.5, 1.25, 7.0]],
        "context_tokens": [100, 0, 30, 2**31 - 10],
        "response_tokens": [5, 70, 1, 20],
        "truncated_tokens": [11, 0, 0, 2**31 - 10],
    },
    schema_overrides={"context_tokens": pl.Int32, "response_tokens": pl.Int32, "truncated_tokens": pl.Int32},
)


def scores(name: str, ids: list[str] = IDS, **options: Any) -> dict[str, float]:
    stored = {"perplexity/long": PERPLEXITY, "raw_long_sft": pl.DataFrame({"sample_id": ids})}
    return scores_of(name, stored, options=options)


@pytest.mark.parametrize("name", ["perplexity", "length", "response_length", "random"])
def test_they_score_shard_by_shard_and_need_no_table_of_their_own(name: str) -> None:
    method = method_of(name)
    assert method.per_sample and not method.tables()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("perplexity", [3.0, 90.5, 1.25, 7.0]),
        ("length", [116.0, 70.0, 31.0, 2.0**32]),
        ("response_length", [5.0, 70.0, 1.0, 20.0]),
    ],
)
def test_a_column_of_the_long_models_table(name: str, wanted: list[float]) -> None:
    assert scores(name, model="long") == dict(zip(IDS, wanted, strict=True))


def test_random_order_hangs_on_id_and_seed_alone() -> None:
    first = scores("random")
    assert scores("random", list(reversed(IDS))) == first
    assert scores("random", [*IDS, "another"]) == first | {"another": uniform("another", 0)}
    other = scores("random", seed=1)
    assert all(first[one] != other[one] for one in IDS)
    assert scores("random", []) == {}


def test_random_order_is_uniform() -> None:
    """Expect 400 of 4000 draws in a decile, with a standard deviation of 19; neighbouring seeds are not correlated."""
    drawn = [uniform(f"sample {number}", 5) for number in range(4000)]
    assert len(set(drawn)) == 4000 and all(0 <= value < 1 for value in drawn)
    for decile in range(10):
        assert 320 < sum(decile <= 10 * value < decile + 1 for value in drawn) < 480
    both = sum(value < 0.5 and uniform(f"sample {number}", 6) < 0.5 for number, value in enumerate(drawn))
    assert 870 < both < 1130


def test_random_order_stays_what_it_was() -> None:
    """A stored ranking is to come out again with other versions of Python and of this project."""
    lengths = [length.to_bytes(8, "big") for length in (1, 2)]
    digest = hashlib.sha256(lengths[0] + b"0" + lengths[1] + b"s0").hexdigest()
    assert uniform("s0", 0) == int(bin(int(digest, 16))[2:].zfill(256)[:53], 2) / 2**53 == 0.7161004650101715


TEXTS = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c", "d"],
        "context": ["A page.", "", "\u4e00\u9875\u6587\u5b57", "n\u00e9e \U0001f600"],
        "response": ["Yes", "\u00fc", "\u662f", ""],
    }
)


@pytest.mark.parametrize(
    ("name", "wanted"), [("length", [7 + 3, 0 + 2, 12 + 3, 9 + 0]), ("response_length", [3, 2, 3, 0])]
)
def test_without_a_model_lengths_are_bytes(name: str, wanted: list[int]) -> None:
    assert scores_of(name, {"raw_long_sft": TEXTS}) == dict(zip("abcd", map(float, wanted), strict=True))


def test_they_need_no_model_at_all() -> None:
    from gateau_dagster.pipeline.project import parse_project

    config = parse_project(
        "long_sft: {path: a}\nselection: {method: length, compare: [random]}", folder=configured().folder
    )
    assert (config.models, config.training.enabled, config.has_pair) == ({}, False, False)
