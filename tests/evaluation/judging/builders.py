"""Questions, answers and judges of tests."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.replies import JudgeCall, Reply
from tests.evaluation.builders import configured


def settings(**keys: Any) -> JudgeConfig:
    """A judge with prices, one request at a time."""
    given = {"base_url": "http://localhost:1/v1", "model": "judge", "prices": {"prompt": 2.0, "reply": 8.0}}
    return JudgeConfig.model_validate({**given, "concurrency": 1, "key": None, **keys})


def question(name: str, *, turns: int = 1, group: str = "all") -> Question:
    texts = tuple(f"{name} asks {turn}" for turn in range(turns))
    return Question(question_id=name, group=group, turns=texts, generation=Generation(max_new_tokens=8))


def answers(given: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """tables.ANSWERS from the texts by turn of each question."""
    rows = [
        {
            **dict.fromkeys(("digest", "prompt", "finish_reason"), ""),
            **dict.fromkeys(("prompt_tokens", "cut_tokens", "answer_tokens"), 0),
            "question_id": name,
            "turn": turn,
            "answer": text,
            "seconds": 0.0,
        }
        for name, texts in given.items()
        for turn, text in enumerate(texts)
    ]
    return pl.DataFrame(rows, schema=tables.schema(tables.ANSWERS))


class Judged(RatedBenchmark):
    """A request for each turn: the question's turn and the answer to it."""

    def questions(self, materials: Materials) -> list[Question]:
        raise AssertionError("the tests bring questions along")

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        return [
            JudgeRequest(
                question_id=question.question_id,
                turn=turn,
                messages=[{"role": "system", "content": "judge"}, {"role": "user", "content": f"{asked} | {answer}"}],
                max_tokens=16,
            )
            for turn, (asked, answer) in enumerate(zip(question.turns, answers, strict=True))
        ]

    def pair_requests(self, question: Question, first: Sequence[str], second: Sequence[str]) -> list[JudgeRequest]:
        return [
            JudgeRequest(
                question_id=question.question_id,
                turn=turn,
                messages=[{"role": "user", "content": f"{question.question_id} A={left} B={right}"}],
                max_tokens=4,
            )
            for turn, (left, right) in enumerate(zip(first, second, strict=True))
        ]


JUDGED = Judged(configured(), Section())


class FakeJudge:
    """A judge in this process; `asked` counts what it was asked."""

    def __init__(self, reply: Callable[[JudgeCall], str]) -> None:
        self._reply = reply
        self.asked: list[JudgeCall] = []
        self._lock = threading.Lock()

    def __call__(self, asked: JudgeCall) -> Reply:
        with self._lock:
            self.asked.append(asked)
        words = sum(len(each["content"].split()) for each in asked.messages)
        return Reply(text=self._reply(asked), prompt_tokens=words, reply_tokens=4, seconds=0.0)

    def under_way(self) -> str:
        return ""
