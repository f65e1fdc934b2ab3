"""LongCE: weights by a plain loop, in their places in the mix, and a training with them against the slow loop."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.models.prompt import build_prompt, response_ids
from gateau_dagster.progress import silent
from gateau_dagster.tables import PERPLEXITY, TRAINING_MIX, WEIGHTED_MIX, schema
from gateau_dagster.training.dataset import MixRows, SideBySide
from gateau_dagster.training.encode import IGNORED, encode_long
from gateau_dagster.training.longce import COLUMNS, LONG, SHORT, LongCE, response_weights, token_weights
from gateau_dagster.training.train import plan_of, read_mix, train
from gateau_dagster.training.training_mix import build_training_mix
from tests.error_codes import refused
from tests.tiny_models import SlowTokenizer
from tests.training.builders import SAMPLE, make_spec, tokenizer
from tests.training.test_training_mix import sample, selected, short

SAMPLES = [replace(sample(number), response=f"the answer is {10**number}") for number in range(5)]


def responses(template: Any = "gateau") -> dict[str, tuple[int, ...]]:
    return {each.sample_id: response_ids(tokenizer(), each, template) for each in SAMPLES}


def tables(template: Any = "gateau", lengths: Any = (), **dropped: str) -> dict[str, pl.DataFrame]:
    """Return both models' tables of the samples, each in another order.

    lengths: numbers of tokens that differ from the responses'. dropped: the sample that a model rejected.
    """
    lengths = {name: len(ids) for name, ids in responses(template).items()} | dict(lengths)
    digests = {each.sample_id: each.digest for each in SAMPLES}
    found = {}
    for seed, name in enumerate((SHORT, LONG)):
        rng = np.random.default_rng(seed)
        rows = [(sample_id, digests[sample_id], rng.random(length).tolist()) for sample_id, length in lengths.items()]
        kind = {column: schema(PERPLEXITY)[column] for column in COLUMNS}
        table = pl.DataFrame(rows, kind, orient="row").sample(fraction=1, shuffle=True, seed=seed)
        found[name] = table.filter(pl.col("sample_id") != dropped.get(name.split("/")[1], ""))
    return found


def mixed(
    found: dict[str, pl.DataFrame], *, template: Any = "gateau", scorer: Any = None, **settings: Any
) -> tuple[pl.DataFrame, pl.DataFrame]:
    training = TrainingConfig.model_validate({"max_length": 512, "loss": "longce", **settings})
    chosen, own = selected(*SAMPLES), tokenizer()
    weights = response_weights(chosen, found, gamma=training.longce_gamma)
    longce = LongCE(weights=weights, tokenizer=own, scorers={"short": scorer or own, "long": own}, template=template)
    return build_training_mix(
        chosen, short(0, 1), own, training=training, template=template, progress=silent, longce=longce
    )[:2]


def test_weights_are_the_ratio_at_most_gamma() -> None:
    rng = np.random.default_rng(0)
    least = 2.0**-149
    long, short_ = (rng.random(200).astype(np.float32) ** 4 for _ in range(2))
    long[:3], short_[:3] = (0.0, 0.5, 0.0), (0.0, 0.0, 0.5)
    for gamma in (5.0, 0.5):
        wanted = [min(max(float(p), least) / max(float(q), least), gamma) for p, q in zip(long, short_, strict=True)]
        found = token_weights(long, short_, gamma=gamma)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx(wanted, rel=1e-6)
        assert found[:3].tolist() == pytest.approx([min(1.0, gamma), gamma, 0.0], abs=1e-40)


@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_each_response_token_has_its_own_weight_and_all_others_1(template: Any) -> None:
    found = tables(template)
    mix, rejected = mixed(found, template=template, longce_gamma=3)
    assert mix.schema == schema(WEIGHTED_MIX) and rejected.is_empty() and mix.height == 7
    for row in mix.iter_rows(named=True):
        wanted = [1.0] * len(row["input_ids"])
        if row["origin"] == "long":
            rows = [found[name].row(by_predicate=pl.col("sample_id") == row["sample_id"]) for name in (SHORT, LONG)]
            ratios = [
                min(math.exp(math.log(p) - math.log(q)), 3.0) for q, p in zip(rows[0][2], rows[1][2], strict=True)
            ]
            # Where its tokens stand is found anew: the first of them is the first with loss.
            first = next(at for at, label in enumerate(row["labels"]) if label != IGNORED)
            assert tuple(row["input_ids"][first : first + len(ratios)]) == responses(template)[row["sample_id"]]
            assert len(row["input_ids"]) == first + len(ratios) + 1, "the token that ends it"
            wanted[first : first + len(ratios)] = ratios
        assert row["weights"] == pytest.approx(wanted, rel=1e-6)


def test_what_is_cut_off_takes_its_weights_along() -> None:
    found = tables()
    whole = {row["sample_id"]: row for row in mixed(found)[0].iter_rows(named=True)}
    longest = max(len(row["input_ids"]) for row in whole.values())
    cut = mixed(found, truncation="right", max_length=longest - 3)[0]
    assert cut["truncated_tokens"].max() == 3
    for row in cut.iter_rows(named=True):
        assert row["weights"] == whole[row["sample_id"]]["weights"][: len(row["input_ids"])]
    left = mixed(found, max_length=longest - 3)[0].filter(pl.col("truncated_tokens") == 3)
    for row in left.iter_rows(named=True):
        full = whole[row["sample_id"]]
        assert row["weights"] == full["weights"][3:] and row["input_ids"][-6:] == full["input_ids"][-6:]
    assert left.height


@pytest.mark.parametrize("model", ["short", "long"])
def test_a_sample_that_a_model_did_not_score_is_rejected_with_the_reason(model: str) -> None:
    mix, rejected = mixed(tables(**{model: "long3"}))
    assert rejected["sample_id"].to_list() == ["long3"] and mix.height == 6
    assert "perplexity/short or perplexity/long has no row of it" in rejected["reason"].item()


class Shifted(SlowTokenizer):
    """A tokenizer whose ids are the plain one's and 1."""

    def _convert_token_to_id(self, token: str) -> int:
        return (super()._convert_token_to_id(token) or 0) + 1


def test_other_tokens_are_refused() -> None:
    with refused("training.longce", r"models\.short"):
        mixed(tables(), scorer=Shifted(tokenizer()))
    other = tables(lengths={"long1": 2})
    with refused("storage.out_of_date", "2.*long1"):
        mixed(other)
    with refused("models.not_homologous", match="1 .*long1"):
        mixed(tables() | {LONG: other[LONG]})
    older = tables()
    older[SHORT] = older[SHORT].with_columns(digest=pl.lit("x"))
    with refused("storage.out_of_date", match="5 .*long0"):
        mixed(older)


def test_the_response_s_tokens_are_those_of_the_prompt() -> None:
    for template in ("gateau", "chat"):
        prompt = build_prompt(tokenizer(), SAMPLE, max_length=500, template=template)
        assert response_ids(tokenizer(), SAMPLE, template) == prompt.response
        encoded = encode_long(tokenizer(), SAMPLE, template=template, max_length=500)
        assert encoded.block_tokens[0] == len(prompt.ids) - len(prompt.response)


def test_a_mix_without_weights_is_refused(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, loss="longce")
    mix = read_mix(spec.mix, weighted=True)
    rows = MixRows(mix, plan_of(spec, mix))
    assert (
        rows.weighs_tokens and not MixRows(mix.select(schema(TRAINING_MIX).names()), plan_of(spec, mix)).weighs_tokens
    )
    batch = SideBySide(weighted=True)([rows[0], []])
    assert batch["weights"].dtype == torch.float32 and batch["weights"].shape == batch["labels"].shape
    mix.drop("weights").write_parquet(spec.mix)
    with refused("training.file_damaged"):
        train(spec, lambda _: None)
