"""Which losses the gate lets pass."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.statistics.experiment import GateResult, gate
from tests.error_codes import refused


def _table(**differences: tuple[float | None, float | None, float | None]) -> pl.DataFrame:
    rows = [
        {
            "variant": name,
            "benchmark": "quiz",
            "value": 50.0,
            "difference": value,
            "difference_low": low,
            "difference_high": high,
        }
        for name, (value, low, high) in differences.items()
    ]
    schema = tables.schema(tables.EXPERIMENT)
    return pl.DataFrame(rows, schema={name: schema[name] for name in rows[0]})


TABLE = _table(
    base=(None, None, None), gain=(3.0, 1.0, 5.0), unsure=(-1.0, -4.0, 2.0), loss=(-6.0, -8.0, -4.0),
    small=(-1.0, -1.5, -0.5), few=(0.0, None, None),
)  # fmt: skip


def _gate(variant: str | None, margin: float = 2.0, higher: bool = True) -> GateResult:
    return gate(TABLE, benchmark="quiz", margin=margin, variant=variant, higher=higher, unit="%")


@pytest.mark.parametrize(
    ("variant", "margin", "verdict"),
    [
        ("gain", 2, "passed"),
        ("small", 2, "passed"),
        ("small", 1, "not excluded"),
        ("small", 0, "lost"),
        ("unsure", 2, "not excluded"),
        ("unsure", 4, "passed"),
        ("loss", 2, "lost"),
        ("loss", 4, "not excluded"),
        ("few", 2, "not excluded"),
        (None, 2, "lost"),
    ],
)
def test_a_loss_fails_where_it_is_sure_and_warns_where_it_is_not_excluded(
    variant: str | None, margin: float, verdict: str
) -> None:
    assert _gate(variant, margin).verdict == verdict


def test_where_less_is_better_a_rise_is_a_loss() -> None:
    assert _gate("gain", 0, higher=False).verdict == "lost"
    assert _gate("loss", 2, higher=False).verdict == "passed"


def test_every_model_has_its_sentence() -> None:
    found = _gate(None)
    assert [sentence.split()[0] for sentence in found.sentences] == ["gain", "unsure", "loss", "small", "few"]
    assert "loses 6 % on quiz (95 % interval of the loss: 4 % to 8 %): a loss above 2 % is sure." in found.sentences[2]


def test_a_model_that_was_not_measured_has_not_passed() -> None:
    table = _table(base=(None, None, None), good=(3.0, 1.0, 5.0))

    def of(variant: str | None) -> GateResult:
        return gate(table, benchmark="quiz", margin=2.0, variant=variant, unit="%", expected=("good", "bad"))

    found = of(None)
    assert found.verdict == "not excluded" and [each.split()[0] for each in found.sentences] == ["good", "bad"]
    assert "bad has no value by quiz" in found.sentences[1]
    assert of("bad").verdict == "not excluded" and of("good").verdict == "passed"
    with refused("evaluation.no_answers", r"evaluation\.gate\.variant"):
        of("nobody")


@pytest.mark.parametrize("variant", ["base", "nobody"])
def test_a_variant_that_is_not_set_against_the_reference_is_an_error(variant: str) -> None:
    with refused("evaluation.no_answers", r"evaluation\.gate\.variant"):
        _gate(variant)


def test_no_difference_at_all_is_an_error() -> None:
    with refused("evaluation.no_answers", r"evaluation\.gate\.benchmark"):
        gate(TABLE, benchmark="another", margin=1)


@pytest.mark.parametrize(
    ("margin", "said"),
    [(0.05, "loses 0.0002 NLL"), (0.5, "loses 0.000 NLL"), (0.0005, "loses 0.000200 NLL"), (0.0, "loses 0.000 NLL")],
)
def test_figures_have_the_digits_that_the_margin_needs(margin: float, said: str) -> None:
    table = _table(tiny=(-0.0002, -0.0009, 0.0005))
    (sentence,) = gate(table, benchmark="quiz", margin=margin, unit="NLL").sentences
    assert said in sentence and "e−" not in sentence
