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
)
from gateau_dagster.features.evaluation.judging.replies import ServerCall
from tests.features.evaluation.judges import JudgeServer, Play, judge_all, judge_server, said, settings
from tests.kit.fake_server import BEHAVIOURS, Act, refuse, reset

KEY = "sk-test-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


@contextmanager
def serving(play: Play, **keys: Any) -> Iterator[tuple[JudgeServer, Any]]:
    with judge_server(play) as server:
        given = {"key": "JUDGE_KEY", "retries": 2, "timeout": 5.0, "base_url": server.address, **keys}
        yield server, settings(**given)


def asked(text: str = "?") -> ServerCall:
    return ServerCall(model="judge", messages=[{"role": "user", "content": text}], max_tokens=7, temperature=0.25)


def judged(folder: Path, config: Any, names: list[str], *, again: int = 0) -> Judged:
    return judge_all(folder, JudgeResource().judge(config), {name: ["x"] for name in names}, config, again=again)


def test_what_is_sent_and_what_comes_back() -> None:
    with serving(lambda message, before: said("fine [[8]]")) as (server, config):
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
    with serving(lambda message, before: said(usage=False), token_limit="max_completion_tokens") as (server, config):
        reply = JudgeResource().judge(config)(asked("one two"))
    assert server.requests[0]["max_completion_tokens"] == 7 and "max_tokens" not in server.requests[0]
    assert (reply.prompt_tokens, reply.reply_tokens) == (3, 5), "about a token for 3 bytes"


def test_a_budget_of_money_is_used_up_by_replies_without_usage(tmp_path: Path) -> None:
    prices, budget = {"prompt": 0.0, "reply": 1.0}, {"money": 6e-6}  # of which a reply takes 5
    with (
        serving(lambda message, before: said(usage=False), prices=prices, budget=budget, concurrency=1) as served,
        pytest.raises(BudgetError, match="the budget is"),
    ):
        judged(tmp_path, served[1], ["a", "b", "c"])
    assert len(served[0].requests) == 2


PASSING: list[Act] = [
    refuse(429, retry_after="0.01"),
    refuse(500, retry_after_ms="1"),
    refuse(503, retry_after_ms="1"),
    BEHAVIOURS["half body"].act,
    reset,
]


def test_replies_off_the_scale_are_kept_and_counted_and_so_is_what_has_none(tmp_path: Path) -> None:
    texts = {"a": "[[11]]", "b": "11 of 10", "c": "no idea", "d": "\ud800 [[4]]"}
    acts = {**{name: said(text) for name, text in texts.items()}, "e": refuse(400, "too long")}
    with serving(lambda message, before: acts[message[0]]) as (server, config):
        found = judged(tmp_path, config, [*acts], again=1)
        assert len(server.requests) == 8
    assert found.table["score"].to_list() == [None, None, None, 4.0]
    assert found.table["reply"].to_list()[:3] == ["[[11]]", "11 of 10", "no idea"]
    counted = unreadable(found.table, rejected_frame(found.rejected))
    assert (counted.judgments, counted.unanswered, counted.share, counted.notable) == (4, 1, 0.8, True)


def test_a_server_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    config = settings(base_url="http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(TransientError, match=r"evaluation\.judge: http://127\.0\.0\.1:9/v1 leaves every request"):
        judged(tmp_path, config, ["a", "b"])


def test_a_storm_of_faults_loses_no_question_and_pays_for_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third request fails in some way before it is answered."""
    monkeypatch.setattr("gateau_dagster.features.evaluation.server_client.FIRST_PAUSE", 0.001)

    def play(message: str, before: int) -> Act:
        number = int(message.split(maxsplit=1)[0][1:])
        if number % 3 == 0 and before == 0:
            return PASSING[(number // 3) % len(PASSING)]
        return said("no idea" if number % 10 == 1 else f"[[{1 + number % 10}]]")

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
    with serving(lambda message, before: said(), key=None) as (server, config):
        JudgeResource().judge(config)(asked())
    assert server.keys == {"Bearer none"}
