"""Questions become pieces of about equal length, the same whatever was answered before; a lost piece loses none."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.generation.answering import AskedTurn, Outcome
from resources.pools.on_ray import AskedJob, AskedQueue
from resources.pools.piece_queue import MOST
from tests.resources.pools.questions import questions


def queue(
    lengths: list[int], missing: set[str] | None = None, pieces: int = 4, warned: list[str] | None = None
) -> AskedQueue:
    asked = [AskedTurn(question=each) for each in questions(lengths)]
    names = {each.question.question_id for each in asked}
    return AskedQueue(
        asked,
        frozenset(names if missing is None else missing),
        pieces=pieces,
        warn=(warned if warned is not None else []).append,
    )


def rest(found: AskedQueue) -> list[AskedJob]:
    jobs = []
    while (job := found.take()) is not None:
        jobs.append(job)
    return jobs


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(1, 9))
def test_every_question_is_in_one_piece(lengths: list[int], pieces: int) -> None:
    found = queue(lengths, pieces=pieces)
    assert found.waiting() == len(lengths)
    jobs = rest(found)
    assert sorted(name for job in jobs for name in job.piece.missing) == sorted(f"q{n}" for n in range(len(lengths)))
    assert len(jobs) <= pieces + 1
    sizes = [max(len(each.question.turns[0]) for each in job.piece.asked) for job in jobs]
    assert sizes == sorted(sizes, reverse=True), "the longest first"


def test_what_is_answered_together_is_what_is_asked_together() -> None:
    lengths = [10, 300, 20, 200, 30, 100]
    whole, some = rest(queue(lengths)), rest(queue(lengths, missing={"q0", "q3"}))
    together = [[each.question.question_id for each in job.piece.asked] for job in whole]
    assert sum(len(job.piece.missing) for job in some) == 2
    assert all([each.question.question_id for each in job.piece.asked] in together for job in some)


def deadly(found: AskedQueue, killing: Collection[str]) -> tuple[int, set[str], list[Outcome]]:
    """Deaths, answered and rejected questions, of one worker at a time that dies over some of them."""
    deaths, answered, rejected = 0, set[str](), list[Outcome]()
    while (job := found.take()) is not None:
        if job.piece.missing.isdisjoint(killing):
            answered |= job.piece.missing
            found.took()
        else:
            deaths += 1
            rejected += found.give_back(job, "One died", machine=False)
    return deaths, answered, rejected


def test_a_question_that_kills_is_rejected_and_the_others_are_answered() -> None:
    deaths, answered, rejected = deadly(queue([10] * 8, pieces=1), {"q5"})
    [reject] = rejected
    assert isinstance(reject, Reject) and reject.sample_id == "q5" and "3 workers died" in reject.reason
    assert answered == {f"q{number}" for number in range(8)} - {"q5"}
    assert deaths == MOST + 3


def test_workers_that_die_over_every_question_end_the_step() -> None:
    warned: list[str] = []
    found = queue([10] * 40, pieces=8, warned=warned)
    with pytest.raises(GateauError, match="Workers die over each question, and none was answered: 3 questions took 3"):
        deadly(found, {f"q{number}" for number in range(40)})
    assert len(warned) < 4 * MOST, "deaths"


def test_the_longest_questions_alone_may_kill() -> None:
    """They come first, and are more than are rejected before workers are taken to die over all."""
    killing = {f"q{number}" for number in range(2 * MOST)}
    _, answered, rejected = deadly(queue([900] * len(killing) + [10] * 8), killing)
    assert {each.sample_id for each in rejected if isinstance(each, Reject)} == killing
    assert answered == {f"q{number}" for number in range(len(killing), len(killing) + 8)}


def test_a_lost_machine_is_not_counted() -> None:
    found = queue([10], pieces=1)
    for _ in range(9):
        job = found.take()
        assert job is not None and not found.give_back(job, "Its node is gone", machine=True)
    job = found.take()
    assert job is not None and found.give_back(replace(job, losses=MOST - 1), "It died", machine=False)
