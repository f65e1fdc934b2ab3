"""Models that the pipeline makes, as the planner sees them: which setting reaches which table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.config.models import PreExperienceOptions
from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.models.model_facts import own_window
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.scoring_assets import check_clusters
from tests.kit.error_codes import refused
from tests.pipeline.configured import configured, resolved_assets, stale, versions
from tests.pipeline.world import World, declared

MADE = {"models.cherry": {"path": "pre_experienced:long"}, "training.enabled": False, "selection.method": "ifd"}
USED = {"perplexity/cherry", "response_alone/cherry", "method_scores/ifd", "selected_subset", "report"}
TRAINED = {"pre_experienced/cherry", *USED}
CHOSEN = {"pre_experience_mix/cherry", *TRAINED}
EMBEDDED = {"instruction_embedding/long", *CHOSEN}
THETA_B = {"perplexity/long", "cam", "combined_scores"}
# Field: (another value, what has to be made again).
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "models.cherry.pre_experience.clusters": (7, CHOSEN),
    "models.cherry.pre_experience.per_cluster": (7, CHOSEN),
    "models.cherry.pre_experience.pick": ("nearest", CHOSEN),
    "models.cherry.pre_experience.seed": (7, CHOSEN),
    "models.cherry.pre_experience.epochs": (2.0, TRAINED),
    "models.cherry.pre_experience.learning_rate": (1e-3, TRAINED),
    "models.cherry.pre_experience.scheduler": ("linear", TRAINED),
    "models.cherry.pre_experience.warmup_ratio": (0.5, TRAINED),
    "models.cherry.pre_experience.batch": (64, TRAINED),
    "models.cherry.rope_theta": (5.0, USED),
    "models.cherry.preamble": ("Be helpful.", USED - {"response_alone/cherry"}),  # which shows no prompt
    "models.cherry.context": ("window", USED),
    "models.long.path": ("a/other", {*EMBEDDED, *THETA_B}),
    "models.long.rope_theta": (5.0, {*EMBEDDED, *THETA_B}),
    "training.max_length": (64, CHOSEN),
    "training.dtype": ("float32", TRAINED),
    "training.batch_size": (2, TRAINED),
    "training.processes": (2, TRAINED),
    "training.deepspeed": ("zero2", TRAINED),
    # The stage has these for itself, or they change no result.
    "training.learning_rate": (1.0, {"report"}),
    "training.seed": (1, {"report"}),
    "training.save_steps": (7, set()),
    "training.liger": (True, TRAINED),
    "training.report_to": (["wandb"], set()),
    "training.gradient_checkpointing": (True, set()),
    "training.offload_activations": ("off", set()),
    "training.tiled_mlp": (4096, set()),
    "training.gpu_memory": (80, set()),
    "training.attention": ("fa3", set()),
}


def made(folder: Path, **changes: Any) -> Config:
    cherry = {"path": "pre_experienced:long"}
    return configured(
        folder, **{**MADE, "models.cherry": cherry, "selection.options": {"ifd": {"model": "cherry"}}, **changes}
    )


def test_every_option_of_the_stage_has_a_line_here() -> None:
    prefix = "models.cherry.pre_experience."
    assert {name.removeprefix(prefix) for name in FIELDS if name.startswith(prefix)} == {
        *PreExperienceOptions.model_fields
    }


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_reaches_exactly_what_it_changes(field: str, tmp_path: Path) -> None:
    value, wanted = FIELDS[field]
    base, changed = made(tmp_path), made(tmp_path, **{field: value})
    assert changed != base
    assert stale(versions(base), versions(changed)) == wanted


def test_two_models_of_one_base_share_its_embeddings(tmp_path: Path) -> None:
    other = {"path": "pre_experienced:long", "pre_experience": {"clusters": 5}}
    config = made(tmp_path, **{"models.plum": other})
    names = [asset.key for asset in pipeline_of(config).assets]
    assert names.count("instruction_embedding/long") == 1
    assert {"pre_experienced/cherry", "pre_experienced/plum", "perplexity/plum"} <= {*names}


def test_rows_go_by_the_content_of_the_model(tmp_path: Path) -> None:
    assets = resolved_assets(made(tmp_path))
    for asset in (assets["perplexity/cherry"], assets["response_alone/cherry"]):
        assert asset.reads["pre_experienced/cherry"] == "content"
        one, other = ({"raw_long_sft": "r", "pre_experienced/cherry": content} for content in "ab")
        assert asset.row_scorer(one) == asset.row_scorer({**one, "raw_long_sft": "q"}), "kept rows are of equal samples"
        assert asset.row_scorer(one) != asset.row_scorer(other)
    assert assets["perplexity/long"].row_scorer({"raw_long_sft": "r"}) == assets["perplexity/long"].scorer


def test_a_new_mix_trains_only_if_it_comes_out_different(tmp_path: Path) -> None:
    assets = resolved_assets(made(tmp_path))
    world = World([*assets.values()], {"0": "i"})
    world.run_everything()
    changed = {**assets, "pre_experience_mix/cherry": replace(assets["pre_experience_mix/cherry"], code_version="new")}
    world.assets = [*changed.values()]
    assert {work.asset: work.conditional for work in world.plan().work} == {
        "pre_experience_mix/cherry": False,
        **dict.fromkeys(TRAINED - {"report"}, True),
        "report": False,  # it says what the mix is made from
    }


def test_fewer_samples_than_clusters_are_an_error_at_planning(tmp_path: Path) -> None:
    config = made(tmp_path)
    check_clusters(config, 100)
    with refused("selection.clusters", match=r"models\.cherry\.pre_experience\.clusters"):
        check_clusters(config, 99)


def test_before_it_is_made_a_model_goes_by_its_base(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"max_position_embeddings": 77}')
    config = made(tmp_path, **{"models.long.path": "base"})
    assert model_digest(config, "cherry") == f"made:{model_digest(config, 'long')}"
    assert own_window(config, "cherry") == 77


def test_a_table_with_a_model_compares_it_by_content() -> None:
    asset = declared("a", partitions="shard", reads={"m": "fingerprint"}, model="m")
    with pytest.raises(AssertionError, match="came out the same"):
        asset.row_scorer({"m": "x"})
