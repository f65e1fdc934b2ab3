"""A benchmark for tests: the quiz's questions, worth something else."""

from gateau_dagster.evaluation.benchmark import Benchmark, Scored
from tests.evaluation.benchmarks_in_test.quiz import QuizOptions, grade, questions

BENCHMARK = Benchmark(
    name="quiz_again",
    title="Quiz, once more",
    description="For tests.",
    options=QuizOptions,
    scored=Scored(unit="letters", questions=questions, grade=grade, asks_as="quiz"),
)
