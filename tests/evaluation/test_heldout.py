"""Held-out perplexity against a slow twin: own prompts, full logits, float64, plain loops."""

import math

import polars as pl
import pytest
import torch

from gateau_dagster import tables
from gateau_dagster.config import HeldoutConfig, ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.heldout import context_lengths, heldout_perplexity, heldout_table
from gateau_dagster.models.loading import LoadedModel

from .builders import loaded, sample

_CONFIG = HeldoutConfig(buckets=[20, 60])
_SCORING = ScoringConfig(dtype="float32")


def _slow_nll(model: LoadedModel, one: Sample, max_length: int) -> float:
    """Mean NLL of the response: the prompt written down from the design's formula, the whole matrix of logits."""
    parts = ["### Input: ", one.context, f"\n\n### Instruction: {one.instruction}\n\n### Response: ", one.response]
    before, context, after, response = (model.tokenizer.encode(part, add_special_tokens=False) for part in parts)
    bos = [model.tokenizer.bos_token_id]
    while len(bos + before + context + after + response) > max_length:
        context = context[1:]
    ids = torch.tensor([bos + before + context + after + response])
    with torch.no_grad():
        logits = model.model(input_ids=ids).logits[0].double()
    start = ids.shape[1] - len(response)
    return -sum(torch.log_softmax(logits[start + i - 1], -1)[t].item() for i, t in enumerate(response)) / len(response)


def test_table_against_the_slow_twin() -> None:
    samples = [sample(i, context=length) for i, length in enumerate((5, 20, 21, 60, 61, 130, 12))]
    models = {"base": loaded(0), "checkpoint": loaded(1)}
    base, checkpoint = models.values()
    result = heldout_perplexity(base, checkpoint, samples, config=_CONFIG, scoring=_SCORING, max_length=100)
    lines = []
    groups = {"0–20": (0, 1, 6), "21–60": (2, 3), "over 60": (4, 5), "all": range(7)}
    for label, members in groups.items():
        for name, model in models.items():
            nll = [_slow_nll(model, samples[i], 100) for i in members]
            lines.append((label, name, len(nll), sum(nll) / len(nll), math.prod(map(math.exp, nll)) ** (1 / len(nll))))
    want = pl.DataFrame(lines, schema=tables.schema(tables.HELDOUT), orient="row")
    assert result.table.schema == tables.schema(tables.HELDOUT)
    assert result.table.select("bucket", "model", "samples").equals(want.select("bucket", "model", "samples"))
    for column in ("mean_nll", "perplexity"):
        assert result.table[column].to_list() == pytest.approx(want[column].to_list(), rel=1e-5)
    assert not result.rejected
    # Sample 5 lost the left end of its context, and still counts by its whole length.
    assert result.per_sample.filter(sample_id="s05", model="base")["truncated_tokens"].item() > 0


def test_a_sample_that_cannot_be_scored_counts_for_neither_model() -> None:
    samples = [sample(0, context=5), sample(1, context=5, response=80)]
    result = heldout_perplexity(loaded(0), loaded(1), samples, config=_CONFIG, scoring=_SCORING, max_length=60)
    assert result.per_sample["sample_id"].unique().to_list() == ["s00"]
    (reject,) = result.rejected
    assert reject.sample_id == "s01"
    assert reject.reason.startswith("base: instruction and response alone take")


def test_ranges_without_samples_have_no_row_and_equal_models_equal_rows() -> None:
    result = heldout_perplexity(loaded(0), loaded(0), [sample(0, context=5)], config=_CONFIG, scoring=_SCORING,
                                max_length=100)  # fmt: skip
    assert result.table["bucket"].to_list() == ["0–20", "0–20", "all", "all"]
    assert result.table["perplexity"].n_unique() == 1
    assert heldout_table(result.per_sample.clear(), _CONFIG).is_empty()


def test_progress_ends_at_the_total() -> None:
    seen = []
    samples = [sample(i, context=5) for i in range(3)]
    heldout_perplexity(loaded(0), loaded(1), samples, config=_CONFIG, scoring=_SCORING, max_length=100,
                       progress=lambda done, total, unit, note="": seen.append((done, total, unit, note)))  # fmt: skip
    assert seen[0] == (1, 6, "samples", "base")
    assert seen[-1] == (6, 6, "samples", "checkpoint")
    assert [done for done, *_ in seen] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("samples", [[], [sample(0, context=5, response=80)]])
def test_no_sample_is_an_error_with_a_cure(samples: list[Sample]) -> None:
    with pytest.raises(GateauError, match=r"none of \d held-out samples could be scored .*Raise scoring\.max_length"):
        heldout_perplexity(loaded(0), loaded(1), samples, config=_CONFIG, scoring=_SCORING, max_length=40)


def test_context_lengths_are_those_of_the_table() -> None:
    samples = [sample(i, context=length) for i, length in enumerate((0, 5, 61))]
    base = loaded(0)
    frame = pl.DataFrame({"sample_id": [one.sample_id for one in samples], "context": [one.context for one in samples]})
    found = context_lengths(base.tokenizer, frame)
    assert found.schema == {"sample_id": pl.String, "context_tokens": pl.Int32}
    result = heldout_perplexity(base, base, samples, config=_CONFIG, scoring=_SCORING, max_length=400)
    rows = result.per_sample.filter(pl.col("model") == "base")
    assert dict(found.iter_rows()) == dict(rows.select("sample_id", "context_tokens").iter_rows())
