"""Shards become pieces of about equal work, the longest samples first; a lost piece costs no sample but the guilty."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.execution.shard_tables import Piece
from gateau_dagster.resources.pools.piece_queue import MOST, Job, JobQueue, PieceQueue
from tests.kit.error_codes import refused

BEFORE_THE_FIRST: frozenset[str] = frozenset()


def queue(
    costs: Mapping[str, Mapping[str, float]],
    *,
    workers: int = 2,
    seconds: float | None = 10,
    warned: list[str] | None = None,
    known: Callable[[str], Mapping[str, float]] | None = None,
) -> PieceQueue:
    shards = [
        Piece(shard=shard, works=[], lacking={name: frozenset({"cam"}) for name in found})
        for shard, found in costs.items()
    ]
    return PieceQueue(
        shards,
        costs=known or (lambda shard: costs[shard]),
        workers=workers,
        seconds=seconds,
        warn=(warned if warned is not None else []).append,
        settings="scoring.workers",
        cure="Buy memory.",
    )


def ids(job: Job | None) -> list[str]:
    assert job is not None
    return [*job.piece.ids]


def rest(found: PieceQueue, *, rate: float = 1.0) -> list[Job]:
    """Everything that is left, by workers of a rate."""
    jobs = list[Job]()
    while (job := found.take()) is not None:
        jobs.append(job)
        found.took(job, job.cost / rate)
    return jobs


shards = st.dictionaries(
    st.sampled_from("abcdef"),
    st.dictionaries(st.integers(0, 40).map(str), st.floats(0, 1e6), max_size=30),
    min_size=1,
)


@given(shards, st.integers(1, 9), st.none() | st.floats(0.01, 1e4), st.floats(1e-3, 1e3))
def test_every_sample_is_in_one_piece(
    costs: dict[str, dict[str, float]], workers: int, seconds: float | None, rate: float
) -> None:
    costs = {shard: found for shard, found in costs.items() if found}
    found = rest(queue(costs, workers=workers, seconds=seconds), rate=rate)
    given_out = [(job.piece.shard, name) for job in found for name in job.piece.lacking]
    assert sorted(given_out) == sorted((shard, name) for shard, names in costs.items() for name in names)
    assert all(job.piece.lacking for job in found)


def test_a_sample_of_unknown_work_counts_as_the_others() -> None:
    some = queue({"0": {"a": 4.0, "b": 2.0, "c": 3.0}}, known=lambda shard: {"a": 4.0, "b": 2.0})
    assert [ids(job) for job in rest(some)] == [["a"], ["c"], ["b"]]


def test_pieces_are_as_long_as_wanted_once_the_rate_is_known() -> None:
    found = queue({str(shard): {f"{shard}-{n}": 1.0 for n in range(100)} for shard in range(4)}, seconds=10)
    first = found.take()
    assert first is not None and len(ids(first)) == 6, "an eighth of what each of two has to do in the first shard"
    found.took(first, 3.0)  # two samples a second
    jobs = rest(found, rate=2.0)
    assert {len(ids(job)) for job in jobs[:10]} <= {20, 14}, "20 samples, or what is left of a shard"
    assert [len(ids(job)) for job in jobs[-4:-1]] == [2, 2, 2], "they shrink at the end, down to a second"


def test_the_longest_of_a_block_come_first_and_blocks_in_their_order() -> None:
    costs = {"0": {"a": 1.0, "b": 9.0}, "1": {"c": 5.0, "d": 2.0}, "2": {"e": 7.0}, "3": {"f": 100.0}}
    found = queue(costs, workers=1, seconds=10)  # the first block has four samples
    assert [name for job in rest(found) for name in ids(job)] == ["b", "c", "d", "a", "f", "e"]


def test_a_shard_that_is_not_cut_is_one_piece() -> None:
    found = queue({"0": {"a": 1.0, "b": 9.0}, "1": {"c": 5.0}}, seconds=None)
    assert found.waiting() == 2 and [ids(job) for job in rest(found)] == [["a", "b"], ["c"]]


def whole(warned: list[str] | None = None, names: str = "abcd") -> PieceQueue:
    """One shard that is not cut."""
    return queue({"0": dict.fromkeys(names, 1.0)}, seconds=None, warned=warned)


def lose(found: JobQueue, in_hand: str | None = None, *, machine: bool = False) -> str | None:
    """What is rejected when the next worker is lost."""
    job = found.take()
    assert job is not None
    hand = None if in_hand is None else frozenset(in_hand)
    rejected = found.give_back(job, "One died", hand, machine=machine)
    return None if rejected is None else rejected.sample_id


def test_samples_in_hand_are_scored_alone_and_one_that_three_died_over_is_rejected() -> None:
    warned: list[str] = []
    found = whole(warned)
    assert lose(found, "bc") is None
    assert lose(found, "b") is None
    job = found.take()
    assert ids(job) == ["b"] and job is not None and job.losses == 2
    reject = found.give_back(job, "Three died", frozenset("b"))
    assert reject is not None and reject.sample_id == "b" and reject.short_of_memory
    assert "3 scoring workers died over this sample" in reject.reason and "when scoring.workers is" in reject.reason
    left = [found.take(), found.take()]
    assert [(ids(job), job.losses) for job in left if job is not None] == [(["a", "d"], 0), (["c"], 1)]
    assert found.take() is None
    assert warned[0] == "One died while it scored 4 samples of shard 0; another worker takes them, loss 1 of 3"
    assert warned[2].startswith("Three died while") and "worker 3 of 3 that died over b" in warned[2]


def test_where_no_suspect_is_known_halves_lead_to_the_guilty() -> None:
    found = queue({"0": {str(n): 1.0 for n in range(64)}}, seconds=None)
    deaths, done, rejected = 0, set[str](), list[str]()
    while (job := found.take()) is not None:
        if "37" in job.piece.ids:
            deaths += 1
            reject = found.give_back(job, "One died")
            rejected += [] if reject is None else [reject.sample_id]
        else:
            found.took(job, 1.0)
            done |= {*job.piece.ids}
    assert rejected == ["37"] and len(done) == 63
    assert deaths == MOST + 6, "three for all of them, and six halvings"


@pytest.mark.parametrize("names", ["a", "ab"])
def test_three_deaths_before_the_first_sample_end_the_step(names: str) -> None:
    found = whole(names=names)
    assert lose(found, "") is None and lose(found, "") is None
    with refused("execution.workers_die", match=r"finished a sample .* Buy memory\."):
        lose(found, "")


def test_a_worker_that_is_lost_after_its_last_row_is_only_named() -> None:
    warned: list[str] = []
    found = whole(warned)
    job = found.take()
    assert job is not None and found.give_back(Job(piece=job.piece.part([])), "One died") is None
    assert warned == ["One died; all its rows are saved"] and found.take() is None


def test_lost_machines_are_nobodys_fault_for_a_while() -> None:
    found = whole(names="a")
    assert [lose(found, "a", machine=True) for _ in range(3 + MOST)] == [None] * (2 + MOST) + ["a"]


def test_where_everything_kills_the_step_ends() -> None:
    found = queue({"0": {str(n): 1.0 for n in range(20)}}, workers=1)
    with refused("execution.workers_die", match="3 samples"):
        while (job := found.take()) is not None:
            found.give_back(job, "One died", frozenset(job.piece.ids))
