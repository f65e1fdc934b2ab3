"""Token weights and `training.trim`: the tables that the mix reads, what is made again, and what is refused."""

from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.selection.trim import trim_figures, trims
from gateau_dagster.tables import TRAINING_MIX, TRIMMED_TOKENS, WEIGHTED_MIX
from gateau_dagster.training.token_weights import READS
from tests.assets.harness import pipeline_on
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project, write_model
from tests.kit.tiny_models import tokenizer
from tests.pipeline.configured import configured, stale, versions
from tests.pipeline.fields import CHOSEN, MIXED, REPORT

RANDOM: dict[str, Any] = {"selection.method": "random"}
TRIM: dict[str, Any] = {"training.trim": True}
PAIR = ("perplexity/short", "perplexity/long")
WINDOW = {"short": {"path": "short", "context": "window", "window": 40}}
LOSSES = pytest.mark.parametrize("loss", [*READS])


def loss_of(loss: str) -> dict[str, Any]:
    return {"training.loss": loss}


@LOSSES
def test_the_mix_reads_the_tables_which_are_made_for_it(tmp_path: Path, loss: str) -> None:
    plain, weighing = (pipeline_of(configured(tmp_path, **RANDOM, **more)) for more in ({}, loss_of(loss)))
    every = {*PAIR, "cam"}
    assert not every & plain.required and every & weighing.required == {*READS[loss]}
    assert weighing.compares_the_pair and not plain.compares_the_pair
    wanted = {**plain.by_key["training_mix"].reads, **dict.fromkeys(READS[loss], "fingerprint")}
    assert weighing.by_key["training_mix"].reads == wanted
    assert [each.by_key["training_mix"].columns for each in (plain, weighing)] == [TRAINING_MIX, WEIGHTED_MIX]


def test_trimming_reads_the_pair_and_cam(tmp_path: Path) -> None:
    plain, trimming = (pipeline_of(configured(tmp_path, **RANDOM, **more)) for more in ({}, TRIM))
    assert trimming.required - plain.required == {*PAIR, "cam"}
    assert trimming.by_key["selected_subset"].reads == plain.by_key["selected_subset"].reads
    assert trimming.by_key["training_mix"].columns == (*TRAINING_MIX, TRIMMED_TOKENS)
    both = pipeline_of(configured(tmp_path, **TRIM, **loss_of("far_gain"))).by_key["training_mix"]
    assert both.columns == (*WEIGHTED_MIX, TRIMMED_TOKENS)


@pytest.mark.parametrize("setting", [loss_of("longce"), loss_of("far_gain"), TRIM])
def test_conversations_alone_are_neither_weighed_nor_trimmed(tmp_path: Path, setting: dict[str, Any]) -> None:
    found = pipeline_of(configured(tmp_path, **RANDOM, **setting, **{"training.mix.without_long": True}))
    assert not {*PAIR, "cam"} & {*found.by_key["training_mix"].reads}
    assert found.by_key["training_mix"].columns[: len(TRAINING_MIX)] == TRAINING_MIX


@LOSSES
def test_loss_and_gamma_make_the_mix_again_and_what_is_trained_on_it(tmp_path: Path, loss: str) -> None:
    plain, base, other = (
        versions(configured(tmp_path, **more))
        for more in ({}, loss_of(loss), {**loss_of(loss), "training.longce_gamma": 4.0})
    )
    assert stale(plain, base) == stale(base, other) == MIXED


def test_trimming_makes_the_mix_again_and_the_choice_only_if_it_counts_tokens(tmp_path: Path) -> None:
    budget = {"selection.rule": "token_budget", "selection.budget": 100}
    counted = {"selection.rule": "mix", "selection.count": 3, "selection.compare": ["gateau"]}
    for rule, again in (({}, MIXED), (budget, CHOSEN), (counted, MIXED)):
        plain, trimming = (versions(configured(tmp_path, **rule, **more)) for more in ({}, TRIM))
        assert stale(plain, trimming) == again
        other = versions(configured(tmp_path, **rule, **TRIM, **{"training.seed": 7}))
        assert stale(trimming, other) == again, "other samples stay whole"
    untrained = {"training.enabled": False, "selection.rule": "token_budget", "selection.budget": 100}
    assert stale(*(versions(configured(tmp_path, **untrained, **more)) for more in ({}, TRIM))) == REPORT


def test_another_loss_makes_a_trimmed_mix_again(tmp_path: Path) -> None:
    """Both weighted losses read the same tables then."""
    first, second = (versions(configured(tmp_path, **loss_of(loss), **TRIM)) for loss in ("longce", "far_gain"))
    assert stale(first, second) == MIXED


def test_variants_read_them_where_they_have_long_samples(tmp_path: Path) -> None:
    variants = {"methods": ["random"], "also": ["short_only"]}
    for setting, columns in ((loss_of("longce"), PAIR), (loss_of("far_gain"), ("cam",)), (TRIM, (*PAIR, "cam"))):
        asset = pipeline_of(configured(tmp_path, **setting, variants=variants)).by_key["variant/training_mix"]
        assert {name: {*columns} <= {*part.reads} for name, part in asset.parts.items() if part.reads} == {
            "random": True,
            "short_only": False,
        }


@LOSSES
def test_another_tokenizer_is_told_before_anything_runs(tmp_path: Path, loss: str) -> None:
    models = {"other": {"path": "other"}}
    file = make_project(tmp_path, samples=8, shards=2, training=True, models=models, selection={"method": "random"})
    write_model(tmp_path / "other", seed=3, tokenizer=tokenizer())
    change_config(file, training={"model": "other", "loss": loss}, evaluation={"enabled": False})
    with refused(f"training.{loss}"):
        checked_plan(state_of(config=load_project(file)))
    change_config(file, training={"loss": "token"})
    checked_plan(state_of(config=load_project(file)))


def scored_project(folder: Path, **sections: Any) -> Path:
    """A project of 40 samples, theta_A with a window of 40 tokens, and a store whose tables say which samples are far.

    The pair is untrained, so its figures tell nothing. Of every eighth sample a far segment gives the first token. All
    others are predicted without any text, and score as their numbers.
    """
    file = make_project(folder, samples=40, shards=2, training=True, models=WINDOW, **sections)
    change_config(file, evaluation={"enabled": False})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until="combined_scores")
        state = pipeline.state()
        for shard, name in product(state.shards, (*PAIR, "cam")):
            table, stamp = state.store.read(name, shard), state.store.stamp(name, shard)
            assert stamp is not None
            rows = [row | known(name, row) for row in table.iter_rows(named=True)]
            state.store.write(pl.DataFrame(rows, table.schema), name, shard, stamp)
    return file


def known(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a row that say whether its sample needs far text."""
    if table != "cam":
        return {"mean_probability": 0.5 if table == PAIR[0] else 0.5 + number_of(row["sample_id"]) / 100}
    far, others = row["sample_id"] in FAR, len(row["near_probability"]) - 1
    return {
        "near_probability": [0.0] * (others + 1),
        "far_probability": [0.75 if far else 0.0, *[0.0] * others],
        "far_segment": [0 if far else None, *[None] * others],
        "segment_gain": [0.0] * row["segments"],
        "far_gain": 0.4 if far else 0.0,
    }


FAR = [f"s{number:05d}" for number in range(0, 40, 8)]


def number_of(sample_id: str) -> int:
    return int(sample_id[1:])


@pytest.mark.long
def test_the_mix_in_the_store_is_trimmed_and_a_budget_holds_more(tmp_path: Path) -> None:
    file = scored_project(tmp_path)
    change_config(file, selection={"method": "random", "rule": "token_budget", "fraction": None, "budget": 1500})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until="training_mix")
        whole = pipeline.state().read("training_mix")
        change_config(file, training={"trim": True, "loss": "far_gain"})
        pipeline.refresh(until="training_mix")
        state = pipeline.state()
        mix, chosen, shown = state.read("training_mix"), state.read("selected_subset"), pipeline.latest("training_mix")
    short, long, cam = (state.read(name) for name in (*PAIR, "cam"))
    left = dict(trims(trim_figures(cam, long, short), seed=42).iter_rows())
    assert 0 < len(left) < 40 and not {*FAR} & {*left}
    tokens = long.with_columns(left=pl.col("sample_id").replace_strict(left, default=pl.col("context_tokens")))
    cost = dict(tokens.select("sample_id", pl.col("left") + pl.col("response_tokens")).iter_rows())
    contexts = dict(tokens.select("sample_id", "context_tokens").iter_rows())
    assert sum(cost[name] for name in chosen["sample_id"]) <= 1500 and chosen.height > whole.height
    before = {row["sample_id"]: row["input_ids"] for row in whole.iter_rows(named=True)}
    for row in mix.iter_rows(named=True):
        name = row["sample_id"]
        assert row["trimmed_tokens"] == contexts[name] - left.get(name, contexts[name])
        assert name not in before or len(before[name]) - len(row["input_ids"]) == row["trimmed_tokens"]
        assert [weight for weight in row["weights"] if weight != 1.0] == ([1 + 4 * 0.75] if name in FAR else [])
    trimmed = mix.filter(pl.col("trimmed_tokens") > 0)
    assert shown.metadata["trimmed_sequences"].value == trimmed.height > 0
    assert shown.metadata["trimmed_tokens"].value == trimmed["trimmed_tokens"].sum()


@pytest.mark.long
@LOSSES
def test_the_mix_of_random_data_has_the_tables_weights(tmp_path: Path, loss: str) -> None:
    """Compare with a loop over the stored tables; only what the loss reads is computed for it."""
    random = {"method": "random", "fraction": 0.5}
    file = make_project(tmp_path, samples=8, shards=1, training=True, models=WINDOW, selection=random)
    change_config(file, training={"loss": loss, "longce_gamma": 1.5}, evaluation={"enabled": False})
    change_config(file, variants={"methods": ["random"], "seeds": [1, 2]})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until="training_mix")
        pipeline.refresh(until="variant/training_mix")
        state = pipeline.state()
        names = [name for name, each in state.config.variant_set.items() if each.kind == "selected"]
        mixes = [state.read("training_mix"), *(state.read("variant/training_mix", None, name) for name in names)]
        tables = [{row["sample_id"]: row for row in state.read(name).iter_rows(named=True)} for name in READS[loss]]
    assert len(mixes) == 3
    for row in (row for mix in mixes for row in mix.iter_rows(named=True)):
        figures = [table[row["sample_id"]] for table in tables]
        if loss == "longce":
            short, long = (each["token_probability"] for each in figures)
            weights = [min(b / a, 1.5) for a, b in zip(short, long, strict=True)]
        else:
            near, far = (figures[0][f"{name}_probability"] for name in ("near", "far"))
            weights = [1 + 0.5 * max(0.0, f - n) for n, f in zip(near, far, strict=True)]
        first = next(at for at, label in enumerate(row["labels"]) if label >= 0)
        wanted = [1.0] * first + weights + [1.0] * (len(row["weights"]) - first - len(weights))
        assert row["weights"] == pytest.approx(wanted, rel=1e-6)
        assert loss == "far_gain" or len({*weights}) > 1
    assert any(weight > 1 for mix in mixes for weights in mix["weights"] for weight in weights)
    assert all(mix.height == 4 for mix in mixes)
    assert (tmp_path / "store" / "cam").exists() == (loss == "far_gain")
