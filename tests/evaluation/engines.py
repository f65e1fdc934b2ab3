"""Questions, a tiny model that answers them, and engines that note what they are asked."""

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.generation.answering import Answer, AskedTurn, Note, Outcome, unwatched
from gateau_dagster.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.models.loading import LoadedModel
from tests.tiny_models import loaded_model, text, tokenizer


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
        self, answer: Callable[[AskedTurn], str | None] = lambda asked: f"{asked.question.question_id}!"
    ) -> None:
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self._answer = answer
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
        )


# A small server with OpenAI's interface, which answers as a test tells it to.


Reply = tuple[int, Any]
"""Status and body: an object is sent as JSON, text as it is."""


def completion(text: str, reason: str = "stop", *, chat: bool = True) -> Reply:
    """What a server that works says."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, **said}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    kind = "chat.completion" if chat else "text_completion"
    return 200, {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}


def refusal(status: int, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": "error", "param": None, "code": None}}


@dataclass
class Answering:
    """`requests`: path, body and headers of each, in order; `most`: that were on their way at the same time."""

    address: str = ""
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    most: int = 0
    running: int = 0


@contextmanager
def answering(reply: Callable[[int, str, dict[str, Any]], Reply]) -> Iterator[Answering]:
    """A server on this machine; `reply` gets the request's number, path and body."""
    found, lock = Answering(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(found.requests)
                found.requests.append((self.path, body, {name.lower(): each for name, each in self.headers.items()}))
                found.running += 1
                found.most = max(found.most, found.running)
            status, said = reply(number, self.path, body)
            with lock:
                found.running -= 1
            data = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Retry-After-Ms", "1")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
