"""Judges and engines against a server that misbehaves: each question is answered, rejected or counted, in its time."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError, TransientError, redact_output
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.config import EngineConfig
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Outcome
from gateau_dagster.features.evaluation.generation.server import Server
from gateau_dagster.features.evaluation.judging.judge_answers import partly_read_judgments
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.evaluation.servers import ServerConfig
from gateau_dagster.models.prompt import encode
from gateau_dagster.storage.files import Files
from tests.features.evaluation import engines
from tests.features.evaluation.engines import prompts
from tests.features.evaluation.engines import question as engine_question
from tests.features.evaluation.judges import judge_all, settings
from tests.kit.error_codes import refused
from tests.kit.fake_server import (
    BEHAVIOURS,
    FakeServer,
    answering,
    completion,
    content,
    fake_server,
    parts_in,
    refusal,
    refuse,
    unless,
)
from tests.kit.tiny_models import text

KEY = "sk-test-0123456789abcdefghij"
NAMES = ("good", "bad", "fine")
FAST: dict[str, Any] = {"key": "SERVER_KEY", "retries": 1, "timeout": 20.0, "concurrency": 2}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    redact_output()  # as the command and the code location do
    monkeypatch.setattr("gateau_dagster.features.evaluation.server_client.FIRST_PAUSE", 0.01)


def judge(server: FakeServer, folder: Path, names: Sequence[str] = NAMES, **keys: Any) -> dict[str, str]:
    """Why each question was rejected; empty for those that have a verdict."""
    config = settings(base_url=server.address, **FAST | keys)
    found = judge_all(folder, JudgeResource().judge(config), {name: ["x"] for name in names}, config)
    assert set(found.table["score"]) <= {8.0}
    return dict.fromkeys(found.table["question_id"], "") | {each.sample_id: each.reason for each in found.rejected}


def engine(server: FakeServer, folder: Path, names: Sequence[str] = NAMES, **keys: Any) -> dict[str, str]:
    config = EngineConfig(base_url=server.address, **FAST | keys)
    asked = [AskedTurn(question=engines.question(name, f"{name} asks")) for name in names]
    groups = Server(config, "base", engines.prompts("chat")).answers(asked, set(names))
    made = [each for group in groups for each in group]
    (folder / "answers.txt").write_text("\n".join(map(repr, made)))
    assert len(made) == len(names)
    rejected = {each.sample_id: each.reason for each in made if isinstance(each, Reject)}
    return {each.question_id: "" for each in made if isinstance(each, Answer)} | rejected


ASK = {"judge": judge, "engine": engine}


@pytest.mark.parametrize("asks", ASK)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_each_question_is_answered_rejected_or_counted(
    name: str, asks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    behaviour, said = BEHAVIOURS[name], ""
    caplog.set_level(logging.DEBUG)
    with fake_server(behaviour.act) as server:
        try:
            timeout = 2.0 if "no complete reply" in behaviour.words else 20.0
            said, outcome = (reasons := ASK[asks](server, tmp_path, timeout=timeout))["bad"], "answered"
            assert {*reasons} == {*NAMES} and not reasons["good"] and not reasons["fine"]
            outcome = "rejected" if said else "answered"
        except GateauError as error:
            said, outcome = str(error), "ends"
    assert outcome == behaviour.outcome(asks), said
    assert outcome == "answered" or behaviour.words in said
    assert said.isprintable()
    shown = [said, caplog.text, *capfd.readouterr()]
    kept = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert not [text for text in (*shown, *kept) if parts_in(text.encode(errors="replace"), KEY)]


@pytest.mark.parametrize("asks", ASK)
@pytest.mark.parametrize("name", ["hang", "drip", "slow headers"])
def test_a_server_that_answers_nothing_ends_the_work_in_two_deadlines(name: str, asks: str, tmp_path: Path) -> None:
    with fake_server(BEHAVIOURS[name].act, bad="asks") as server:
        with refused(
            "evaluation.server_silent", rf"evaluation\.{asks}: http.* has answered nothing for .*timeout"
        ) as raised:
            ASK[asks](server, tmp_path, [f"q{number}" for number in range(50)], timeout=1.0)
        assert len(server.requests) == 3, "the first one, and two at a time"
    assert not isinstance(raised.value, TransientError), "trying the step again would only take as long again"


@pytest.mark.parametrize("asks", ASK)
def test_a_server_that_leaves_most_requests_to_their_deadline_ends_the_work(asks: str, tmp_path: Path) -> None:
    names = [f"{'bad' if number % 4 else 'good'} {number}" for number in range(60)]
    fault = r"has left [89] of \d+ requests without a reply in their time.*asks\.timeout.*Raise timeout"
    with fake_server(BEHAVIOURS["hang"].act) as server:
        with refused("evaluation.server_silent", fault.replace("asks", asks)) as raised:
            ASK[asks](server, tmp_path, names, timeout=0.3, concurrency=2)
        assert len(server.requests) <= 16, "a quarter is answered, eight are not, and two are asked at a time"
    assert not isinstance(raised.value, TransientError)


@pytest.mark.parametrize("asks", ASK)
@pytest.mark.parametrize("status", [400, 422])
def test_a_parameter_that_is_refused_can_be_left_out_or_replaced(status: int, asks: str, tmp_path: Path) -> None:
    refusing = unless("temperature", refuse(status, "temperature is not for this model"))
    with fake_server(refusing, bad="asks") as server:
        with refused("evaluation.server_unusable", rf"`evaluation\.{asks}\.temperature: null` leaves it out"):
            ASK[asks](server, tmp_path)
        found = ASK[asks](server, tmp_path, temperature=None, token_limit="max_completion_tokens", seed=3, top_p=0.5)
        assert not any(found.values())
        sent = server.requests[-1]
        assert (sent["seed"], sent["top_p"]) == (3, 0.5) and sent["max_completion_tokens"] > 0
        assert not {"max_tokens", "temperature"} & {*sent}
        more = {"reasoning_effort": "low", "stop": None}
        assert not any(ASK[asks](server, tmp_path, temperature=None, token_limit=None, extra_body=more).values())
        assert not {"max_tokens", "max_completion_tokens", "stop"} & {*server.requests[-1]}
        assert server.requests[-1]["reasoning_effort"] == "low"


def test_a_reply_that_was_cut_is_paid_once_and_asked_again_under_other_settings(tmp_path: Path) -> None:
    def act(handler: Any) -> None:
        content(*(["[[8", "length"] if "max_tokens" in handler.body else ["[[8]]"]))(handler)

    with fake_server(act) as server:
        for _ in range(2):
            assert "was cut" in judge(server, tmp_path)["bad"]
            assert len(server.requests) == 3, "the cut reply, too, is kept: it was paid for"
        assert not any(judge(server, tmp_path, token_limit=None).values())
        assert len(server.requests) == 4
    assert Replies(Files(str(tmp_path)), "judge").spent.requests == 4


def test_earlier_names_of_settings_are_the_same_settings() -> None:
    earlier = ServerConfig.model_validate({"concurrent": 3, "max_retries": 2})
    assert earlier == ServerConfig(concurrency=3, retries=2)


# The engine that is a server, against real ones on this machine that work, refuse and fail.


QUESTION = engine_question("q", "Why?", generation={"temperature": 0.7, "top_p": 0.9, "seed": 4, "stop": ("\n",)})


def server(running: FakeServer, *, template: str = "chat", **options: Any) -> Server:
    config = EngineConfig(**{"base_url": running.address, "retries": 2, "timeout": 5.0, **options})
    return Server(config, "robust-0.1", prompts(template))


def ask(engine: Server, asked: Sequence[AskedTurn], groups: list[Sequence[Outcome]] | None = None) -> list[Outcome]:
    found = [] if groups is None else groups
    found.extend(engine.answers(asked, {each.question.question_id for each in asked}))
    return [each for group in found for each in group]


def many(count: int) -> list[AskedTurn]:
    return [AskedTurn(question=engine_question(f"q{n:02d}", f"Number {n}?")) for n in range(count)]


def test_a_conversation_is_sent_with_every_option() -> None:
    asked = AskedTurn(
        question=engine_question("q", "Why?", "How?", system="Hm.", generation={"max_new_tokens": 9}), answers=("x",)
    )
    with answering(lambda *_: completion("Because.", "length")) as running:
        (answer,) = ask(server(running), [asked])
    ((path, headers),), (body,) = running.received, running.requests
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
    asked = AskedTurn(question=engine_question("q", "Why?", generation={"stop": ("\n",)}, **changes))
    with answering(lambda *_: completion("Because.", chat=False)) as running:
        (answer,) = ask(server(running, template=template, model="other-{variant}"), [asked])
    ((path, _),), (body,) = running.received, running.requests
    shown = prompts(template).shown(asked).text
    assert path == "/v1/completions" and body["stop"] == ["\n"] and body["prompt"] == shown
    assert body["model"] == "other-robust-0.1"
    assert isinstance(answer, Answer) and answer.prompt == shown and answer.answer == "Because."


@pytest.mark.parametrize("template", ["chat", "gateau"])
def test_it_is_told_that_a_server_may_read_control_tokens(template: str) -> None:
    asked = [*many(3), AskedTurn(question=engine_question("q7", "Why</s>?", "And <|end|>?"), answers=("so",))]
    warned: list[str] = []
    with answering(lambda _, path, __: completion("yes", chat="chat" in path)) as running:
        engine = Server(EngineConfig(base_url=running.address), "base", prompts(template), warn=warned.append)
        assert all(isinstance(each, Answer) for each in ask(engine, asked))
        assert any("Why</s>?" in str(body) for body in running.requests)
        ask(engine, many(2))
    (said,) = warned
    assert "1 of 4 questions spells control tokens of the model, as q7 has '</s>'" in said and running.address in said


def test_what_the_server_s_tokenizer_puts_before_a_text_is_not_sent() -> None:
    used = build_tokenizer(512)
    with answering(lambda *_: completion("yes", chat=False)) as running:
        config = EngineConfig(base_url=running.address)
        ask(Server(config, "base", prompts(tokenizer=used)), [AskedTurn(question=QUESTION)])
        prompt = running.requests[0]["prompt"]
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
        assert len(groups[0]) == 1 and 1 < running.most_at_once <= 4
        ask(engine, many(4), later := [])
    assert {each.question_id: each.answer for each in found if isinstance(each, Answer)} == {
        f"q{n:02d}": f"Number {n}?" for n in range(9)
    }
    assert len(running.requests) == 13 and sum(len(group) for group in later) == 4


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
    sent = running.received[0][1]["authorization"]
    assert sent == ("Bearer sk-very-secret" if options else "Bearer none")


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
        later = AskedTurn(question=engine_question("q", "Why?", "How?"), answers=("because",))
        rejects += ask(server(running), [later])
    assert [isinstance(each, Reject) and each.refused and each.may_pass for each in rejects] == [True] * 3


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


# An engine, a judge or a generator that reads only a part of a prompt, as its own count says.


def usage(read: Any, **details: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": read, "completion_tokens": 1, **details}}


@pytest.mark.parametrize(
    ("reported", "unread"),
    [
        (usage(64), True),
        (usage(64, prompt_tokens_details={"cached_tokens": 32}), True),
        (usage(450), True),
        (usage(510), False),
        (usage(700), False),
        (usage(500, prompt_tokens_details={"cached_tokens": 480}), False),
        (usage(20, prompt_tokens_details={"cached_tokens": 480}), False),
        (usage(250, cached_tokens=250), False),
        (usage(500, prompt_tokens_details=None), False),
        (usage(0), False),
        (usage(None), False),
        (usage("many"), False),
        ({"usage": None}, False),
    ],
)
@pytest.mark.parametrize("template", ["chat", "gateau"])
def test_a_server_that_reads_only_a_part_of_a_prompt_is_counted(
    template: str, reported: dict[str, Any], unread: bool
) -> None:
    built = prompts(template)
    said = next(text(1, length) for length in range(100, 2000) if len(encode(built.tokenizer, text(1, length))) >= 500)
    asked = AskedTurn(question=engine_question("q", said))
    with fake_server(content("yes", **reported), bad="") as running:
        (answer,) = ask(server(running, template=template), [asked])
    assert isinstance(answer, Answer) and (answer.unread_tokens is not None) == unread
    if unread:
        sent = 500 if template == "chat" else len(built.shown(asked).ids)
        details = reported["usage"].get("prompt_tokens_details") or {"cached_tokens": 0}
        read = reported["usage"]["prompt_tokens"] + details["cached_tokens"]
        assert answer.unread_tokens == pytest.approx(sent - read, abs=8)


def test_short_prompts_and_templates_that_differ_count_as_read() -> None:
    asked = AskedTurn(
        question=engine_question("q", "Why?", "How?", system="Hm."), answers=("<think>so " + "x " * 400 + "</think>a",)
    )
    with fake_server(content("yes", **usage(12)), bad="") as running:
        (answer,) = ask(server(running), [asked])
    assert isinstance(answer, Answer) and answer.unread_tokens is None, "the server leaves earlier thoughts out"


@pytest.mark.parametrize(
    ("prompt", "read", "is_partly"),
    [
        ("word " * 400, 64, True),
        ("word " * 400, 380, False),
        ("文字" * 400, 100, True),
        ("文字" * 400, 190, False),
        ("1 2 3 4 " * 100, 267, False),  # a third of the bytes, where the server does not count
        ("x" * 4000, 64, False),  # it may be one token
        ("a few words", 1, False),
    ],
)
def test_a_judge_that_reads_fewer_tokens_than_there_are_words_is_counted(
    prompt: str, read: int, is_partly: bool
) -> None:
    table = pl.DataFrame({"prompt": [prompt, "short"], "prompt_tokens": [2 * read, 9], "requests": [2, 1]})
    said = partly_read_judgments(table)
    assert bool(said) == is_partly
    assert not said or f"1 of 2 prompts read in part only: by its own count the server read {read}" in said
