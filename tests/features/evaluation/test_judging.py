"""Every judgment is made once, kept and counted, whatever the judge says."""

import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.costs import Usage
from gateau_dagster.errors import TransientError
from gateau_dagster.features.evaluation.judged import verdict
from gateau_dagster.features.evaluation.judging.asking import (
    EXPECTED_REPLY,
    BudgetError,
    check_affordable,
    cost_of_judgments,
    planned_cost,
)
from gateau_dagster.features.evaluation.judging.judge_answers import (
    PAIRWISE,
    Judged,
    Tally,
    answers_by_question,
    judge_answers,
    matches,
    pairwise_table,
    tallies,
    wanted_judgments,
    wanted_of,
)
from gateau_dagster.features.evaluation.judging.replies import Replies, Reply, ServerCall
from gateau_dagster.features.evaluation.server_client import UnansweredError, UnusableServerError
from gateau_dagster.storage.files import Files
from tests.features.evaluation.builders import answers
from tests.features.evaluation.judges import (
    JUDGED,
    FakeJudge,
    JudgeServer,
    judge_all,
    judge_server,
    question,
    said,
    settings,
)
from tests.features.evaluation.judging_process import CONCURRENT, TABLE, wanted
from tests.kit.fake_server import Act
from tests.kit.project import ROOT, command_environment


def replies(folder: Path) -> Replies:
    return Replies(Files(str(folder)), "judge")


def judged(folder: Path, judge: FakeJudge, given: dict[str, list[str]], *, again: int = 0, **keys: object) -> Judged:
    return judge_all(folder, judge, given, settings(**keys), again=again)


def test_each_turn_and_repeat_is_judged_and_the_table_says_how(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: f"[[{asked.repeat + 3}]]")
    found = judged(tmp_path, judge, {"a": ["x", "y"], "b": ["z"]}, repeats=2)
    assert found.table.schema == tables.schema(tables.JUDGMENTS)
    keys = [(name, turn, repeat) for name, turn in (("a", 0), ("a", 1), ("b", 0)) for repeat in (0, 1)]
    assert found.table.select("question_id", "turn", "repeat").rows() == keys
    assert found.table["score"].to_list() == [3.0, 4.0] * 3
    assert found.table["digest"].n_unique() == 6
    assert '"a asks 1 | y"' in found.table["prompt"][2]
    assert found.new == Usage(requests=6, prompt_tokens=6 * 6, reply_tokens=24)


def test_a_changed_answer_is_judged_again_and_nothing_else_is(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: "[[3]]")
    judged(tmp_path, judge, {"a": ["x"], "b": ["y"]})
    again = judged(tmp_path, judge, {"a": ["x"], "b": ["other"], "c": ["z"]})
    assert [each.messages[-1]["content"] for each in judge.asked[2:]] == ["b asks 0 | other", "c asks 0 | z"]
    assert again.table.height == 3 and again.new.requests == 2
    judged(tmp_path, judge, {"a": ["x"]}, concurrency=3, timeout=7.0, base_url="http://elsewhere/v1")
    assert len(judge.asked) == 4
    judged(tmp_path, judge, {"a": ["x"]}, model="other")
    assert [each.model for each in judge.asked[3:]] == ["judge", "other"], "another judge has its own replies"


def test_an_unreadable_reply_is_asked_for_again_then_kept_and_paid(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: "[[7]]" if asked.attempt == 2 and "a asks" in str(asked.messages) else "11 of 10")
    found = judged(tmp_path, judge, {"a": ["x"], "b": ["x"]}, again=2)
    assert found.table.select("score", "reply", "requests").rows() == [(7.0, "[[7]]", 3), (None, "11 of 10", 3)]
    assert found.new.requests == 6 == len(judge.asked)
    assert judged(tmp_path, judge, {"a": ["x"], "b": ["x"]}, again=2).new.requests == 0


def test_a_question_without_all_its_answers_is_left_to_whoever_lost_them() -> None:
    wanted = wanted_judgments([question("a", turns=2), question("b")], {"a": {0: "x"}}, JUDGED, settings())
    assert wanted == []


def test_what_is_not_answered_is_counted_and_asked_again_in_the_next_run(tmp_path: Path) -> None:
    def reply(asked: ServerCall) -> str:
        if "b asks 0" in asked.messages[-1]["content"] and broken:
            raise UnansweredError("500: out of order", passing=True)
        return "[[5]]"

    broken, judge = True, FakeJudge(reply)
    found = judged(tmp_path, judge, {"a": ["x"], "b": ["x", "y"]})
    assert [(each.sample_id, each.reason) for each in found.rejected] == [("b", "turn 0: 500: out of order")]
    assert found.table.select("question_id", "turn").rows() == [("a", 0), ("b", 1)]
    broken = False
    found = judged(tmp_path, judge, {"a": ["x"], "b": ["x", "y"]})
    assert found.new.requests == 1 and not found.rejected


@pytest.mark.parametrize(("passing", "kind"), [(True, TransientError), (False, UnusableServerError)])
def test_a_judge_that_answers_nothing_ends_the_work(passing: bool, kind: type[Exception], tmp_path: Path) -> None:
    def reply(asked: ServerCall) -> str:
        raise UnansweredError("out of order", passing=passing)

    judge = FakeJudge(reply)
    with pytest.raises(kind, match=r"evaluation\.judge: .*out of order"):
        judged(tmp_path, judge, {f"q{number:03d}": ["x"] for number in range(100)}, concurrency=2)
    assert len(judge.asked) <= 10 + passing  # the first one is asked once more
    with pytest.raises(kind, match="out of order"):
        judged(tmp_path, judge, {"a": ["x"]})


def test_a_judge_that_works_may_refuse_all_of_a_few(tmp_path: Path) -> None:
    """As of a shard of one sample, which is too long for it; a judge that is out of order is still told."""

    def reply(asked: ServerCall) -> str:
        if "b asks" in str(asked.messages):
            raise UnansweredError("400: too long", passing=passing)
        return "[[5]]"

    judge, passing = FakeJudge(reply), False
    with pytest.raises(UnusableServerError, match="too long"):
        judged(tmp_path, judge, {"b": ["x"]})
    judged(tmp_path, judge, {"a": ["x"]})
    found = judged(tmp_path, judge, {"b": ["x"]})
    assert found.table.is_empty() and [each.reason for each in found.rejected] == ["turn 0: 400: too long"]
    passing = True
    with pytest.raises(TransientError, match="too long"):
        judged(tmp_path, judge, {"b": ["x"]})


def test_a_refusal_is_met_once_and_ends_all(tmp_path: Path) -> None:
    def reply(asked: ServerCall) -> str:
        raise UnusableServerError("evaluation.server_unusable", "evaluation.judge: wrong key")

    judge = FakeJudge(reply)
    with pytest.raises(UnusableServerError, match="wrong key"):
        judged(tmp_path, judge, {f"q{number}": ["x"] for number in range(50)}, concurrency=16)
    assert len(judge.asked) == 1


@pytest.mark.parametrize("budget", [{"requests": 3}, {"money": 3 * (2 * 5 + 8 * 4) / 1e6}])
def test_a_budget_that_is_used_up_ends_the_work_and_keeps_what_was_paid(
    budget: dict[str, float], tmp_path: Path
) -> None:
    judge, given = FakeJudge(lambda asked: "[[3]]"), {f"q{number}": ["x"] for number in range(10)}
    with pytest.raises(BudgetError, match=r"evaluation\.judge\.budget: .*raise the budget"):
        judged(tmp_path, judge, given, budget=budget)
    spent = len(judge.asked)
    assert 3 <= spent <= 4
    with pytest.raises(BudgetError):
        judged(tmp_path, judge, given, budget=budget)
    assert len(judge.asked) == spent
    assert judged(tmp_path, judge, given).new.requests == 10 - spent


def test_several_are_asked_at_a_time_and_no_more(tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=20)

    def reply(asked: ServerCall) -> str:
        if "q0 " not in asked.messages[-1]["content"]:
            barrier.wait()
        return "[[3]]"

    found = judged(tmp_path, FakeJudge(reply), {f"q{number}": ["x"] for number in range(9)}, concurrency=4)
    assert found.table.height == 9


def test_of_equal_requests_that_are_wanted_at_once_one_is_paid(tmp_path: Path) -> None:
    """As for two samples with one instruction, whose complexity is rated by it alone."""

    def reply(asked: ServerCall) -> str:
        time.sleep(0.05)  # else each would be kept before the next one is looked for
        return "[[3]]"

    config, judge = settings(concurrency=8), FakeJudge(reply)
    each = wanted_judgments([question("a"), question("b")], {"a": {0: "x"}, "b": {0: "x"}}, JUDGED, config)
    wanted = [replace(one, question_id=f"{one.question_id}{number}") for one in each for number in range(10)]
    found = judge_answers(wanted, JUDGED.parse, judge, replies(tmp_path), config)
    assert found.table["score"].to_list() == [3.0] * 20 and len(judge.asked) == 2


def test_replies_that_came_before_an_end_are_not_asked_for_again(tmp_path: Path) -> None:
    def reply(asked: ServerCall) -> str:
        if len(judge.asked) == 5:
            raise KeyboardInterrupt
        return "[[3]]"

    judge, given = FakeJudge(reply), {f"q{number}": ["x"] for number in range(8)}
    with pytest.raises(KeyboardInterrupt):
        judged(tmp_path, judge, given)
    before = len(judge.asked)
    assert judged(tmp_path, judge, given).table.height == 8
    assert len(judge.asked) - before == 8 - len({*range(before - 1)})


def test_a_damaged_reply_is_asked_for_again(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: "[[3]]")
    judged(tmp_path, judge, {"a": ["x"]})
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text().replace("[[3]]", "[[9]]"))
    assert judged(tmp_path, judge, {"a": ["x"]}).table["score"].to_list() == [3.0]
    assert len(judge.asked) == 2 and len([*tmp_path.rglob("*.json")]) == 1


def test_a_reply_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = ServerCall(model="judge", messages=[{"role": "user", "content": "ü"}], max_tokens=3)
    reply = Reply(text='{"ä": "\0\n"}', prompt_tokens=3, reply_tokens=0, seconds=0.25)
    replies(tmp_path).keep(asked, reply)
    assert replies(tmp_path).find(asked) == reply
    assert replies(tmp_path).spent == Usage(requests=1, prompt_tokens=3)
    other = Replies(Files(str(tmp_path)), "another judge")
    assert other.find(asked) is None and other.spent == Usage(), "one model's reply is not another's"


def test_it_says_what_is_to_be_judged_before_the_first_reply_and_what_is_spent(tmp_path: Path) -> None:
    judge, seen = FakeJudge(lambda asked: "[[3]]"), list[tuple[float, str]]()

    def progress(done: float, total: float | None, unit: str, note: str = "") -> None:
        assert (total, unit) == (2, "judgments")
        seen.append((done, note))

    judged(tmp_path, judge, {"a": ["x"]})
    wanted = wanted_judgments([question("a"), question("b")], {"a": {0: "x"}, "b": {0: "y"}}, JUDGED, settings())
    judge_answers(wanted, JUDGED.parse, judge, replies(tmp_path), settings(), progress)
    assert seen[0] == (0, "1 known before; the first new one is asked alone")
    assert [done for done, _ in seen] == [0, 1, 2] and seen[-1][1].startswith("1 request, 10 tokens")


# Costs are counted with a tokenizer, then with what the server counted, and refused above the budget.


def a_call(words: int) -> ServerCall:
    return ServerCall(model="judge", messages=[{"role": "user", "content": "word " * words}], max_tokens=1000)


def count_words(text: str) -> int:
    return len(text.split())


def test_without_replies_the_tokenizer_counts() -> None:
    found = planned_cost(settings(), [a_call(100), a_call(300)], None, count_words)
    assert found.usage == Usage(requests=2, prompt_tokens=400, reply_tokens=2 * EXPECTED_REPLY)
    assert found.kept == 0
    assert found.money == pytest.approx((2.0 * 400 + 8.0 * 600) / 1e6)


def test_replies_that_came_correct_the_count_and_cost_nothing(tmp_path: Path) -> None:
    replies = Replies(Files(str(tmp_path)), "judge")
    replies.keep(a_call(100), Reply(text="", prompt_tokens=230, reply_tokens=10, seconds=0.0))
    found = planned_cost(settings(), [a_call(100), a_call(300)], replies, count_words)
    assert found.kept == 1
    assert found.usage == Usage(requests=1, prompt_tokens=690, reply_tokens=10)
    assert (found + found).usage.prompt_tokens == 1380


def test_a_kept_reply_whose_tokens_nobody_counted_does_not_say_that_others_cost_nothing(tmp_path: Path) -> None:
    replies = Replies(Files(str(tmp_path)), "judge")
    replies.keep(a_call(100), Reply(text="", prompt_tokens=0, reply_tokens=0, seconds=0.0))
    found = planned_cost(settings(), [a_call(100), a_call(300)], replies, count_words)
    assert found.usage == Usage(requests=1, prompt_tokens=300, reply_tokens=EXPECTED_REPLY)


def test_equal_requests_are_asked_once_but_answers_to_come_are_taken_to_differ() -> None:
    found = planned_cost(
        settings(), [a_call(5), a_call(5), a_call(7)], None, count_words, longest=[a_call(9), a_call(9)]
    )
    assert (found.usage.requests, found.usage.prompt_tokens) == (4, 5 + 7 + 9 + 9)


@pytest.mark.parametrize(("budget", "fits"), [({"requests": 12}, True), ({"requests": 11}, False), ({}, True)])
def test_what_is_spent_counts_towards_the_budget(budget: dict[str, int], fits: bool) -> None:
    config = settings(budget=budget)
    planned = planned_cost(config, [a_call(1), a_call(2)], None, count_words)
    if fits:
        check_affordable(config, Usage(requests=10), planned)
    else:
        with pytest.raises(BudgetError, match=r"evaluation\.judge\.budget: .*11 requests"):
            check_affordable(config, Usage(requests=10), planned)


def test_money_has_its_budget_and_nothing_to_ask_is_always_affordable() -> None:
    config = settings(budget={"money": 0.001})
    with pytest.raises(BudgetError, match=r"0\.00 USD"):
        check_affordable(config, Usage(), planned_cost(config, [a_call(1), a_call(2)], None, count_words))
    check_affordable(config, Usage(prompt_tokens=10**9), planned_cost(config, [], None, count_words))


def test_a_table_of_judgments_has_its_price() -> None:
    judgments = pl.DataFrame({"requests": [1, 3], "prompt_tokens": [1000, 2000], "reply_tokens": [10, 20]})
    assert cost_of_judgments(settings(), judgments) == pytest.approx((2.0 * 3000 + 8.0 * 30) / 1e6)
    assert cost_of_judgments(settings(), judgments.clear()) == 0
    assert cost_of_judgments(settings(prices=None), judgments) is None


# kill -9 at ten random moments of judging: the same table, and no reply that was kept is paid again.


KILLS = 10


def started(server: JudgeServer, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.features.evaluation.judging_process", server.address, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=command_environment())


def rated(message: str) -> str:
    """Answer by the question; one reply in seven cannot be read."""
    number = sum(map(ord, message))
    return "[[none]]" if number % 7 == 0 else f"[[{1 + number % 10}]]"


def score(message: str, before: int) -> Act:
    return said(rated(message), wait=0.05)


def counted(done: set[str], twice: list[str], message: str, before: int) -> Act:
    """As `score`; a request whose reply was kept and can be read is noted in `twice`."""
    if message in done and rated(message) != "[[none]]":
        twice.append(message)
    return score(message, before)


@pytest.mark.long
def test_ten_kills_change_nothing_and_cost_what_was_under_way(tmp_path: Path) -> None:
    lot = random.Random(12)
    twice: list[str] = []
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    with judge_server(score) as server:
        assert started(server, undisturbed).wait() == 0
        once = len(server.requests)
        server.requests.clear()
        for _ in range(KILLS):
            before = len(server.requests)
            process = started(server, killed)
            while len(server.requests) == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(lot.uniform(0, 0.25))
            process.kill()
            assert process.wait() != 0, "it was killed in the middle"
            time.sleep(0.1)  # what it had sent is answered to nobody
            kept = Replies(Files(str(killed)), "judge")
            done = {each.asked.messages[-1]["content"] for each in wanted() if each.asked in kept}
            server.play = partial(counted, done, twice)
        assert started(server, killed).wait() == 0
        assert len(server.requests) <= once + KILLS * CONCURRENT
    assert not twice
    tables = [pl.read_parquet(folder / TABLE) for folder in (undisturbed, killed)]
    assert tables[0].equals(tables[1])


# Pairs are judged in both orders; what depends on the order is a tie and is counted as bias.


SAID = {
    "longer": lambda left, right: "[[A]]" if len(left) > len(right) else "[[B]]" if len(right) > len(left) else "[[C]]",
    "first": lambda left, right: "[[A]]",
    "second": lambda left, right: "[[B]]",
    "silent": lambda left, right: "hm",
}


def played(folder: Path, how: str, left: dict[str, list[str]], right: dict[str, list[str]]) -> tuple[Any, FakeJudge]:
    def reply(asked: Any) -> str:
        _, one, other = asked.messages[-1]["content"].split(" ")
        return SAID[how](one, other)

    judge, config = FakeJudge(reply), settings()
    questions = [question(name, turns=len(texts)) for name, texts in left.items()]
    given = {name: answers_by_question(answers(texts)) for name, texts in (("x", left), ("y", right))}
    found = matches([("x", "y"), ("y", "x")], questions, given, JUDGED, config)
    judged = judge_answers(wanted_of(found), verdict, judge, Replies(Files(str(folder)), "judge"), config)
    return pairwise_table(found, judged.table), judge


LEFT, RIGHT = {"q": ["long", "a"], "r": ["aa"]}, {"q": ["s", "bb"], "r": ["cc"]}


def test_both_orders_say_the_same_of_a_judge_that_looks_at_the_answers(tmp_path: Path) -> None:
    table, judge = played(tmp_path, "longer", LEFT, RIGHT)
    assert table.schema == tables.schema(PAIRWISE)
    assert table.filter(one="x")["outcome"].to_list() == ["win", "loss", "tie"]
    assert table.filter(one="y")["outcome"].to_list() == ["loss", "win", "tie"]
    assert tallies(table)[0] == Tally(
        one="x", other="y", wins=1, ties=1, losses=1, unreadable=0, consistent=1.0, bias=0.0
    )
    assert len(judge.asked) == 6, "both orders of a pair are those of the pair turned round"


@pytest.mark.parametrize(("how", "bias"), [("first", 1.0), ("second", -1.0)])
def test_a_judge_that_looks_at_the_place_decides_nothing(how: str, bias: float, tmp_path: Path) -> None:
    (tally, _) = tallies(played(tmp_path, how, LEFT, RIGHT)[0])
    assert (tally.wins, tally.ties, tally.losses) == (0, 3, 0)
    assert (tally.consistent, tally.bias) == (0.0, bias)


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    table, _ = played(tmp_path, "silent", LEFT, RIGHT)
    assert table["outcome"].null_count() == table.height == 6
    assert [each.unreadable for each in tallies(table)] == [3, 3]


def test_a_question_that_one_did_not_answer_is_left_out(tmp_path: Path) -> None:
    table, _ = played(tmp_path, "longer", LEFT, {"q": ["s"], "r": ["cc"]})
    assert table["question_id"].unique().to_list() == ["r"]
