"""Reads and prepares the next samples in a thread of its own, while the device is busy with those before."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


def read_ahead(items: Iterable[_Item], *, weight: Callable[[_Item], int], limit: int) -> Generator[_Item]:
    """The same items in the same order, taken from `items` by a thread that is at most `limit` of weight ahead.

    A single item may weigh more. An error of `items` is raised here, after the items before it. When the generator
    is closed (an error or an interrupt at the consumer, too), the thread ends as soon as `items` has given what it
    is about to give.
    """
    buffer = _Buffer[_Item](limit)
    thread = threading.Thread(target=_fill, args=(buffer, items, weight), name="gateau-read-ahead", daemon=True)
    try:
        thread.start()
        yield from iter(buffer.take, None)
    finally:
        buffer.close()
        if thread.ident is not None:  # an interrupt may come before it runs
            thread.join()


class _Buffer(Generic[_Item]):
    """Items between the two threads. Neither spins: each waits until the other has changed something."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[_Item, int]] = deque()
        self._held = 0
        self._complete = False
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: _Item, weight: int) -> bool:
        """Add an item once there is room; False when nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._items or self._held + weight <= self._limit)
            self._items.append((item, weight))
            self._held += weight
            self._changed.notify_all()
            return not self._closed

    def take(self) -> _Item | None:
        """The next item; None after the last. Raises the error that ended the items."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._complete)
            if self._items:
                item, weight = self._items.popleft()
                self._held -= weight
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def end(self, error: BaseException | None) -> None:
        """No item comes after those put so far."""
        with self._changed:
            self._complete = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """No item is wanted any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _fill(buffer: _Buffer[_Item], items: Iterable[_Item], weight: Callable[[_Item], int]) -> None:
    try:
        for item in items:
            if not buffer.put(item, weight(item)):
                break
    except BaseException as error:  # whatever it is, the consumer is to hear of it
        buffer.end(error)
    else:
        buffer.end(None)
