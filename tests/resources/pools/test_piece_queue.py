"""Shards become pieces of about equal work, the longest samples first; a lost piece costs no sample but the guilty."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.errors import GateauError
from resources.pools.piece_queue import MOST, PieceJob, PieceQueue

NOBODY: frozenset[str] = frozenset()


def queue(
    costs: Mapping[str, Mapping[str, float]], *, workers: int = 2, seconds: float = 10, warned: list[str] | None = None
) -> PieceQueue:
    return PieceQueue(
        shards={shard: [] for shard in costs},
        lacking=lambda shard: {name: frozenset({"cam"}) for name in costs[shard]},
        costs=lambda shard: costs[shard],
        workers=workers,
        seconds=seconds,
        warn=(warned if warned is not None else []).append,
    )


def ids(job: PieceJob | None) -> list[str]:
    assert job is not None
    return [*job.piece.lacking]


def rest(found: PieceQueue, *, rate: float = 1.0) -> list[PieceJob]:
    """Everything that is left, by workers of a rate."""
    jobs = []
    while (job := found.take()) is not None:
        jobs.append(job)
        found.took(job, job.cost / rate)
    return jobs


shards = st.dictionaries(
    st.sampled_from("abcdef"),
    st.dictionaries(st.integers(0, 40).map(str), st.floats(0, 1e6), max_size=30),
    min_size=1,
)


@given(shards, st.integers(1, 9), st.floats(0.01, 1e4), st.floats(1e-3, 1e3))
def test_every_sample_is_in_one_piece(
    costs: dict[str, dict[str, float]], workers: int, seconds: float, rate: float
) -> None:
    found = rest(queue(costs, workers=workers, seconds=seconds), rate=rate)
    given_out = [(job.piece.shard, name) for job in found for name in job.piece.lacking]
    assert sorted(given_out) == sorted((shard, name) for shard, names in costs.items() for name in names)
    assert all(job.piece.lacking for job in found)


def test_a_sample_of_unknown_work_counts_as_the_others() -> None:
    some = queue({"0": {"a": 4.0, "b": 2.0, "c": 3.0}})
    some.costs = lambda shard: {"a": 4.0, "b": 2.0}
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


def test_samples_in_hand_are_scored_alone_and_one_that_three_died_over_is_rejected() -> None:
    found = queue({"0": dict.fromkeys("abcd", 1.0)}, workers=1, seconds=1)
    found._open_block()
    found._first = 4.0
    whole = found.take()
    assert ids(whole) == ["a", "b", "c", "d"] and whole is not None
    assert found.give_back(whole, "One died", frozenset("bc"), machine=False) is None
    suspects = [found.take(), found.take()]
    assert [ids(job) for job in suspects] == [["b"], ["c"]]
    others = found.take()
    assert ids(others) == ["a", "d"] and others is not None and others.losses == 0
    guilty = suspects[0]
    assert guilty is not None and guilty.losses == 1
    assert found.give_back(guilty, "Two died", frozenset("b"), machine=False) is None
    guilty = found.take()
    assert guilty is not None and guilty.losses == 2
    rejected = found.give_back(guilty, "Three died", NOBODY, machine=False)
    assert rejected is not None
    [reject] = rejected.rejects["cam"]
    assert reject.sample_id == "b" and reject.short_of_memory and "3 scoring workers died" in reject.reason
    assert found.take() is None


def test_where_no_suspect_is_known_halves_lead_to_the_guilty() -> None:
    found = queue({"0": {str(n): 1.0 for n in range(64)}}, workers=1)
    found._open_block()
    found._first = 64.0
    deaths, done, rejected = 0, set(), []
    while (job := found.take()) is not None:
        if "37" in job.piece.lacking:
            deaths += 1
            given_up = found.give_back(job, "One died", NOBODY, machine=False)
            rejected += [] if given_up is None else given_up.rejects["cam"]
        else:
            found.took(job, 1.0)
            done |= job.piece.lacking.keys()
    assert [each.sample_id for each in rejected] == ["37"] and len(done) == 63
    assert deaths == MOST + 6, "three for all of them, and six halvings"


def test_lost_machines_are_nobodys_fault_for_a_while() -> None:
    found = queue({"0": {"a": 1.0}}, workers=1)
    for _ in range(3):
        job = found.take()
        assert job is not None and found.give_back(job, "Its node is gone", frozenset("a"), machine=True) is None
    for _ in range(MOST - 1):
        job = found.take()
        assert job is not None and found.give_back(job, "Its node is gone", frozenset("a"), machine=True) is None
    job = found.take()
    assert job is not None and found.give_back(job, "Its node is gone", frozenset("a"), machine=True) is not None


def test_where_everything_kills_the_step_ends() -> None:
    found = queue({"0": {str(n): 1.0 for n in range(20)}}, workers=1)
    with pytest.raises(GateauError, match="Workers die over each sample"):
        while (job := found.take()) is not None:
            found.give_back(job, "One died", frozenset(job.piece.lacking), machine=False)
