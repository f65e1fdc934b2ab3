"""Which variants are one row, and what a configuration may say of them."""

from typing import Any

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.evaluation.statistics.experiment import check_experiment, lines_of, reference_of
from tests.evaluation.builders import configured

MATRIX: dict[str, Any] = {
    "methods": ["gateau", "random"],
    "presets": ["robust"],
    "fractions": [0.1, 0.5],
    "seeds": [0, 1],
    "also": ["full", {"name": "theirs", "path": "a/theirs"}],
}


def test_seeds_are_one_row_and_amounts_of_one_choice_one_series() -> None:
    found = {line.name: line for line in lines_of(configured(variants=MATRIX))}
    names = ["robust-0.1", "robust-0.5", "random-0.1", "random-0.5"]
    assert [*found] == ["base", "checkpoint", *names, "full", "theirs"]
    assert found["robust-0.1"].variants == ("robust-0.1-s0", "robust-0.1-s1")
    assert {name: line.series for name, line in found.items() if line.series} == {
        name: name.split("-")[0] for name in names
    }
    assert {name for name, line in found.items() if not line.trained} == {"base", "theirs"}


def test_a_single_seed_keeps_the_variant_s_name() -> None:
    one = configured(variants={"fractions": [0.1], "seeds": [3]})
    assert [line.name for line in lines_of(one)] == ["base", "checkpoint", "gateau-0.1-s3"]
    assert [line.name for line in lines_of(configured())] == ["base", "checkpoint"]


@pytest.mark.parametrize("name", ["full", "full-s1"])
def test_a_reference_is_named_by_its_row_or_by_a_variant(name: str) -> None:
    config = configured(variants=MATRIX, evaluation={"reference": name})
    check_experiment(config)
    assert reference_of(config) == "full"
    assert reference_of(configured(variants=MATRIX)) == "base"


@pytest.mark.parametrize(
    ("evaluation", "place"),
    [
        ({"reference": "nobody"}, r"evaluation\.reference: no variant nobody"),
        (
            {"gate": {"benchmark": "needle", "margin": 1, "variant": "nobody"}},
            r"evaluation\.gate\.variant: no variant nobody",
        ),
        ({"gate": {"benchmark": "nothing", "margin": 1}}, r"evaluation\.gate\.benchmark: nothing"),
    ],
)
def test_names_that_do_not_exist_are_refused(evaluation: dict[str, Any], place: str) -> None:
    with pytest.raises(GateauError, match=place):
        check_experiment(configured(variants=MATRIX, evaluation=evaluation))


def test_without_an_experiment_nothing_is_asked_for() -> None:
    check_experiment(configured())
    assert scored_benchmarks(configured()) == {}
