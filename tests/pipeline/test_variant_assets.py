"""The assets of an experiment: there where they are asked for, and each partition made from its own."""

from pathlib import Path
from typing import Any

from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.pipeline import pipeline_of
from tests.pipeline.configured import configured, nodes_of

MODELS = ["variant/selected_subset", "variant/training_mix", "variant/checkpoint"]


def of_variants(folder: Path, **changes: Any) -> list[str]:
    return [each.key for each in pipeline_of(configured(folder, **changes)).assets if each.partitions == VARIANT]


def test_without_variants_the_assets_are_those_of_the_single_run(tmp_path: Path) -> None:
    assert of_variants(tmp_path) == []
    assert of_variants(tmp_path, variants={"fractions": [0.1]}) == MODELS


def test_each_variant_reads_what_it_is_made_from(tmp_path: Path) -> None:
    section = {"methods": ["gateau", "random"], "fractions": [0.1], "also": ["full", {"name": "o", "path": "a/other"}]}
    config = configured(tmp_path, variants=section)
    node = nodes_of(config)["variant/selected_subset"]
    assert [*node.parts] == ["base", "checkpoint", "gateau-0.1", "random-0.1", "full", "o"]
    reads = {name: {*node.of(name).upstream} for name in node.parts}
    samples = {"raw_long_sft", "document_split"}
    assert reads["base"] == reads["checkpoint"] == reads["o"] == set()
    assert reads["gateau-0.1"] == {*samples, "combined_scores"} and reads["full"] == samples
    assert reads["random-0.1"] == {*samples, "method_scores/random"}
    models = nodes_of(config)["variant/checkpoint"]
    assert dict(models.of("checkpoint").upstream) == {"checkpoint": "content", "training_mix": "content"}
    assert dict(models.of("full").upstream) == {"variant/training_mix": "content"}
    assert not models.of("base").upstream and not models.of("o").upstream
