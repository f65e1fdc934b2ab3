"""Read a benchmark's questions once per step: they are the same for every variant."""

from collections.abc import Sequence

from assets.steps.compared_models import materials
from assets.steps.variant_step import VariantStep
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from resources.models import ModelsResource


class StepQuestions:
    """The questions of the step's benchmark, whose name ends that of the asset."""

    def __init__(self, models: ModelsResource) -> None:
        self._models = models
        self._chosen: ChosenBenchmark | None = None
        self._questions: Sequence[Question] | None = None

    def chosen(self, step: VariantStep) -> ChosenBenchmark:
        """Return the benchmark, checked once."""
        if self._chosen is None:
            self._chosen = scored_benchmarks(step.state.config)[step.asset.split("/", maxsplit=1)[1]]
        return self._chosen

    def questions(self, step: VariantStep) -> Sequence[Question]:
        """Return the questions of a benchmark that asks some.

        Raises:
            GateauError: the questions cannot be read.
        """
        chosen = self.chosen(step)
        assert chosen.scored.questions is not None, "another benchmark has no such asset"
        if self._questions is None:
            given = materials(step.state, step.asset, self._models, step.progress)
            self._questions = chosen.scored.questions(given, chosen.options)
        return self._questions
