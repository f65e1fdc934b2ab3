"""Questions, answers and judges of tests."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.judge_answers import Judged as JudgedAnswers
from gateau_dagster.features.evaluation.judging.judge_answers import (
    answers_by_question,
    judge_answers,
    wanted_judgments,
)
from gateau_dagster.features.evaluation.judging.replies import Replies, Reply, ServerCall
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.storage.files import Files
from tests.features.evaluation.builders import answers
from tests.kit.fake_server import Act, FakeServer, Handler, serving
from tests.kit.project import configured


def settings(**keys: Any) -> JudgeConfig:
    """A judge with prices, one request at a time."""
    given = {"base_url": "http://localhost:1/v1", "model": "judge", "prices": {"prompt": 2.0, "reply": 8.0}}
    return JudgeConfig.model_validate({**given, "concurrency": 1, "key": None, **keys})


def question(name: str, *, turns: int = 1, group: str = "all") -> Question:
    texts = tuple(f"{name} asks {turn}" for turn in range(turns))
    return Question(question_id=name, group=group, turns=texts, generation=Generation(max_new_tokens=8))


class Judged(RatedBenchmark):
    """A request for each turn: the question's turn and the answer to it."""

    def questions(self, materials: Materials) -> list[Question]:
        raise AssertionError("the tests bring questions along")

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        asked = zip(question.turns, answers, strict=True)
        return [
            self.request(question, "judge", f"{text} | {answer}", turn) for turn, (text, answer) in enumerate(asked)
        ]

    def pair_requests(self, question: Question, first: Sequence[str], second: Sequence[str]) -> list[JudgeRequest]:
        return [
            self.request(question, "judge", f"{question.question_id} A={left} B={right}", turn)
            for turn, (left, right) in enumerate(zip(first, second, strict=True))
        ]


JUDGED = Judged(configured(), Section())


class FakeJudge:
    """A judge in this process; `asked` counts what it was asked."""

    def __init__(self, reply: Callable[[ServerCall], str]) -> None:
        self._reply = reply
        self.asked: list[ServerCall] = []
        self._lock = threading.Lock()

    def __call__(self, asked: ServerCall) -> Reply:
        with self._lock:
            self.asked.append(asked)
        words = sum(len(each["content"].split()) for each in asked.messages)
        return Reply(text=self._reply(asked), prompt_tokens=words, reply_tokens=4, seconds=0.0)

    def under_way(self) -> str:
        return ""


def judge_all(
    folder: Path,
    judge: Callable[[ServerCall], Reply],
    given: Mapping[str, Sequence[str]],
    config: JudgeConfig,
    *,
    again: int = 0,
) -> JudgedAnswers:
    """Let the judge rate the answers by question, one for each turn; replies are kept in the folder."""
    questions = [question(name, turns=len(texts)) for name, texts in given.items()]
    wanted = wanted_judgments(questions, answers_by_question(answers(given)), JUDGED, config)
    return judge_answers(wanted, JUDGED.parse, judge, Replies(Files(str(folder)), config.model), config, again=again)


# An OpenAI-compatible judge over HTTP that does what a test tells it to, faults included.


Play = Callable[[str, int], Act]
"""From a request's last message, and how often it was sent before, to what the server does."""


def said(text: str = "Rating: [[5]]", *, usage: bool = True, wait: float = 0.0) -> Act:
    """Return the act of a reply after `wait` seconds, which counts words as tokens where `usage` is asked for."""

    def act(handler: Handler) -> None:
        time.sleep(wait)
        words = sum(len(each["content"].split()) for each in handler.body["messages"])
        counted = {"prompt_tokens": words, "completion_tokens": len(text.split()), "total_tokens": 0}
        reply = handler.completion(text, usage=counted)
        handler.send(200, json.dumps(reply if usage else {**reply, "usage": None}))

    return act


class JudgeServer(FakeServer):
    """It does what `play` says."""

    def __init__(self, play: Play) -> None:
        super().__init__(self._play)
        self.play = play

    def _play(self, handler: Handler) -> None:
        handler.close_connection = True  # else the client waits for the rest of a reply that is cut
        self.play(handler.body["messages"][-1]["content"], handler.before)(handler)

    @property
    def asked(self) -> list[str]:
        """The last message of each request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    @property
    def keys(self) -> set[str | None]:
        """The Authorization headers."""
        return {headers.get("authorization") for _, headers in self.received}


def judge_server(play: Play = lambda message, before: said()) -> AbstractContextManager[JudgeServer]:
    return serving(JudgeServer(play))
