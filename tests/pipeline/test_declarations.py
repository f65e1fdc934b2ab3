"""The declarations: their upstreams, what counts by content, and what stands in their settings."""

from pathlib import Path

import pytest

from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.pipeline.pipeline import pipeline_of
from tests.pipeline.configured import configured, resolved_assets, stale, versions
from tests.pipeline.fields import FIELDS, LONG, MIXED, NOTHING, SHORT, TRAINED


def test_the_model_of_training_counts_with_its_weights(tmp_path: Path) -> None:
    config = configured(tmp_path)
    digests = {"short": "x", "long": "y"}
    found = stale(versions(config, digests), versions(config, {**digests, "long": "z"}))
    assert found == LONG
    assert stale(versions(config, digests), versions(config, {**digests, "short": "z"})) == SHORT


def test_new_short_conversations_reach_the_mix(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert stale(versions(config), versions(config, signature="t")) == {"short_chat_mix", *MIXED}


def test_a_deepspeed_file_counts_by_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}}')
    config = configured(tmp_path, **{"training.deepspeed": "ds.json"})
    before = versions(config)
    file.write_text('{"zero_optimization": {"stage": 1}}\n')
    assert stale(before, versions(config)) == NOTHING
    file.write_text('{"zero_optimization": {"stage": 2}}')
    assert stale(before, versions(config)) == TRAINED


def test_demo_fields_change_data_or_models(tmp_path: Path) -> None:
    base = configured(tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short"})
    for field in ("demo.seed", "demo.samples", "demo.conversations"):
        changed = configured(
            tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short", field: FIELDS[field][0]}
        )
        assert changed.located_long_sft.path != base.located_long_sft.path
        assert (model_digest(changed, "short") != model_digest(base, "short")) == (field == "demo.seed")


def test_the_tables_of_samples_have_a_partition_a_shard(tmp_path: Path) -> None:
    pipeline = pipeline_of(configured(tmp_path))
    assert [asset.key for asset in pipeline.assets if asset.partitions == "shard"] == [
        "raw_long_sft",
        "perplexity/short",
        "perplexity/long",
        "cam",
    ]


def test_training_works_downstream_by_content_only(tmp_path: Path) -> None:
    """An equal selection must not cost a GPU week."""
    assets = pipeline_of(configured(tmp_path)).by_key
    assert set(assets["training_mix"].reads.values()) == {"content"}
    assert set(assets["checkpoint"].reads.values()) == {"content"}


def test_a_mix_by_rank_or_source_counts_where_the_choice_comes_from(tmp_path: Path) -> None:
    """Its content does not: an equal mix is not trained again."""
    for changes in ({"training.mix.long_fraction": 0.5}, {"training.mix.weights": {"long": 2.0}}):
        assets = pipeline_of(configured(tmp_path, **changes)).by_key
        assert assets["training_mix"].reads == {"selected_subset": "fingerprint", "short_chat_mix": "content"}
        assert assets["checkpoint"].reads == {"training_mix": "content"}


def test_further_models_have_a_perplexity_and_reach_the_report(tmp_path: Path) -> None:
    assets = pipeline_of(configured(tmp_path, **{"models.third": {"path": "t"}})).by_key
    assert "perplexity/third" in assets["report"].reads
    assert "perplexity/third" not in assets["combined_scores"].reads


@pytest.mark.parametrize(("preset", "default"), [("paper", 0.8), ("official", 0.8), ("robust", 0.5)])
def test_a_default_alpha_is_resolved_and_is_not_the_same_number_given(
    preset: str, default: float, tmp_path: Path
) -> None:
    """A given alpha is that of the other presets' columns, too."""

    def setting(**selection: object) -> object:
        return resolved_assets(configured(tmp_path, selection=selection))["combined_scores"].settings["selection.alpha"]

    assert setting(preset=preset) == f"{default} by default"
    assert setting(preset=preset, alpha=default) == default
