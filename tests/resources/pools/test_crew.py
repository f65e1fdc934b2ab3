"""Workers that die before they begin end the step, whenever the last of those that began is lost."""

from collections.abc import Iterator
from typing import Any

from gateau_dagster.resources.pools.crew import Crew, Lost, Member
from gateau_dagster.resources.pools.piece_queue import MOST, Job
from gateau_dagster.resources.pools.worker import Refused, Started
from tests.kit.error_codes import refused

LOST = "lost"


class Scripted(Crew[Member]):
    """A crew whose newest worker does what it is told to."""

    def __init__(self, warned: list[str]) -> None:
        super().__init__(2, warned.append)

    def _start(self) -> Member:
        return Member()

    def _send(self, member: Member, job: Job) -> None:
        raise AssertionError("there is no work")

    def _end(self, member: Member) -> None:
        del member

    def _received(self, seconds: float) -> Iterator[tuple[Member, Any]]:
        member = self._members[-1]
        yield member, Lost(member=member, how="The worker died") if self._next == LOST else self._next

    def close(self) -> None:
        self._members.clear()

    def hear(self, answer: Any) -> None:
        """Let the newest worker answer; a lost worker is replaced."""
        self._grow(len(self._members) + (0 if answer == LOST and self._members else 1))
        self._next = answer
        assert not [*self.events()]


def test_workers_that_die_before_they_begin_end_the_step() -> None:
    warned: list[str] = []
    crew = Scripted(warned)
    for _ in range(MOST - 1):
        crew.hear(LOST)
    crew.hear(Started(name="first"))
    crew._members.clear()
    for _ in range(MOST - 1):
        crew.hear(LOST)
    with refused("execution.workers_die", match="The worker died: 3 workers in a row"):
        crew.hear(LOST)
    assert [line[-15:] for line in warned] == ["1 of 3 in a row", "2 of 3 in a row"] * 2 + ["3 of 3 in a row"]


def test_one_that_had_begun_only_puts_off_the_end() -> None:
    warned: list[str] = []
    crew = Scripted(warned)
    crew.hear(Started(name="first"))
    for _ in range(MOST):
        crew._grow(2)
        crew.hear(LOST)
    crew.hear(LOST)
    assert warned[-1] == "The worker died while it waited"
    with refused("execution.workers_die", match="4 workers in a row"):
        crew.hear(LOST)


def test_refused_machines_are_named_once_and_end_the_step() -> None:
    warned: list[str] = []
    crew = Scripted(warned)
    for _ in range(2):
        crew.hear(Refused(lines=("a: no GPU answers",)))
    assert warned == ["A node of the Ray cluster does not score: a: no GPU answers"]
    with refused("execution.ray_nodes", match="a: no GPU answers"):
        crew._check_progress()
