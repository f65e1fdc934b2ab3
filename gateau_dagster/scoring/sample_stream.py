"""Samples in, outcomes out, in the same order; the next ones are prepared while the device is busy with others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError

if TYPE_CHECKING:
    from gateau_dagster.models.forward import Passes

_Item = TypeVar("_Item")
_Outcome_co = TypeVar("_Outcome_co", covariant=True)


class StartedSample(Protocol[_Outcome_co]):
    """A sample whose prompts are queued."""

    @property
    def ready(self) -> bool:
        """Whether the outcome is known and takes no waiting."""
        ...

    def outcome(self) -> _Outcome_co:
        """The result; waits for the device where it is not `ready`."""
        ...


def in_order(passes: Passes, samples: Iterable[StartedSample[_Outcome_co]]) -> Iterator[_Outcome_co]:
    """The samples' outcomes. Each comes with the batch that holds the last of its prompts, or the first one after it.

    `samples` queue their prompts as they are taken.
    """
    waiting: deque[StartedSample[_Outcome_co]] = deque()
    for sample in samples:
        waiting.append(sample)
        passes.run(flush=False)
        while waiting and waiting[0].ready:
            yield waiting.popleft().outcome()
    passes.run(flush=True)
    while waiting:
        yield waiting.popleft().outcome()


def rejected(sample_id: str, error: UnscorableSampleError) -> Reject:
    """The reject that says why the sample has no score."""
    return Reject(sample_id=sample_id, reason=str(error), short_of_memory=isinstance(error, ShortOfMemoryError))


@dataclass(frozen=True, kw_only=True)
class _End:
    """Comes after the last item; the error, if any, that ended them."""

    error: BaseException | None = None


_Ready: TypeAlias = SimpleQueue[tuple[_Item, int] | _End]
_Freed: TypeAlias = SimpleQueue[int | None]  # weights that the consumer took; None: it wants no more


def read_ahead(items: Iterable[_Item], *, weight: Callable[[_Item], int], limit: int) -> Generator[_Item]:
    """The same items in the same order, taken from `items` by a thread that is at most `limit` of weight ahead.

    A single item may weigh more. An error of `items` is raised here, after the items before it. When the generator
    is closed (an error or an interrupt at the consumer, too), the thread ends as soon as `items` has given what it
    is about to give.
    """
    # No condition variable: an interrupt between two of its steps leaves its lock released twice, or held for ever.
    # What the consumer calls of a SimpleQueue is one step, which an interrupt comes before or after.
    ready: _Ready[_Item] = SimpleQueue()
    freed: _Freed = SimpleQueue()
    thread = threading.Thread(
        target=_fill, args=(ready, freed, items, weight, limit), name="gateau-read-ahead", daemon=True
    )
    try:
        thread.start()
        yield from iter(lambda: _take(ready, freed), None)
    finally:
        freed.put(None)
        if thread.ident is not None:  # an interrupt may come before it runs
            thread.join()


def _take(ready: _Ready[_Item], freed: _Freed) -> _Item | None:
    """The next item; None after the last. Raises the error that ended the items."""
    found = ready.get()
    if isinstance(found, _End):
        if found.error is not None:
            raise found.error
        return None
    item, weight = found
    freed.put(weight)
    return item


def _fill(
    ready: _Ready[_Item], freed: _Freed, items: Iterable[_Item], weight: Callable[[_Item], int], limit: int
) -> None:
    held = 0  # weight that waits for the consumer
    try:
        for item in items:
            size = weight(item)
            while not freed.empty() or (held and held + size > limit):
                taken = freed.get()
                if taken is None:
                    return
                held -= taken
            ready.put((item, size))
            held += size
    except BaseException as error:  # whatever it is, the consumer is to hear of it
        ready.put(_End(error=error))
    else:
        ready.put(_End())
