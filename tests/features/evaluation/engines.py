"""Questions, a tiny model that answers them, and engines that note what they are asked."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any

from gateau_dagster.data.sample import Reject
from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Note, Outcome, unwatched
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.models.loaded import LoadedModel
from tests.kit.tiny_models import loaded_model, text, tokenizer


@cache
def tiny(kind: str = "llama") -> LoadedModel:
    return loaded_model(kind)


def prompts(template: str = "gateau", **changes: Any) -> PromptBuilder:
    return PromptBuilder(**{"tokenizer": tokenizer(), "template": template, "max_length": 2048, **changes})


def question(name: str, *turns: str, **changes: Any) -> Question:
    generation = {"max_new_tokens": 8, **changes.pop("generation", {})}
    return Question(
        question_id=name, group="all", turns=turns or (text(1, 5),), generation=Generation(**generation), **changes
    )


def ragged(count: int, **changes: Any) -> list[Question]:
    """Questions of uneven length and different limits."""
    return [
        question(f"q{n}", text(n, 3 + 17 * (n % 4)), generation={"max_new_tokens": 5 + n % 3}, **changes)
        for n in range(count)
    ]


class Noting:
    """Answers by a function of question and turn, in groups of two, and notes what it is asked."""

    def __init__(
        self,
        answer: Callable[[AskedTurn], str | None] = lambda asked: f"{asked.question.question_id}!",
        unread: int | None = None,
    ) -> None:
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self._answer, self._unread = answer, unread
        self.seconds = 0.5

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        wanted = [each for each in asked if each.question.question_id in missing]
        for start in range(0, len(wanted), 2):
            note(f"from {start}")
            yield [self._one(each) for each in wanted[start : start + 2]]

    def _one(self, asked: AskedTurn) -> Outcome:
        name = asked.question.question_id
        self.asked.append((name, asked.turn, asked.answers))
        said = self._answer(asked)
        if said is None:
            return Reject(sample_id=name, reason="it will not", refused=True)
        return Answer(
            question_id=name,
            turn=asked.turn,
            digest=asked.question.digest,
            prompt="",
            answer=said,
            prompt_tokens=1,
            cut_tokens=0,
            answer_tokens=1,
            finish_reason="stop",
            seconds=self.seconds,
            unread_tokens=self._unread,
        )
