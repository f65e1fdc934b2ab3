"""A judge behind a real HTTP server that fails in every way: questions are answered or counted, the key is nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.judged import unreadable
from gateau_dagster.features.evaluation.judging.asking import BudgetError
from gateau_dagster.features.evaluation.judging.judge_answers import (
    Judged,
    answers_by_question,
    judge_answers,
    wanted_judgments,
)
from gateau_dagster.features.evaluation.judging.replies import Replies, ServerCall
from gateau_dagster.features.evaluation.server_client import UnansweredError, UnusableServerError
from gateau_dagster.storage.files import Files
from tests.features.evaluation.builders import answers
from tests.features.evaluation.judges import JUDGED, Answer, JudgeServer, Play, error, judge_server, question, settings

KEY = "sk-test-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


@contextmanager
def serving(play: Play, **keys: Any) -> Iterator[tuple[JudgeServer, Any]]:
    with judge_server(play) as server:
        given = {"key": "JUDGE_KEY", "retries": 2, "timeout": 5.0, "base_url": server.base_url, **keys}
        yield server, settings(**given)


def asked(text: str = "?") -> ServerCall:
    return ServerCall(model="judge", messages=[{"role": "user", "content": text}], max_tokens=7, temperature=0.25)


def judged(folder: Path, config: Any, names: list[str], *, again: int = 0) -> Judged:
    given = answers({name: ["x"] for name in names})
    wanted = wanted_judgments([question(name) for name in names], answers_by_question(given), JUDGED, config)
    replies = Replies(Files(str(folder)), "judge")
    return judge_answers(wanted, JUDGED.parse, JudgeResource().judge(config), replies, config, again=again)


def test_what_is_sent_and_what_comes_back() -> None:
    with serving(lambda message, before: Answer(text="fine [[8]]")) as (server, config):
        reply = JudgeResource().judge(config)(asked("one two"))
    assert (reply.text, reply.prompt_tokens, reply.reply_tokens) == ("fine [[8]]", 2, 2)
    (sent,) = server.requests
    assert sent == {
        "model": "judge",
        "messages": [{"role": "user", "content": "one two"}],
        "max_tokens": 7,
        "temperature": 0.25,
    }
    assert server.keys == {f"Bearer {KEY}"}


def test_the_limit_has_the_server_s_own_name_and_usage_may_be_missing() -> None:
    with serving(lambda message, before: Answer(usage=False), token_limit="max_completion_tokens") as (server, config):
        reply = JudgeResource().judge(config)(asked("one two"))
    assert server.requests[0]["max_completion_tokens"] == 7 and "max_tokens" not in server.requests[0]
    assert (reply.prompt_tokens, reply.reply_tokens) == (3, 5), "about a token for 3 bytes"


def test_a_budget_of_money_is_used_up_by_replies_without_usage(tmp_path: Path) -> None:
    prices, budget = {"prompt": 0.0, "reply": 1.0}, {"money": 6e-6}  # of which a reply takes 5
    with (
        serving(lambda message, before: Answer(usage=False), prices=prices, budget=budget, concurrency=1) as served,
        pytest.raises(BudgetError, match="the budget is"),
    ):
        judged(tmp_path, served[1], ["a", "b", "c"])
    assert len(served[0].requests) == 2


PASSING = {
    "429": error(429, "slow down", **{"retry-after": "0.01"}),
    "500": error(500, "oops", **{"retry-after-ms": "1"}),
    "503": error(503, "oops", **{"retry-after-ms": "1"}),
    "cut": Answer(cut=True),
    "reset": Answer(reset=True),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateau_dagster.features.evaluation.server_client.FIRST_PAUSE", 0.01)
    with serving(lambda message, before: PASSING[fault] if before == 0 else Answer()) as (server, config):
        assert JudgeResource().judge(config)(asked()).text == "Rating: [[5]]"
    assert len(server.requests) == 2


NONSENSE = {
    "broken JSON": Answer(body='{"choices": [{"mess'),
    "a page": Answer(body="<html>gateway</html>", headers={"Content-Type": "text/html"}),
    "nothing": Answer(body=""),
    "another object": Answer(body='{"hello": 1}'),
    "no choices": Answer(body='{"choices": []}'),
    "choices of text": Answer(body='{"choices": "none"}'),
    "a message of numbers": Answer(body='{"choices": [{"message": {"content": 5}}]}'),
    "a list": Answer(body="[1, 2]"),
    "a number": Answer(body="5"),
    "400": error(400, "the maximum context length is 8192 tokens"),
    "slow": Answer(wait=0.6),
}


@pytest.mark.parametrize("fault", NONSENSE)
def test_a_request_without_a_usable_reply_is_counted_and_the_others_go_on(fault: str, tmp_path: Path) -> None:
    def play(message: str, before: int) -> Answer:
        return NONSENSE[fault] if "bad" in message else Answer()

    with serving(play, timeout=0.3, retries=0, concurrency=2) as (_, config):
        found = judged(tmp_path, config, ["good", "bad", "fine"])
    assert found.table["question_id"].to_list() == ["fine", "good"]
    (reject,) = found.rejected
    assert reject.sample_id == "bad" and len(reject.reason) > 10
    counted = unreadable(found.table, rejected_frame(found.rejected))
    assert (counted.judgments, counted.unanswered, counted.notable) == (2, 1, True)


def test_replies_off_the_scale_are_kept_and_counted(tmp_path: Path) -> None:
    said = {"a": "[[11]]", "b": "11 of 10", "c": "no idea", "d": "\ud800 [[4]]"}
    with serving(lambda message, before: Answer(text=said[message[0]])) as (server, config):
        found = judged(tmp_path, config, [*said], again=1)
        assert len(server.requests) == 7
    assert found.table["score"].to_list() == [None, None, None, 4.0]
    assert found.table["reply"].to_list()[:3] == ["[[11]]", "11 of 10", "no idea"]
    assert unreadable(found.table, rejected_frame(found.rejected)).share == 0.75


REFUSALS: dict[str, tuple[Answer, str]] = {
    "401": (error(401, f"Incorrect API key provided: {KEY}"), "JUDGE_KEY"),
    "403": (error(403, "no"), "JUDGE_KEY"),
    "404": (error(404, "no such model"), "base_url or model"),
    "402": (error(402, "no money"), "add credit"),
    "quota": (error(429, "You exceeded your current quota", code="insufficient_quota"), "add credit"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_refusal_ends_all_at_once_with_one_line_without_the_key(fault: str, tmp_path: Path) -> None:
    answer, cure = REFUSALS[fault]
    with (
        serving(lambda message, before: answer, retries=0) as (server, config),
        pytest.raises(UnusableServerError) as raised,
    ):
        judged(tmp_path, config, [f"q{number}" for number in range(20)])
    assert len(server.requests) == 1
    line = str(raised.value)
    assert line.startswith(f"evaluation.judge: {server.base_url} answers ") and cure in line
    assert "\n" not in line and KEY not in line
    assert raised.value.__cause__ is None


def test_a_server_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    config = settings(base_url="http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(TransientError, match=r"evaluation\.judge: http://127\.0\.0\.1:9/v1 leaves every request"):
        judged(tmp_path, config, ["a", "b"])


def test_a_key_that_a_server_tells_is_not_kept(tmp_path: Path) -> None:
    with serving(lambda message, before: Answer(text=f"{KEY} [[3]]")) as (_, config):
        found = judged(tmp_path, config, ["a"])
    assert found.table["reply"].to_list() == ["*** [[3]]"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_a_storm_of_faults_loses_no_question_and_pays_for_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third request fails in some way before it is answered."""
    monkeypatch.setattr("gateau_dagster.features.evaluation.server_client.FIRST_PAUSE", 0.001)
    faults = [*PASSING.values()]

    def play(message: str, before: int) -> Answer:
        number = int(message.split(maxsplit=1)[0][1:])
        if number % 3 == 0 and before == 0:
            return faults[(number // 3) % len(faults)]
        return Answer(text="no idea" if number % 10 == 1 else f"[[{1 + number % 10}]]")

    names = [f"q{number}" for number in range(60)]
    with serving(play, concurrency=6) as (server, config):
        found = judged(tmp_path, config, names)
        assert server.most_at_once <= 6
        first = len(server.requests)
        assert judged(tmp_path, config, names).table.equals(found.table) and len(server.requests) == first
    assert found.table.height == 60 and not found.rejected
    assert found.table["score"].null_count() == 6
    assert found.new.requests == 60 == first - 20


def test_a_missing_key_is_named_and_a_server_may_want_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(GateauError, match=r"evaluation\.judge\.key: the environment variable JUDGE_KEY is not set"):
        JudgeResource().judge(settings(key="JUDGE_KEY"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda message, before: Answer(), key=None) as (server, config):
        JudgeResource().judge(config)(asked())
    assert server.keys == {"Bearer none"}


def test_a_late_reply_is_no_reply() -> None:
    with (
        serving(lambda message, before: Answer(wait=0.6), timeout=0.2, retries=0) as (_, config),
        pytest.raises(UnansweredError, match=r"no complete reply within 0\.2 s") as raised,
    ):
        JudgeResource().judge(config)(asked())
    assert raised.value.passing
