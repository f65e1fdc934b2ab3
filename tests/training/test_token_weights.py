"""Weights of tokens, LongCE's and those of far_gain: by a plain loop, and in their places in the mix."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.models.prompt import response_ids
from gateau_dagster.progress import silent
from gateau_dagster.tables import CAM, PERPLEXITY, WEIGHTED_MIX, schema
from gateau_dagster.training.dataset import MixRows, SideBySide
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.token_weights import (
    LONG,
    READS,
    SCORERS,
    TokenWeights,
    longce_weights,
    response_weights,
)
from gateau_dagster.training.train import plan_of, read_mix, train
from gateau_dagster.training.training_mix import build_training_mix
from tests.kit.error_codes import refused
from tests.kit.tiny_models import SlowTokenizer
from tests.training.builders import make_spec, tokenizer
from tests.training.test_training_mix import sample, selected, short

SAMPLES = [replace(sample(number), response=f"the answer is {10**number}") for number in range(5)]


def responses(template: Any = "gateau") -> dict[str, tuple[int, ...]]:
    return {each.sample_id: response_ids(tokenizer(), each, template) for each in SAMPLES}


def tables(loss: str, template: Any = "gateau", lengths: Any = (), **dropped: str) -> dict[str, pl.DataFrame]:
    """Return the tables of the samples that a loss reads, each in another order.

    lengths: numbers of tokens that differ from the responses'. dropped: the sample that a table lacks.
    """
    lengths = {name: len(ids) for name, ids in responses(template).items()} | dict(lengths)
    digests, kinds = {each.sample_id: each.digest for each in SAMPLES}, schema(PERPLEXITY) | schema(CAM)
    found = {}
    for seed, (name, columns) in enumerate(READS[loss].items()):
        rng = np.random.default_rng(seed)
        rows = [
            (sample_id, digests[sample_id], *(rng.random(length).tolist() for _ in columns[2:]))
            for sample_id, length in lengths.items()
        ]
        table = pl.DataFrame(rows, {column: kinds[column] for column in columns}, orient="row")
        table = table.sample(fraction=1, shuffle=True, seed=seed)
        found[name] = table.filter(pl.col("sample_id") != dropped.get(name.split("/")[-1], ""))
    return found


def mixed(
    loss: str,
    found: dict[str, pl.DataFrame],
    *,
    template: Any = "gateau",
    scorer: Any = None,
    kept_context: Any = None,
    **settings: Any,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    training = TrainingConfig.model_validate({"max_length": 512, "loss": loss, **settings})
    chosen, own = selected(*SAMPLES), tokenizer()
    weights = TokenWeights(
        loss=loss,
        weights=response_weights(chosen, found, loss=loss, gamma=training.longce_gamma),
        tokenizer=own,
        scorers=dict.fromkeys(SCORERS[loss], scorer or own),
        template=template,
    )
    given: dict[str, Any] = {"training": training, "template": template, "progress": silent}
    return build_training_mix(chosen, short(0, 1), own, weights=weights, kept_context=kept_context, **given)[:2]


def plain_weights(loss: str, found: dict[str, pl.DataFrame], sample_id: str, gamma: float) -> list[float]:
    """The definition, token by token."""
    rows = [table.row(by_predicate=pl.col("sample_id") == sample_id) for table in found.values()]
    if loss == "longce":
        (_, _, short_), (_, _, long) = rows
        return [min(math.exp(math.log(p) - math.log(q)), gamma) for q, p in zip(short_, long, strict=True)]
    ((_, _, near, far),) = rows
    return [1 + (gamma - 1) * (f - n) if f > n else 1.0 for n, f in zip(near, far, strict=True)]


def test_longce_s_weights_are_the_ratio_at_most_gamma() -> None:
    rng = np.random.default_rng(0)
    least = 2.0**-149
    long, short_ = (rng.random(200).astype(np.float32) ** 4 for _ in range(2))
    long[:3], short_[:3] = (0.0, 0.5, 0.0), (0.0, 0.0, 0.5)
    for gamma in (5.0, 0.5):
        wanted = [min(max(float(p), least) / max(float(q), least), gamma) for p, q in zip(long, short_, strict=True)]
        found = longce_weights(long, short_, gamma=gamma)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx(wanted, rel=1e-6)
        assert found[:3].tolist() == pytest.approx([min(1.0, gamma), gamma, 0.0], abs=1e-40)


LOSSES = pytest.mark.parametrize("loss", ["longce", "far_gain"])


@LOSSES
@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_each_response_token_has_its_own_weight_and_all_others_1(template: Any, loss: str) -> None:
    found = tables(loss, template)
    mix, rejected = mixed(loss, found, template=template, longce_gamma=3)
    assert mix.schema == schema(WEIGHTED_MIX) and rejected.is_empty() and mix.height == 7
    for row in mix.iter_rows(named=True):
        wanted = [1.0] * len(row["input_ids"])
        if row["origin"] == "long":
            ratios = plain_weights(loss, found, row["sample_id"], 3.0)
            # Where its tokens stand is found anew: the first of them is the first with loss.
            first = next(at for at, label in enumerate(row["labels"]) if label != IGNORED)
            assert tuple(row["input_ids"][first : first + len(ratios)]) == responses(template)[row["sample_id"]]
            assert len(row["input_ids"]) == first + len(ratios) + 1, "the token that ends it"
            wanted[first : first + len(ratios)] = ratios
        assert row["weights"] == pytest.approx(wanted, rel=1e-6)


@LOSSES
def test_what_is_cut_off_takes_its_weights_along(loss: str) -> None:
    found = tables(loss)
    whole = {row["sample_id"]: row for row in mixed(loss, found)[0].iter_rows(named=True)}
    longest = max(len(row["input_ids"]) for row in whole.values())
    cut = mixed(loss, found, truncation="right", max_length=longest - 3)[0]
    assert cut["truncated_tokens"].max() == 3
    for row in cut.iter_rows(named=True):
        assert row["weights"] == whole[row["sample_id"]]["weights"][: len(row["input_ids"])]
    left = mixed(loss, found, max_length=longest - 3)[0].filter(pl.col("truncated_tokens") == 3)
    for row in left.iter_rows(named=True):
        full = whole[row["sample_id"]]
        assert row["weights"] == full["weights"][3:] and row["input_ids"][-6:] == full["input_ids"][-6:]
    assert left.height


@LOSSES
def test_a_trimmed_sample_s_tokens_weigh_1(loss: str) -> None:
    found = tables(loss)
    whole, mix = mixed(loss, found)[0], mixed(loss, found, kept_context={"long1": 0, "long2": 500})[0]
    for row, before in zip(mix.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        trimmed = row["sample_id"] == "long1"
        assert row["weights"] == ([1.0] * len(row["input_ids"]) if trimmed else before["weights"])
        assert (row["trimmed_tokens"] > 0) == trimmed


@pytest.mark.parametrize(("loss", "table"), [("longce", "short"), ("longce", "long"), ("far_gain", "cam")])
def test_a_sample_that_a_model_did_not_score_is_rejected_with_the_reason(loss: str, table: str) -> None:
    mix, rejected = mixed(loss, tables(loss, **{table: "long3"}))
    assert rejected["sample_id"].to_list() == ["long3"] and mix.height == 6
    assert f"{' or '.join(READS[loss])} has no row of it" in rejected["reason"].item()


class Shifted(SlowTokenizer):
    """A tokenizer whose ids are the plain one's and 1."""

    def _convert_token_to_id(self, token: str) -> int:
        return (super()._convert_token_to_id(token) or 0) + 1


@LOSSES
def test_other_tokens_are_refused(loss: str) -> None:
    with refused(f"training.{loss}", rf"models\.{SCORERS[loss][0]}"):
        mixed(loss, tables(loss), scorer=Shifted(tokenizer()))
    other = tables(loss, lengths={"long1": 2})
    with refused("storage.out_of_date", "2.*long1"):
        mixed(loss, other)
    older = tables(loss)
    first = next(iter(older))
    older[first] = older[first].with_columns(digest=pl.lit("x"))
    with refused("storage.out_of_date", match="5 .*long0"):
        mixed(loss, older)


def test_models_that_count_other_tokens_are_refused() -> None:
    with refused("models.not_homologous", match="1 .*long1"):
        mixed("longce", tables("longce") | {LONG: tables("longce", lengths={"long1": 2})[LONG]})


@LOSSES
def test_a_mix_without_weights_is_refused(tmp_path: Path, loss: str) -> None:
    spec = make_spec(tmp_path, loss=loss)
    mix = read_mix(spec.mix, weighted=True)
    rows = MixRows(mix, plan_of(spec, mix))
    batch = SideBySide(weighted=True)([rows[0], []])
    assert batch["weights"].dtype == torch.float32 and batch["weights"].shape == batch["labels"].shape
    mix.drop("weights").write_parquet(spec.mix)
    with refused("training.file_damaged"):
        train(spec, lambda _: None)
