"""Turn samples into outcomes in the same order, and prepare the next samples while the device is busy."""

# Two problems meet here. Prompts of several samples share a batch, but rows must come in the order of the samples. And
# a GPU must not wait while Python reads and tokenises the next samples.
#
# The order is kept by a line of started samples: only its head can leave. A long sample at the head holds back finished
# ones behind it. By then they hold their prompts and a few numbers per response token, but no states.
#
# Reading ahead is done by one thread. Fast tokenisers work outside Python's lock, and passes on a GPU are queued, so a
# thread is enough. A process would have to send each prompt over a pipe.
#
# When another way is better: torch's DataLoader, if preparing a sample takes longer than its passes. It has several
# processes, and its own rules for errors and interrupts.

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
        """Return whether the outcome is available without waiting."""
        ...

    def outcome(self) -> _Outcome_co:
        """Return the result; waits for the device if it is not `ready`."""
        ...


def in_order(passes: Passes, samples: Iterable[StartedSample[_Outcome_co]]) -> Iterator[_Outcome_co]:
    """Yield the samples' outcomes. Each comes with the batch that holds the last of its prompts, or the first one after
    it.

    `samples` queue their prompts as they are taken.
    """
    waiting: deque[StartedSample[_Outcome_co]] = deque()
    for sample in samples:
        waiting.append(sample)
        # After each sample, not after many: full batches start at once, and the queue never holds more than a batch and
        # one sample.
        passes.run(flush=False)
        # `ready` is false while copies from a GPU are under way. Waiting here would leave the GPU without work for the
        # next batch.
        while waiting and waiting[0].ready:
            yield waiting.popleft().outcome()
    passes.run(flush=True)
    # Nothing is left to queue, so waiting costs nothing now.
    while waiting:
        yield waiting.popleft().outcome()


def rejected(sample_id: str, error: UnscorableSampleError) -> Reject:
    """Return the reject with the reason why the sample has no score."""
    return Reject(sample_id=sample_id, reason=str(error), short_of_memory=isinstance(error, ShortOfMemoryError))


@dataclass(frozen=True, kw_only=True)
class _End:
    """The marker after the last item, with the error that ended the items, if any."""

    error: BaseException | None = None


_Ready: TypeAlias = SimpleQueue[tuple[_Item, int] | _End]
_Freed: TypeAlias = SimpleQueue[int | None]  # weights that the consumer took; None: it needs no more


def read_ahead(items: Iterable[_Item], *, weight: Callable[[_Item], int], limit: int) -> Generator[_Item]:
    """Yield the same items in the same order, read by a thread that is at most `limit` of weight ahead.

    A single item may weigh more. An error of `items` is raised here, after the items before it. When the generator is
    closed (also by an error or an interrupt of the consumer), the thread ends after the item that `items` is producing.
    """
    # Not a condition variable: an interrupt between two of its steps leaves its lock released twice, or held for ever.
    # The consumer's calls of a SimpleQueue are single steps, which an interrupt cannot split.
    ready: _Ready[_Item] = SimpleQueue()
    freed: _Freed = SimpleQueue()
    # A daemon: if this generator is never closed, the process can still end.
    thread = threading.Thread(
        target=_fill, args=(ready, freed, items, weight, limit), name="gateau-read-ahead", daemon=True
    )
    try:
        thread.start()
        yield from iter(lambda: _take(ready, freed), None)
    finally:
        # Also after an error or an interrupt. The join waits for one item at most, the one that is being prepared.
        freed.put(None)
        if thread.ident is not None:  # an interrupt may come before it runs
            thread.join()


def _take(ready: _Ready[_Item], freed: _Freed) -> _Item | None:
    """Return the next item; None after the last. Raise the error that ended the items."""
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
    # The limit is in tokens, not in samples: one long sample may be as large as thousands of short ones.
    held = 0  # weight of the items that wait for the consumer
    try:
        for item in items:
            size = weight(item)
            # An item that is larger than the limit is let through if nothing waits. Otherwise it would wait for ever.
            while not freed.empty() or (held and held + size > limit):
                taken = freed.get()
                if taken is None:
                    return
                held -= taken
            ready.put((item, size))
            held += size
    except BaseException as error:  # the consumer raises it, whatever it is
        ready.put(_End(error=error))
    else:
        ready.put(_End())
