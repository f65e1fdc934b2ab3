"""Judges and engines against a server that misbehaves: each question is answered, rejected or counted, in its time."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config.evaluation import EngineConfig
from gateau_dagster.config.judge import ServerConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError, TransientError, redact_output
from gateau_dagster.evaluation.generation.answering import AskedTurn
from gateau_dagster.evaluation.generation.server import Server
from gateau_dagster.evaluation.judging.judge_answers import answers_by_question, judge_answers, wanted_judgments
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files
from resources.judge import JudgeResource
from tests.error_codes import refused
from tests.evaluation.generation import asking
from tests.evaluation.judging.builders import JUDGED, answers, question, settings
from tests.fake_server import BEHAVIOURS, FakeServer, content, fake_server, parts_in, refuse, unless

KEY = "sk-test-0123456789abcdefghij"
NAMES = ("good", "bad", "fine")
FAST: dict[str, Any] = {"key": "SERVER_KEY", "retries": 1, "timeout": 20.0, "concurrency": 2}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    redact_output()  # as the command and the code location do
    monkeypatch.setattr("gateau_dagster.evaluation.server_client.FIRST_PAUSE", 0.01)


def judge(server: FakeServer, folder: Path, names: Sequence[str] = NAMES, **keys: Any) -> dict[str, str]:
    """Why each question was rejected; empty for those that have a verdict."""
    config = settings(base_url=server.address, **FAST | keys)
    given = answers_by_question(answers({name: ["x"] for name in names}))
    wanted = wanted_judgments([question(name) for name in names], given, JUDGED, config)
    replies = Replies(Files(str(folder)), config.model)
    found = judge_answers(wanted, JUDGED.parse, JudgeResource().judge(config), replies, config)
    assert set(found.table["score"]) <= {8.0}
    return dict.fromkeys(found.table["question_id"], "") | {each.sample_id: each.reason for each in found.rejected}


def engine(server: FakeServer, folder: Path, names: Sequence[str] = NAMES, **keys: Any) -> dict[str, str]:
    config = EngineConfig(base_url=server.address, **FAST | keys)
    asked = [AskedTurn(question=asking.question(name, f"{name} asks")) for name in names]
    groups = Server(config, "base", asking.prompts("chat")).answers(asked, set(names))
    made = [each for group in groups for each in group]
    (folder / "answers.txt").write_text("\n".join(map(repr, made)))
    assert sorted(each.sample_id if isinstance(each, Reject) else each.question_id for each in made) == sorted(names)
    return {
        each.sample_id if isinstance(each, Reject) else each.question_id: each.reason
        if isinstance(each, Reject)
        else ""
        for each in made
    }


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
            "evaluation.server_silent",
            rf"evaluation\.{asks}: http.* has answered nothing for .*timeout",
        ) as raised:
            ASK[asks](server, tmp_path, [f"q{number}" for number in range(50)], timeout=1.0)
        assert len(server.bodies) == 3, "the first one, and two at a time"
    assert not isinstance(raised.value, TransientError), "trying the step again would only take as long again"


@pytest.mark.parametrize("asks", ASK)
def test_a_server_that_leaves_most_requests_to_their_deadline_ends_the_work(asks: str, tmp_path: Path) -> None:
    names = [f"{'bad' if number % 4 else 'good'} {number}" for number in range(60)]
    fault = r"has left [89] of \d+ requests without a reply in their time.*asks\.timeout.*Raise timeout"
    with fake_server(BEHAVIOURS["hang"].act) as server:
        with refused("evaluation.server_silent", fault.replace("asks", asks)) as raised:
            ASK[asks](server, tmp_path, names, timeout=0.3, concurrency=2)
        assert len(server.bodies) <= 16, "a quarter is answered, eight are not, and two are asked at a time"
    assert not isinstance(raised.value, TransientError)


@pytest.mark.parametrize("asks", ASK)
@pytest.mark.parametrize("status", [400, 422])
def test_a_parameter_that_is_refused_can_be_left_out_or_replaced(status: int, asks: str, tmp_path: Path) -> None:
    refusing = unless("temperature", refuse(status, "temperature is not for this model"))
    with fake_server(refusing, bad="asks") as server:
        with refused(
            "evaluation.server_unusable",
            rf"`evaluation\.{asks}\.temperature: null` leaves it out",
        ):
            ASK[asks](server, tmp_path)
        found = ASK[asks](server, tmp_path, temperature=None, token_limit="max_completion_tokens", seed=3, top_p=0.5)
        assert not any(found.values())
        sent = server.bodies[-1]
        assert (sent["seed"], sent["top_p"]) == (3, 0.5) and sent["max_completion_tokens"] > 0
        assert not {"max_tokens", "temperature"} & {*sent}
        more = {"reasoning_effort": "low", "stop": None}
        assert not any(ASK[asks](server, tmp_path, temperature=None, token_limit=None, extra_body=more).values())
        assert not {"max_tokens", "max_completion_tokens", "stop"} & {*server.bodies[-1]}
        assert server.bodies[-1]["reasoning_effort"] == "low"


def test_a_reply_that_was_cut_is_paid_once_and_asked_again_under_other_settings(tmp_path: Path) -> None:
    def act(handler: Any) -> None:
        content(*(["[[8", "length"] if "max_tokens" in handler.body else ["[[8]]"]))(handler)

    with fake_server(act) as server:
        for _ in range(2):
            assert "was cut" in judge(server, tmp_path)["bad"]
            assert len(server.bodies) == 3, "the cut reply, too, is kept: it was paid for"
        assert not any(judge(server, tmp_path, token_limit=None).values())
        assert len(server.bodies) == 4
    assert Replies(Files(str(tmp_path)), "judge").spent.requests == 4


def test_earlier_names_of_settings_are_the_same_settings() -> None:
    earlier = ServerConfig.model_validate({"concurrent": 3, "max_retries": 2})
    assert earlier == ServerConfig(concurrency=3, retries=2)
