"""Questions of a tiny language model."""

from collections.abc import Sequence

from gateau_dagster.features.evaluation.benchmark import Generation, Question

_KEYS = ("amber", "birch", "coral", "delta")


def questions(lengths: Sequence[int]) -> list[Question]:
    """One of each length in letters, four tokens to answer."""
    return [
        Question(
            question_id=f"q{number}",
            group="any",
            turns=((f"recall {_KEYS[number % 4]} " * length)[:length],),
            generation=Generation(max_new_tokens=4),
        )
        for number, length in enumerate(lengths)
    ]
