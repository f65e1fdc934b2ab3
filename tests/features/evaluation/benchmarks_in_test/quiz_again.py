"""A benchmark for tests: the quiz's questions, once more."""

from tests.features.evaluation.benchmarks_in_test.quiz import Quiz


class QuizAgain(Quiz):
    name = "quiz_again"
    title = "Quiz, once more"
    asks_as = "quiz"
