"""Reads and prepares the next samples in a thread of its own, while the device is busy with those before."""

import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

_Item = TypeVar("_Item")


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
