"""Held-out perplexity against a slow twin: own prompts, full logits, float64, plain loops."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.evaluation.benchmark import MODELS, Materials, Measured
from gateau_dagster.features.evaluation.benchmarks.heldout import (
    HELDOUT,
    OFFERED,
    Buckets,
    Heldout,
    HeldoutOptions,
    candidates,
    context_lengths,
    heldout_bars,
    heldout_chart,
    heldout_ids,
    heldout_sentence,
)
from tests.features.evaluation.builders import heldout_table, loaded, sample, slow_nll
from tests.kit.error_codes import refused
from tests.kit.project import configured

# Length ranges, and which samples are held out.


SOME: dict[str, Any] = {"count": 64, "buckets": Buckets.of([4096])}


def _frames(lengths: dict[str, int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    reserved = pl.DataFrame({"sample_id": list(lengths), "digest": [f"digest of {name}" for name in lengths]})
    return reserved, pl.DataFrame({"sample_id": list(lengths), "context_tokens": list(lengths.values())})


@given(ends=st.lists(st.integers(1, 50), min_size=1, max_size=5), tokens=st.integers(0, 60))
def test_index_is_the_count_of_ends_below(ends: list[int], tokens: int) -> None:
    buckets = Buckets.of(ends)
    assert buckets.index(tokens) == sum(end < tokens for end in set(ends))
    assert len(buckets.labels) == len(set(ends)) + 1
    assert Buckets.of([2000, 10, 10]).labels == ("0–10", "11–2,000", "over 2,000")


def test_ranges_give_alike_until_one_is_empty() -> None:
    lengths = {f"a{i}": 5 for i in range(20)} | {f"b{i}": 50 for i in range(2)} | {f"c{i}": 500 for i in range(20)}
    ids = heldout_ids(*_frames(lengths), count=8, buckets=Buckets.of([10, 100]))
    assert [sum(name[0] == letter for name in ids) for letter in "abc"] == [3, 2, 3]
    assert ids == sorted(set(ids))


def test_the_choice_does_not_depend_on_the_order_of_rows_and_hardly_on_other_samples() -> None:
    lengths = {f"s{i}": i for i in range(40)}
    wanted: dict[str, Any] = {"count": 10, "buckets": Buckets.of([20])}
    frames = _frames(lengths)
    ids = heldout_ids(*frames, **wanted)
    reserved, scores = (frame.reverse() for frame in frames)
    assert heldout_ids(reserved, scores, **wanted) == ids
    more = heldout_ids(*_frames({**lengths, "new": 5}), **wanted)
    assert len(set(ids) & set(more)) >= 9


def test_a_content_is_measured_once() -> None:
    reserved = pl.DataFrame({"sample_id": ["a", "c", "d"], "digest": ["1", "2", "2"]})
    lengths = reserved.select("sample_id", pl.lit(5).alias("context_tokens"))
    assert heldout_ids(reserved, lengths, **SOME) == ["a", "c"]


def test_samples_of_unknown_length_are_left_out() -> None:
    reserved, lengths = _frames({"a": 1, "b": 2, "c": 3})
    assert heldout_ids(reserved, lengths.filter(pl.col("sample_id") != "b"), **SOME) == ["a", "c"]


def test_candidates_are_the_first_of_what_may_be_measured() -> None:
    reserved, lengths = _frames({f"s{i}": 10 * i for i in range(200)})
    buckets = Buckets.of([10_000])
    offered = candidates(reserved, count=5)
    assert len(offered) == len(set(offered)) == OFFERED * 5
    assert candidates(reserved.reverse(), count=5) == offered
    counted = lengths.filter(pl.col("sample_id").is_in(offered))
    few, all_of_them = (heldout_ids(reserved, each, count=5, buckets=buckets) for each in (counted, lengths))
    assert few == all_of_them


def _compared(materials: Materials, **options: Any) -> Measured:
    benchmark = Heldout(materials.config, HeldoutOptions(**options))
    return benchmark.compare({name: benchmark.measure(materials, name) for name in MODELS})


def _measured(samples: list[Sample], *, checkpoint: int = 1, max_length: int = 100) -> Measured:
    known = {one.sample_id: one for one in samples}
    models = {"base": loaded(0), "checkpoint": loaded(checkpoint)}
    given = replace(_materials(known, [], max_length=max_length), model=models.__getitem__)
    return _compared(given, buckets=[20, 60])


def test_table_against_the_slow_twin() -> None:
    samples = [sample(i, context=length) for i, length in enumerate((5, 20, 21, 60, 61, 130, 12))]
    models = {"base": loaded(0), "checkpoint": loaded(1)}
    result = _measured(samples)
    lines = []
    groups = {"0–20": (0, 1, 6), "21–60": (2, 3), "over 60": (4, 5), "all": range(7)}
    for label, members in groups.items():
        for name, model in models.items():
            nll = [slow_nll(model, samples[i], 100) for i in members]
            lines.append((label, name, len(nll), sum(nll) / len(nll), math.prod(map(math.exp, nll)) ** (1 / len(nll))))
    want = pl.DataFrame(lines, schema=tables.schema(HELDOUT), orient="row")
    assert result.table.schema == tables.schema(HELDOUT)
    assert result.table.select("bucket", "model", "samples").equals(want.select("bucket", "model", "samples"))
    for column in ("mean_nll", "perplexity"):
        assert result.table[column].to_list() == pytest.approx(want[column].to_list(), rel=1e-5)
    assert not result.rejected  # sample 6 lost the left end of its context, and still counts by its whole length


def test_a_sample_that_cannot_be_scored_counts_for_neither_model() -> None:
    samples = [sample(0, context=5), sample(1, context=5, response=80)]
    result = _measured(samples, max_length=60)
    assert result.table["samples"].unique().to_list() == [1]
    (reject,) = result.rejected
    assert reject.sample_id == "s01"
    assert reject.reason.startswith("base: instruction and response alone take")


def test_ranges_without_samples_have_no_row_and_equal_models_equal_rows() -> None:
    result = _measured([sample(0, context=5)], checkpoint=0)
    assert result.table["bucket"].to_list() == ["0–20", "0–20", "all", "all"]
    assert result.table["perplexity"].n_unique() == 1


@pytest.mark.parametrize("samples", [[], [sample(0, context=5, response=80)]])
def test_no_sample_is_an_error_with_a_cure(samples: list[Sample]) -> None:
    with refused("evaluation.heldout", r"scoring\.max_length"):
        _measured(samples, max_length=40)


def test_context_lengths_are_those_of_the_tokenizer() -> None:
    found = context_lengths(loaded().tokenizer, [sample(i, context=length) for i, length in enumerate((0, 5, 61))])
    assert found.schema == {"sample_id": pl.String, "context_tokens": pl.Int32}
    assert found["context_tokens"].to_list() == [0, 5, 61]


def _materials(
    samples: dict[str, Sample], asked: list[list[str]], *models: str, kept_out: str = "", max_length: int = 200
) -> Materials:
    """All samples but `kept_out` are reserved; the models are told apart by their seed."""
    rows = [(name, one.digest) for name, one in samples.items()]
    digests = pl.DataFrame(rows, schema={"sample_id": pl.String(), "digest": pl.String()}, orient="row")
    split = digests.select("sample_id", reserved=pl.col("sample_id") != kept_out)

    def found(ids: Collection[str]) -> list[Sample]:
        asked.append(sorted(ids))
        return [samples[name] for name in asked[-1]]

    return Materials(
        config=configured(scoring={"dtype": "float32", "max_length": max_length}),
        reads={"raw_long_sft", "document_split"},
        shards=lambda asset, columns: iter([{"raw_long_sft": digests, "document_split": split}[asset].select(columns)]),
        samples=found,
        model={name: loaded(seed) for seed, name in enumerate(models)}.__getitem__,
    )


def _four() -> dict[str, Sample]:
    texts = [sample(i, context=length) for i, length in enumerate((5, 30, 70, 90))]
    return {one.sample_id: one for one in texts}


def test_reserved_samples_are_measured_whatever_was_selected() -> None:
    asked: list[list[str]] = []
    outcome = _compared(_materials(_four(), asked, "base", "checkpoint", kept_out="s00"), samples=2, buckets=[40])
    assert outcome.table["bucket"].to_list() == [*["0–40"] * 2, *["over 40"] * 2, *["all"] * 2]
    assert outcome.table["samples"].to_list() == [1, 1, 1, 1, 2, 2]
    assert asked[0] == ["s01", "s02", "s03"] and {"s01"} < {*asked[1]}, "the lengths of all, then two of them"
    assert len(asked) == 2, "once for both models"


def test_a_variant_is_scored_on_the_same_samples() -> None:
    samples = _four()
    asked: list[list[str]] = []
    materials = _materials(samples, asked, "base", "robust-0.1", kept_out="s00")
    benchmark = Heldout(materials.config, HeldoutOptions(samples=2, buckets=[40]))
    table = benchmark.measure(materials, "robust-0.1").table
    assert table.schema == tables.schema(tables.SCORES)
    assert table["question_id"].to_list() == asked[1] and table["group"].to_list() == ["0–40", "over 40"]
    wanted = [slow_nll(loaded(1), samples[name], 200) for name in asked[1]]
    assert table["value"].to_list() == pytest.approx(wanted, rel=1e-5)
    samples["s01"] = sample(1, context=30, response=210)
    anew = _materials(samples, [], "base", "robust-0.1", kept_out="s00")
    (reject,) = benchmark.measure(anew, "robust-0.1").rejected
    assert (reject.sample_id == "s01" and "210" in reject.reason) or "response alone take" in reject.reason


# Held-out perplexity in a sentence and in bars.


TABLE = pl.DataFrame(
    [("0–9", "base", 4, 1.0, 2.718), ("0–9", "checkpoint", 4, 0.5, 1.649), ("all", "base", 4, 1.0, 2.5)],
    schema=tables.schema(HELDOUT),
    orient="row",
)


@pytest.mark.parametrize(
    ("tuned", "words"), [(4.0, "20.0\u00a0% lower than"), (6.0, "20.0\u00a0% higher than"), (5.0, "is equal to")]
)
def test_heldout_sentence(tuned: float, words: str) -> None:
    all_of_checkpoint = (pl.col("bucket") == "all") & (pl.col("model") == "checkpoint")
    table = heldout_table().with_columns(perplexity=pl.when(all_of_checkpoint).then(tuned).otherwise("perplexity"))
    assert words in heldout_sentence(table)
    assert "Over 3 samples" in heldout_sentence(table)


def test_large_perplexities_are_written_out() -> None:
    values = [12_345.6, 999.7, 100.0, 99.9]
    rows = [(f"{place}", "base", 1, 1.0, value) for place, value in enumerate(values)]
    axis = heldout_bars(pl.DataFrame(rows, schema=tables.schema(HELDOUT), orient="row")).axes[0]
    assert [text.get_text() for text in axis.texts] == ["12,346", "1,000", "100", "99.9"]


def test_the_chart_begins_with_all_samples() -> None:
    found = [(each.name, each.value, each.reference) for each in heldout_chart(TABLE).amounts]
    assert found == [("all base", 2.5, True), ("0–9 base", 2.718, True), ("0–9 checkpoint", 1.649, False)]
    assert not heldout_chart(TABLE.clear()).amounts
