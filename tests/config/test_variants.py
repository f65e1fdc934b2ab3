"""The matrix, what stands beside it, and what each variant is called."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config.variants import Variant, VariantsConfig, variants_of


def names(**section: Any) -> list[str]:
    return [each.name for each in matrix(**section)]


def matrix(**section: Any) -> list[Variant]:
    return variants_of(VariantsConfig.model_validate(section), method="length", trains=True)[2:]


def test_base_and_the_single_run_are_always_there() -> None:
    assert [each.name for each in variants_of(None, method="length", trains=True)] == ["base", "checkpoint"]
    assert [each.name for each in variants_of(VariantsConfig(), method="length", trains=False)] == ["base"]


def test_the_matrix_is_every_method_preset_amount_and_seed() -> None:
    found = matrix(methods=["gateau", "random"], presets=["robust", "paper"], fractions=[0.1, 0.5], seeds=[1, 2])
    assert [each.name for each in found] == [
        *("robust-0.1-s1", "robust-0.1-s2", "paper-0.1-s1", "paper-0.1-s2"),
        *("robust-0.5-s1", "robust-0.5-s2", "paper-0.5-s1", "paper-0.5-s2"),
        *("random-0.1-s1", "random-0.1-s2", "random-0.5-s1", "random-0.5-s2"),
    ]
    assert found[1] == Variant(
        name="robust-0.1-s2",
        kind="selected",
        cell="robust-0.1",
        method="gateau",
        preset="robust",
        fraction=0.1,
        seed=2,
    )
    assert {each.cell for each in found} == {"robust-0.1", "paper-0.1", "robust-0.5", "paper-0.5", *RANDOM}
    assert all(each.preset is None for each in found if each.method == "random")


RANDOM = ("random-0.1", "random-0.5")


def test_what_is_not_given_is_no_part_of_a_name() -> None:
    assert names() == ["length", "random"]
    assert names(methods=["gateau"]) == ["gateau"]
    assert names(methods=["gateau"], budgets=[5000]) == ["gateau-5000t"]
    assert names(seeds=[7]) == ["length-s7", "random-s7"]
    assert names(methods=["length"], fractions=[1.0, 0.05]) == ["length-1", "length-0.05"]


def test_what_stands_beside_the_matrix() -> None:
    also = ["full", "base", "short_only", {"name": "theirs", "path": "org/model"}]
    found = matrix(methods=["random"], seeds=[1, 2], also=also)
    assert [(each.name, each.kind, each.trained) for each in found[2:]] == [
        ("full-s1", "full", True),
        ("full-s2", "full", True),
        ("short_only-s1", "short_only", True),
        ("short_only-s2", "short_only", True),
        ("theirs", "other", False),
    ]
    other = found[-1].other
    assert other is not None and other.model.path == "org/model"


def test_a_run_with_other_keys_has_every_seed() -> None:
    top = {"name": "top", "selection": {"rule": "top"}}
    found = matrix(methods=["random"], seeds=[1, 2], also=[top, {"name": "weighed", "training": {"loss": "longce"}}])
    assert [(each.name, each.kind, each.cell, each.seed, each.trained) for each in found[2:]] == [
        ("top-s1", "selected", "top", 1, True),
        ("top-s2", "selected", "top", 2, True),
        ("weighed-s1", "selected", "weighed", 1, True),
        ("weighed-s2", "selected", "weighed", 2, True),
    ]
    assert found[2].changed is not None and found[2].changed.selection == {"rule": "top"}
    section = VariantsConfig(also=[found[2].changed])
    assert section.also == [found[2].changed] and section.further_methods == []


def test_one_variant_cannot_change_what_all_of_them_read() -> None:
    with pytest.raises(ValidationError, match="plugins is not a key"):
        matrix(also=[{"name": "own", "selection": {"plugins": ["own.py"]}}])
