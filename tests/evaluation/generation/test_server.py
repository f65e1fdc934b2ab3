"""The engine that is a server, against real ones on this machine that work, refuse and fail."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from gateau_dagster.config.evaluation import EngineConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.demo.language import build_tokenizer
from gateau_dagster.errors import TransientError
from gateau_dagster.evaluation.generation.answering import Answer, AskedTurn, Outcome
from gateau_dagster.evaluation.generation.server import Server
from tests.error_codes import refused
from tests.evaluation.generation.answering_server import Answering, answering, completion, refusal
from tests.evaluation.generation.asking import prompts, question

QUESTION = question("q", "Why?", generation={"temperature": 0.7, "top_p": 0.9, "seed": 4, "stop": ("\n",)})


def server(running: Answering, *, template: str = "chat", **options: Any) -> Server:
    config = EngineConfig(**{"base_url": running.address, "retries": 2, "timeout": 5.0, **options})
    return Server(config, "robust-0.1", prompts(template))


def ask(engine: Server, asked: Sequence[AskedTurn], groups: list[Sequence[Outcome]] | None = None) -> list[Outcome]:
    found = [] if groups is None else groups
    found.extend(engine.answers(asked, {each.question.question_id for each in asked}))
    return [each for group in found for each in group]


def many(count: int) -> list[AskedTurn]:
    return [AskedTurn(question=question(f"q{n:02d}", f"Number {n}?")) for n in range(count)]


def test_a_conversation_is_sent_with_every_option() -> None:
    asked = AskedTurn(
        question=question("q", "Why?", "How?", system="Hm.", generation={"max_new_tokens": 9}), answers=("x",)
    )
    with answering(lambda *_: completion("Because.", "length")) as running:
        (answer,) = ask(server(running), [asked])
    (path, body, headers) = running.requests[0]
    assert path == "/v1/chat/completions" and headers["authorization"] == "Bearer none"
    said = [("system", "Hm."), ("user", "Why?"), ("assistant", "x"), ("user", "How?")]
    assert [(each["role"], each["content"]) for each in body.pop("messages")] == said
    assert body == {"model": "robust-0.1", "max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "seed": 0}
    assert isinstance(answer, Answer) and answer.prompt == prompts("chat").shown(asked).text
    assert (answer.answer, answer.finish_reason, answer.turn) == ("Because.", "length", 1)
    assert (answer.prompt_tokens, answer.answer_tokens, answer.digest) == (11, 7, asked.question.digest)


@pytest.mark.parametrize(
    ("template", "changes"), [("gateau", {}), ("[INST]{prompt}[/INST]", {}), ("chat", {"prefill": "So"})]
)
def test_what_the_server_has_no_template_for_is_sent_as_text(template: str, changes: dict[str, str]) -> None:
    asked = AskedTurn(question=question("q", "Why?", generation={"stop": ("\n",)}, **changes))
    with answering(lambda *_: completion("Because.", chat=False)) as running:
        (answer,) = ask(server(running, template=template, model="other-{variant}"), [asked])
    path, body, _ = running.requests[0]
    shown = prompts(template).shown(asked).text
    assert path == "/v1/completions" and body["stop"] == ["\n"] and body["prompt"] == shown
    assert body["model"] == "other-robust-0.1"
    assert isinstance(answer, Answer) and answer.prompt == shown and answer.answer == "Because."


def test_what_the_server_s_tokenizer_puts_before_a_text_is_not_sent() -> None:
    used = build_tokenizer(512)
    with answering(lambda *_: completion("yes", chat=False)) as running:
        config = EngineConfig(base_url=running.address)
        ask(Server(config, "base", prompts(tokenizer=used)), [AskedTurn(question=QUESTION)])
        prompt = running.requests[0][1]["prompt"]
    assert not prompt.startswith("<s>")
    assert tuple(used(prompt)["input_ids"]) == prompts(tokenizer=used).shown(AskedTurn(question=QUESTION)).ids  # pyright: ignore


def test_the_first_question_goes_alone_and_the_others_together() -> None:
    seen: list[int] = []

    def reply(number: int, path: str, body: dict[str, Any]) -> Any:
        seen.append(number)
        time.sleep(0.05)
        return completion(body["messages"][0]["content"])

    with answering(reply) as running:
        engine, groups = server(running, concurrency=4), []
        found = ask(engine, many(9), groups)
        assert len(groups[0]) == 1 and 1 < running.most <= 4
        ask(engine, many(4), later := [])
    assert {each.question_id: each.answer for each in found if isinstance(each, Answer)} == {
        f"q{n:02d}": f"Number {n}?" for n in range(9)
    }
    assert len(running.requests) == 13 and sum(len(group) for group in later) == 4


@pytest.mark.parametrize("status", [429, 500])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with answering(lambda number, *_: refusal(status) if number < 2 else completion("yes")) as running:
        (answer,) = ask(server(running), [AskedTurn(question=QUESTION)])
        assert isinstance(answer, Answer) and len(running.requests) == 3


@pytest.mark.parametrize("said", ["{cut", "[]", "{}", '{"choices": []}', '{"choices": [{"index": 0}]}'])
def test_what_is_no_answer_is_none(said: str) -> None:
    with answering(lambda *_: (200, said)) as running, refused("evaluation.server_unusable"):
        ask(server(running), [AskedTurn(question=QUESTION)])


def test_a_server_that_stays_broken_or_away_may_be_tried_later() -> None:
    with answering(lambda *_: refusal(503, "overloaded")) as running:
        with pytest.raises(TransientError, match="overloaded"):
            ask(server(running, retries=1), [AskedTurn(question=QUESTION)])
        assert len(running.requests) == 4, "once more after all others"
    with pytest.raises(TransientError, match="no reply"):
        ask(server(running, retries=0), [AskedTurn(question=QUESTION)])


@pytest.mark.parametrize(
    ("status", "options", "words"),
    [
        (401, {"key": "SECRET_NAME"}, r"answers 401 .*: set SECRET_NAME to a key"),
        (403, {}, "name the key's variable in `key`"),
        (404, {}, r"correct base_url or model \(robust-0\.1\)"),
    ],
)
def test_what_no_question_can_pass_stops_at_once(
    status: int, options: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_NAME", "sk-very-secret")
    with answering(lambda *_: refusal(status, "not with sk-very-secret")) as running:
        with refused("evaluation.server_unusable", words) as raised:
            ask(server(running, **options), many(5))
        assert len(running.requests) == 1
    assert not isinstance(raised.value, TransientError)
    assert status != 401 or "sk-very-secret" not in str(raised.value)
    sent = running.requests[0][2]["authorization"]
    assert sent == ("Bearer sk-very-secret" if options else "Bearer none")


def test_a_question_that_is_refused_is_rejected_and_the_others_are_answered() -> None:
    def reply(number: int, path: str, body: dict[str, Any]) -> Any:
        long = "3" in body["messages"][0]["content"]
        return refusal(400, "longer than 4096 tokens\nsecond line") if long else completion("yes")

    with answering(reply) as running:
        found = ask(server(running), many(5))
    (reject,) = [each for each in found if isinstance(each, Reject)]
    assert reject.sample_id == "q03" and reject.may_pass
    assert "longer than 4096 tokens" in reject.reason and "\n" not in reject.reason
    assert len(found) == 5


@pytest.mark.parametrize(("count", "asked"), [(3, 3), (40, 9)])
def test_a_server_that_refuses_whatever_it_is_asked_is_an_error(count: int, asked: int) -> None:
    with answering(lambda *_: refusal(400, "no chat template")) as running:
        with refused("evaluation.server_unusable") as raised:
            ask(server(running, concurrency=2), many(count))
        assert asked - 1 <= len(running.requests) <= asked
    assert not isinstance(raised.value, TransientError)


def test_a_server_that_has_answered_may_refuse_all_the_rest() -> None:
    with answering(lambda *_: refusal(422, "too long")) as running:
        groups = [*server(running).answers(many(4), {"q02", "q03"})]
        rejects = [each for group in groups for each in group]
        later = AskedTurn(question=question("q", "Why?", "How?"), answers=("because",))
        rejects += ask(server(running), [later])
    assert [isinstance(each, Reject) and each.refused for each in rejects] == [True] * 3


def test_what_was_on_its_way_when_one_failed_is_not_lost() -> None:
    failed = threading.Event()

    def reply(number: int, path: str, body: dict[str, Any]) -> Any:
        if number == 0:
            return completion("first")
        if "Number 1?" in body["messages"][0]["content"]:
            failed.set()
            return refusal(401)
        failed.wait()
        time.sleep(0.1)
        return completion("late")

    groups: list[Sequence[Outcome]] = []
    with answering(reply) as running:
        engine = server(running, concurrency=3)
        with refused("evaluation.server_unusable", "401"):
            for group in engine.answers(many(20), {each.question.question_id for each in many(20)}):
                groups.append(group)
    answered = [each for group in groups for each in group]
    assert len(answered) == len(running.requests) - 1 < 6, "each request but the refused one has its answer"


def test_a_key_that_is_not_there_is_missed_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_NAME", raising=False)
    with refused("evaluation.server_key", r"evaluation\.engine\.key.*SECRET_NAME"):
        Server(EngineConfig(base_url="http://localhost:1/v1", key="SECRET_NAME"), "base", prompts())
