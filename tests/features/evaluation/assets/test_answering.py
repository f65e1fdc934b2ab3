"""Questions become pieces of about equal length, the longest first; a lost piece costs no question but the guilty."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.features.evaluation.assets.answering import AskedQueue
from gateau_dagster.features.evaluation.generation.answering import AskedTurn
from gateau_dagster.resources.pools.piece_queue import MOST, Job
from tests.kit.error_codes import refused
from tests.resources.pools.questions import questions


def asked(lengths: list[int], missing: set[str] | None = None, pieces: int = 4) -> AskedQueue:
    turns = [AskedTurn(question=each) for each in questions(lengths)]
    names = {each.question.question_id for each in turns}
    return AskedQueue(
        turns,
        frozenset(names if missing is None else missing),
        pieces=pieces,
        warn=list[str]().append,
        cure="Buy memory.",
    )


def taken(found: AskedQueue) -> list[Job]:
    jobs = list[Job]()
    while (job := found.take()) is not None:
        jobs.append(job)
    return jobs


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(1, 9))
def test_every_question_is_in_one_piece(lengths: list[int], pieces: int) -> None:
    found = asked(lengths, pieces=pieces)
    assert found.waiting() == len(lengths)
    jobs = taken(found)
    assert sorted(name for job in jobs for name in job.piece.missing) == sorted(f"q{n}" for n in range(len(lengths)))
    assert len(jobs) <= pieces + 1
    sizes = [max(len(each.question.turns[0]) for each in job.piece.asked) for job in jobs]
    assert sizes == sorted(sizes, reverse=True), "the longest first"


def test_what_is_answered_together_is_what_is_asked_together() -> None:
    lengths = [10, 300, 20, 200, 30, 100]
    all_jobs, some = taken(asked(lengths)), taken(asked(lengths, missing={"q0", "q3"}))
    together = [[each.question.question_id for each in job.piece.asked] for job in all_jobs]
    assert sum(len(job.piece.missing) for job in some) == 2
    assert all([each.question.question_id for each in job.piece.asked] in together for job in some)


def deadly(found: AskedQueue, killing: Collection[str]) -> tuple[int, set[str], set[str]]:
    """Deaths, answered and rejected questions, of one worker at a time that dies over some of them."""
    deaths, answered, rejected = 0, set[str](), set[str]()
    while (job := found.take()) is not None:
        if job.piece.missing.isdisjoint(killing):
            answered |= job.piece.missing
            found.took(job)
        else:
            deaths += 1
            reject = found.give_back(job, "One died")
            rejected |= set() if reject is None else {reject.sample_id}
            assert reject is None or "3 workers died" in reject.reason
    return deaths, answered, rejected


def test_a_question_that_kills_is_rejected_and_the_others_are_answered() -> None:
    deaths, answered, rejected = deadly(asked([10] * 8, pieces=1), {"q5"})
    assert rejected == {"q5"} and answered == {f"q{number}" for number in range(8)} - {"q5"}
    assert deaths == MOST + 3


def test_workers_that_die_over_every_question_end_the_step() -> None:
    found = asked([10] * 40, pieces=8)
    with refused("execution.workers_die", match="3 questions"):
        deadly(found, {f"q{number}" for number in range(40)})
    assert found.waiting() > 20, "few were tried"


def test_the_longest_questions_alone_may_kill() -> None:
    """They come first, and are more than are rejected before workers are taken to die over all."""
    killing = {f"q{number}" for number in range(2 * MOST)}
    _, answered, rejected = deadly(asked([900] * len(killing) + [10] * 8), killing)
    assert rejected == killing
    assert answered == {f"q{number}" for number in range(len(killing), len(killing) + 8)}
