"""Workers that die before they begin end the step, whenever the last of those that began is lost."""

from typing import Any

import pytest

from gateau_dagster.errors import GateauError
from resources.pools.on_ray import Staff
from resources.pools.piece_queue import MOST
from resources.pools.ray_crew import Lost, WorkerReady


class Ready:
    """Of a crew, how many have their model."""

    def __init__(self, ready: int) -> None:
        self.ready = ready


def lost(*, began: bool) -> Lost:
    return Lost(worker=0, job=None, how="The worker died", in_hand=frozenset(), machine=False, began=began)


def staff(crew: Any, warned: list[str]) -> Staff:
    return Staff(crew, most=2, warn=warned.append)


def test_workers_that_die_before_they_begin_end_the_step() -> None:
    warned: list[str] = []
    found = staff(Ready(0), warned)
    for _ in range(MOST - 1):
        found.heed(lost(began=False))
    found.heed(WorkerReady(worker=1))
    for _ in range(MOST - 1):
        found.heed(lost(began=False))
    with pytest.raises(GateauError, match="The worker died: 3 in a row were lost before they began, and none is at"):
        found.heed(lost(began=False))
    assert [line[-15:] for line in warned] == ["1 of 3 in a row", "2 of 3 in a row"] * 2 + ["3 of 3 in a row"]


def test_one_that_had_begun_only_puts_off_the_end() -> None:
    crew, warned = Ready(1), list[str]()
    found = staff(crew, warned)
    for _ in range(MOST):
        found.heed(lost(began=False))
    crew.ready = 0
    found.heed(lost(began=True))
    with pytest.raises(GateauError, match="4 in a row were lost before they began"):
        found.heed(lost(began=False))
