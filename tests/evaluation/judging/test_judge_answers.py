"""Every judgment is made once, kept and counted, whatever the judge says."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster import tables
from gateau_dagster.errors import TransientError
from gateau_dagster.evaluation.judging.cost import BudgetError
from gateau_dagster.evaluation.judging.judge_answers import (
    Judged,
    answers_by_question,
    judge_answers,
    longest_answers,
    wanted_judgments,
)
from gateau_dagster.evaluation.judging.replies import JudgeCall, Replies, Reply, Usage
from gateau_dagster.evaluation.server_client import UnansweredError, UnusableServerError
from gateau_dagster.storage.files import Files

from .builders import JUDGED, FakeJudge, answers, question, settings


def replies(folder: Path) -> Replies:
    return Replies(Files(str(folder)), "judge")


def judged(folder: Path, judge: FakeJudge, given: dict[str, list[str]], *, again: int = 0, **keys: object) -> Judged:
    config = settings(**keys)
    questions = [question(name, turns=len(texts)) for name, texts in given.items()]
    wanted = wanted_judgments(questions, answers_by_question(answers(given)), JUDGED, config)
    return judge_answers(wanted, JUDGED.parse, judge, replies(folder), config, again=again)


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


def test_another_judge_has_replies_of_its_own(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: "[[3]]")
    for model in ("judge", "other"):
        judged(tmp_path, judge, {"a": ["x"]}, model=model)
    assert [each.judge for each in judge.asked] == ["judge", "other"]


def test_an_unreadable_reply_is_asked_for_again_then_kept_and_paid(tmp_path: Path) -> None:
    judge = FakeJudge(lambda asked: "[[7]]" if asked.attempt == 2 and "a asks" in str(asked.messages) else "11 of 10")
    found = judged(tmp_path, judge, {"a": ["x"], "b": ["x"]}, again=2)
    assert found.table.select("score", "reply", "requests").rows() == [(7.0, "[[7]]", 3), (None, "11 of 10", 3)]
    assert found.new.requests == 6 == len(judge.asked)
    assert judged(tmp_path, judge, {"a": ["x"], "b": ["x"]}, again=2).new.requests == 0


def test_a_question_without_all_its_answers_is_left_to_whoever_lost_them() -> None:
    wanted = wanted_judgments([question("a", turns=2), question("b")], {"a": {0: "x"}}, JUDGED, settings())
    assert wanted == []


def test_before_there_are_answers_they_are_taken_to_be_of_full_length() -> None:
    questions = [question("a", turns=2)]
    wanted = wanted_judgments(questions, longest_answers(questions), JUDGED, settings(repeats=3))
    assert len(wanted) == 6
    assert wanted[0].asked.messages[-1]["content"].split("|")[1].split() == ["the"] * 8


def test_what_is_not_answered_is_counted_and_asked_again_in_the_next_run(tmp_path: Path) -> None:
    def reply(asked: JudgeCall) -> str:
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
    def reply(asked: JudgeCall) -> str:
        raise UnansweredError("out of order", passing=passing)

    judge = FakeJudge(reply)
    with pytest.raises(kind, match=r"evaluation\.judge: .*out of order"):
        judged(tmp_path, judge, {f"q{number:03d}": ["x"] for number in range(100)}, concurrency=2)
    assert len(judge.asked) <= 10 + passing  # the first one is asked once more
    with pytest.raises(kind, match="out of order"):
        judged(tmp_path, judge, {"a": ["x"]})


def test_a_judge_that_works_may_refuse_all_of_a_few(tmp_path: Path) -> None:
    """As of a shard of one sample, which is too long for it; a judge that is out of order is still told."""

    def reply(asked: JudgeCall) -> str:
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
    def reply(asked: JudgeCall) -> str:
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

    def reply(asked: JudgeCall) -> str:
        if "q0 " not in asked.messages[-1]["content"]:
            barrier.wait()
        return "[[3]]"

    found = judged(tmp_path, FakeJudge(reply), {f"q{number}": ["x"] for number in range(9)}, concurrency=4)
    assert found.table.height == 9


def test_of_equal_requests_that_are_wanted_at_once_one_is_paid(tmp_path: Path) -> None:
    """As for two samples with one instruction, whose complexity is rated by it alone."""

    def reply(asked: JudgeCall) -> str:
        time.sleep(0.05)  # else each would be kept before the next one is looked for
        return "[[3]]"

    config, judge = settings(concurrency=8), FakeJudge(reply)
    each = wanted_judgments([question("a"), question("b")], {"a": {0: "x"}, "b": {0: "x"}}, JUDGED, config)
    wanted = [replace(one, question_id=f"{one.question_id}{number}") for one in each for number in range(10)]
    found = judge_answers(wanted, JUDGED.parse, judge, replies(tmp_path), config)
    assert found.table["score"].to_list() == [3.0] * 20 and len(judge.asked) == 2


def test_replies_that_came_before_an_end_are_not_asked_for_again(tmp_path: Path) -> None:
    def reply(asked: JudgeCall) -> str:
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
    asked = JudgeCall(judge="judge", messages=[{"role": "user", "content": "ü"}], max_tokens=3)
    reply = Reply(text='{"ä": "\0\n"}', prompt_tokens=3, reply_tokens=0, seconds=0.25)
    replies(tmp_path).keep(asked, reply)
    assert replies(tmp_path).find(asked) == reply
    assert replies(tmp_path).spent == Usage(requests=1, prompt_tokens=3)


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
