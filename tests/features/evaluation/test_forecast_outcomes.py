"""Check forecasts beside the outcome of models, and the slopes that models show."""

from dataclasses import replace

import numpy as np
import pytest

from gateau_dagster.features.evaluation.statistics.experiment import Cost, Line, experiment_rows
from gateau_dagster.features.evaluation.statistics.forecast_outcomes import (
    far_questions,
    forecast_outcomes,
    slopes_of,
)
from gateau_dagster.features.evaluation.statistics.results import ExperimentInputs
from gateau_dagster.selection.forecast import PRIOR, VERDICTS
from gateau_dagster.selection.wording import forecast_lines
from tests.features.evaluation.experiment_builders import chosen, scores
from tests.features.report.builders import inputs, page_of
from tests.selection.test_wording import told

LINES = (
    Line(name="base", variants=("base",), trained=False),
    *(
        Line(
            name=f"{name}-{amount}", variants=(f"{name}-{amount}-s0", f"{name}-{amount}-s1"), series=name, amount=amount
        )
        for name in ("robust", "random")
        for amount in (0.1, 0.3)
    ),
)
FAR_SAMPLES = {"robust-0.1": 40, "random-0.1": 4, "robust-0.3": 60, "random-0.3": 12}
SLOPE, OTHER_SLOPE = 0.1, 0.02
KINDS = {f"q{place:04d}": place % 3 == 0 for place in range(120)}


def counts() -> dict[str, tuple[int, int]]:
    return {
        name: (FAR_SAMPLES[line.name], round(1000 * (line.amount or 0)) - FAR_SAMPLES[line.name])
        for line in LINES
        if line.series
        for name in line.variants
    }


def experiment(*, groups: tuple[str, ...] = ("all",), noise: float = 0.01) -> ExperimentInputs:
    """Losses that follow the slopes; every third question is about far text."""
    rng = np.random.default_rng(0)
    far = np.array([*KINDS.values()])
    hard, values = rng.uniform(1, 3, len(far)), {}
    for line in LINES:
        for name in line.variants:
            of_far, of_rest = counts().get(name, (0, 0))
            loss = hard - np.where(far, SLOPE * np.log2(of_far + 1), OTHER_SLOPE * np.log2(of_rest + 1))
            values[name] = scores((loss + rng.normal(0, noise, len(far))).tolist(), groups)
    benchmark = chosen(name="losses", unit="NLL", higher=False)
    costs = {name: Cost() for name in values}
    table = experiment_rows(benchmark, LINES, values, costs, reference="base", draws=200)
    return ExperimentInputs(
        table=table, lines=LINES, scores={"losses": values}, benchmarks={"losses": benchmark}, reference="base"
    )


def test_the_outcome_is_the_difference_of_means_to_as_much_random_data() -> None:
    measured, far = experiment(), np.array([*KINDS.values()])
    forecasts = {line.name: told() for line in LINES if line.series}
    found = forecast_outcomes(measured, forecasts, KINDS)
    assert [(each.model, each.chance) for each in found] == [(f"robust-{n}", f"random-{n}") for n in (0.1, 0.3)]
    for each in found:
        values = {
            name: np.mean([measured.scores["losses"][f"{name}-s{seed}"]["value"].to_numpy() for seed in (0, 1)], axis=0)
            for name in (each.model, each.chance)
        }
        apart = values[each.model] - values[each.chance]
        assert each.far is not None and each.rest is not None and each.use is not None
        assert each.far.value == pytest.approx(apart[far].mean()) and each.rest.value == pytest.approx(
            apart[~far].mean()
        )
        use = each.forecast.use
        assert each.use.value == pytest.approx(use * apart[far].mean() + (1 - use) * apart[~far].mean())
        assert each.far.low is not None and each.far.low < each.far.value < each.far.high  # pyright: ignore
        assert len(each.lines) == 3 and len(each.rows) == 3


def test_a_forecast_holds_its_outcome_or_not() -> None:
    measured, found = experiment(), told()
    wide, missed = (replace(found, far_change=replace(found.far_change, low=low, high=low + 2)) for low in (-1.0, 5.0))
    words = [forecast_outcomes(measured, {"robust-0.1": each}, KINDS)[0].rows[0][3] for each in (wide, missed)]
    assert words == ["the forecast holds it", "outside the forecast"]


def test_questions_are_far_by_their_sample_or_their_group() -> None:
    (result,) = experiment().results
    by_sample = far_questions(result, KINDS)
    assert by_sample is not None and by_sample.tolist() == [*KINDS.values()]
    assert far_questions(result, {}) is None and far_questions(result, dict.fromkeys(KINDS, True)) is None
    (grouped,) = experiment(groups=("far", "near", "none")).results
    by_group = far_questions(grouped, {})
    assert by_group is not None and by_group.tolist() == [*KINDS.values()]


def test_the_models_of_an_experiment_show_their_slopes() -> None:
    found = slopes_of(experiment(), counts(), KINDS)
    assert found.far.mean == pytest.approx(SLOPE, abs=0.01) and found.far.deviation < 0.01
    assert found.rest.mean == pytest.approx(OTHER_SLOPE, abs=0.03)
    assert "8 trained models" in found.grounds and found != PRIOR
    assert slopes_of(experiment(), {}, KINDS) == PRIOR and slopes_of(experiment(), counts(), {}) == PRIOR


def test_the_page_begins_with_the_forecast_and_sets_it_beside_the_outcome() -> None:
    measured, found = experiment(), told()
    given = inputs(experiment=measured)
    outcomes = forecast_outcomes(measured, {"robust-0.1": found}, KINDS)
    page = page_of(replace(given, forecast=found, forecast_warnings=["Beware <b>."], outcomes=outcomes))
    first = page.text("summary")
    assert VERDICTS[found.verdict] in first and "Beware <b>." in first
    assert all(" ".join(text.split()) in first for _, text in forecast_lines(found))
    assert "robust-0.1" in page.text("outcomes") and "the use" in page.text("outcomes")
    plain = page_of(given)
    assert "Forecast" not in plain.text("summary") and "outcomes" not in plain.text_of
