"""What `training.loss: longce` makes the mix read, what is made again for it, and whom it is refused."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.pipeline.pipeline import pipeline_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.tables import TRAINING_MIX, WEIGHTED_MIX
from tests.assets.harness import pipeline_on
from tests.error_codes import refused
from tests.pipeline.configured import configured, stale, versions
from tests.pipeline.fields import MIXED
from tests.project import change_config, make_project, write_model
from tests.tiny_models import tokenizer

LONGCE: dict[str, Any] = {"training.loss": "longce"}
RANDOM: dict[str, Any] = {"selection.method": "random"}
PAIR = {"perplexity/short": "fingerprint", "perplexity/long": "fingerprint"}


def test_the_mix_reads_the_pair_which_is_made_for_it(tmp_path: Path) -> None:
    plain, weighing = (pipeline_of(configured(tmp_path, **RANDOM, **more)) for more in ({}, LONGCE))
    assert not {*PAIR} & plain.required and {*PAIR} <= weighing.required
    assert "cam" not in weighing.required
    assert weighing.by_key["training_mix"].reads == {**plain.by_key["training_mix"].reads, **PAIR}
    assert [each.by_key["training_mix"].columns for each in (plain, weighing)] == [TRAINING_MIX, WEIGHTED_MIX]


def test_conversations_alone_are_not_weighed(tmp_path: Path) -> None:
    found = pipeline_of(configured(tmp_path, **RANDOM, **LONGCE, **{"training.mix.without_long": True}))
    assert not {*PAIR} & {*found.by_key["training_mix"].reads}
    assert found.by_key["training_mix"].columns == WEIGHTED_MIX


def test_loss_and_gamma_make_the_mix_again_and_what_is_trained_on_it(tmp_path: Path) -> None:
    plain, base, other = (
        versions(configured(tmp_path, **more)) for more in ({}, LONGCE, {**LONGCE, "training.longce_gamma": 4.0})
    )
    assert stale(plain, base) == stale(base, other) == MIXED


def test_variants_read_it_where_they_have_long_samples(tmp_path: Path) -> None:
    variants = {"methods": ["random"], "also": ["short_only"]}
    asset = pipeline_of(configured(tmp_path, **LONGCE, variants=variants)).by_key["variant/training_mix"]
    assert asset.columns == WEIGHTED_MIX
    assert {name: {*PAIR} <= {*part.reads} for name, part in asset.parts.items() if part.reads} == {
        "random": True,
        "short_only": False,
    }


def test_another_tokenizer_is_told_before_anything_runs(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=8, shards=2, training=True, models={"other": {"path": "other"}})
    write_model(tmp_path / "other", seed=3, tokenizer=tokenizer())
    change_config(file, training={"model": "other", "loss": "longce"})
    with refused("training.longce"):
        State(config=load_project(file)).plan()
    change_config(file, training={"loss": "token"})
    State(config=load_project(file)).plan()


@pytest.mark.long
def test_the_mix_in_the_store_has_the_pair_s_weights(tmp_path: Path) -> None:
    """Compare with a loop over the stored tables; only the pair's perplexities are computed for it."""
    file = make_project(tmp_path, samples=8, shards=1, training=True, selection={"method": "random", "fraction": 0.5})
    change_config(file, training={"loss": "longce", "longce_gamma": 1.5}, evaluation={"enabled": False})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until="training_mix")
        state = pipeline.state()
        mix = state.read("training_mix")
        tables = {name: {row["sample_id"]: row for row in state.read(name).iter_rows(named=True)} for name in PAIR}
    assert mix.height == 4
    for row in mix.iter_rows(named=True):
        short, long = (tables[name][row["sample_id"]]["token_probability"] for name in PAIR)
        ratios = [min(b / a, 1.5) for a, b in zip(short, long, strict=True)]
        first = next(at for at, label in enumerate(row["labels"]) if label >= 0)
        wanted = [1.0] * first + ratios + [1.0] * (len(row["weights"]) - first - len(ratios))
        assert row["weights"] == pytest.approx(wanted, rel=1e-6)
        assert len({*ratios}) > 1
    assert not (tmp_path / "store" / "cam").exists()
