"""Set forecasts of choices beside the outcome of trained models, and fit slopes to these."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gateau_dagster.features.evaluation.statistics.compare import Interval, Total, compare
from gateau_dagster.features.evaluation.statistics.results import RANDOM, BenchmarkResult, ExperimentInputs
from gateau_dagster.readable import plural
from gateau_dagster.selection.forecast import PRIOR, Estimated, Forecast, Slopes, fitted_slope
from gateau_dagster.selection.wording import forecast_text, signed

_NLL = "NLL"


@dataclass(frozen=True, kw_only=True)
class ForecastOutcome:
    """The forecast for a model of an experiment beside what came of it.

    model, chance: names of its line and of that of random samples. forecast: made without this experiment's results.
    benchmark: the title of the benchmark that measures the loss. far, rest, use: differences of the loss to `chance`
    on questions of far text, on the others, and over the use; None without such questions.
    """

    model: str
    chance: str
    forecast: Forecast
    benchmark: str
    far: Interval | None
    rest: Interval | None
    use: Interval | None

    @property
    def rows(self) -> list[tuple[str, Estimated, Interval, str]]:
        """Return tuples of the quantity, its forecast, its outcome, and whether the forecast's interval holds it."""
        pairs = (
            ("far text", self.forecast.far_change, self.far),
            ("the rest", self.forecast.rest_change, self.rest),
            ("the use", self.forecast.use_change, self.use),
        )
        return [(name, told, came, _held(told, came)) for name, told, came in pairs if came is not None]

    @property
    def lines(self) -> list[str]:
        """Return one sentence per comparison."""
        return [
            f"{self.model} against {self.chance} on {name} ({self.benchmark}): forecast {forecast_text(told)}, "
            f"outcome {outcome_text(came)}: {word}."
            for name, told, came, word in self.rows
        ]


def outcome_text(came: Interval) -> str:
    """Return an outcome with its interval: `−0.10 (−0.20 to +0.01)`."""
    if came.low is None or came.high is None:
        return signed(came.value)
    return f"{signed(came.value)} ({signed(came.low)} to {signed(came.high)})"


def _held(told: Estimated, came: Interval) -> str:
    return "the forecast holds it" if told.low <= came.value <= told.high else "outside the forecast"


def far_questions(result: BenchmarkResult, kinds: Mapping[str, bool]) -> np.ndarray | None:
    """Return which questions of a benchmark are about far text, bool [Q]; None if no question is, or all are.

    Questions that are samples have their dependency (`kinds`, far or not, by id); others count by their group, where
    one is named `far`.
    """
    names, groups = (result.answered.questions[column].to_list() for column in ("question_id", "group"))
    far = [kinds.get(name, group == "far") for name, group in zip(names, groups, strict=True)]
    says_far = "far" in groups or any(name in kinds for name in names)
    return np.array(far) if says_far and any(far) and not all(far) else None


def _losses(inputs: ExperimentInputs, kinds: Mapping[str, bool]) -> Iterator[tuple[BenchmarkResult, np.ndarray]]:
    for result in inputs.results:
        if result.chosen.unit == _NLL and (far := far_questions(result, kinds)) is not None:
            yield result, far


def forecast_outcomes(
    inputs: ExperimentInputs, forecasts: Mapping[str, Forecast], kinds: Mapping[str, bool]
) -> list[ForecastOutcome]:
    """Return the forecasts of an experiment's models beside their outcomes.

    Args:
        inputs: the experiment.
        forecasts: by line. They must not rest on this experiment.
        kinds: whether each sample shows far text, by id.
    """
    outcomes = []
    for result, far in _losses(inputs, kinds):
        for name, told in forecasts.items():
            chance = _chance(inputs, name)
            if chance is None or name == chance or name in result.missing or chance in result.missing:
                continue
            # By the use, not by the benchmark's own mix of questions: the forecast is about the use.
            weights = np.where(far, told.use / far.sum(), (1 - told.use) / (~far).sum())
            parts = {"far": far / far.sum(), "rest": ~far / (~far).sum(), "use": weights}
            differences = {part: _difference(result, name, chance, total) for part, total in parts.items()}
            title = result.chosen.title
            outcomes.append(ForecastOutcome(model=name, chance=chance, forecast=told, benchmark=title, **differences))
    return outcomes


def _chance(inputs: ExperimentInputs, name: str) -> str | None:
    amounts = {line.name: line.amount for line in inputs.lines}
    lines = (line for line in inputs.lines if line.series == RANDOM)
    return next((line.name for line in lines if line.amount == amounts[name]), None)


def _difference(result: BenchmarkResult, name: str, chance: str, weights: np.ndarray) -> Interval | None:
    """Return the difference of two lines' weighted loss; `weights`: float64 [Q], which sum to 1."""
    used = np.flatnonzero(weights)
    part = result.answered.part(used.tolist())
    levels = np.unique(weights[used])
    strata = tuple(np.flatnonzero(weights[used] == level) for level in levels)
    # A stratum of one question has no variance, so all questions are one stratum then. The interval is rather too wide.
    if any(len(places) == 1 for places in strata) and len(used) > 1:
        strata = (np.arange(len(used)),)
    models = [model for model in part.models if model.name in {name, chance}]
    total = Total(weights=weights[used], strata=strata)
    standings = compare(models, total, reference=chance, higher=False, draws=_DRAWS)
    return next(standing.difference for standing in standings if standing.name == name)


_DRAWS = 2000


def slopes_of(inputs: ExperimentInputs, counts: Mapping[str, tuple[int, int]], kinds: Mapping[str, bool]) -> Slopes:
    """Return the slopes that an experiment's models show, joined with the prior; the prior if they show none.

    Args:
        inputs: the experiment; the first benchmark that measures a loss on far and on other text counts.
        counts: far samples and others that each variant was trained on, by variant.
        kinds: whether each sample shows far text, by id.
    """
    for result, far in _losses(inputs, kinds):
        samples, losses = [], []
        for model in result.answered.models:
            for name, values in zip(result.lines[model.name].variants, model.values, strict=True):
                if name in counts:
                    samples.append(counts[name])
                    losses.append((values[far].mean(), values[~far].mean()))
        slopes = [fitted_slope([s[place] for s in samples], [v[place] for v in losses]) for place in (0, 1)]
        if slopes[0] is None and slopes[1] is None:
            continue
        of_far, of_rest = (slope or PRIOR.far for slope in slopes)
        grounds = (
            f"slopes {of_far.mean:.2f} ± {of_far.deviation:.2f} (far) and {of_rest.mean:.2f} ± {of_rest.deviation:.2f} "
            f"(rest) NLL per doubling, from {plural(len(samples), 'trained model')} of this store and the prior"
        )
        return Slopes(far=of_far, rest=of_rest, grounds=grounds)
    return PRIOR
