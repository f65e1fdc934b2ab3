"""Reading ahead: order, bound, errors on the consumer's side, and a thread that always ends."""

import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator

import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.sample_stream import read_ahead
from gateau_dagster.scoring.span_attention import Document, documents_ahead, sample_documents, text_ids
from tests.kit.tiny_models import passages, tokenizer


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gateau-read-ahead"]


def _one(_: object) -> int:
    return 1


def test_items_come_in_order_from_one_other_thread() -> None:
    where: set[int] = set()

    def source() -> Iterator[int]:
        for number in range(500):
            where.add(threading.get_ident())
            yield number

    assert list(read_ahead(source(), weight=_one, limit=3)) == list(range(500))
    assert len(where) == 1 and threading.get_ident() not in where
    assert not _threads()


def test_nothing_is_nothing() -> None:
    assert list(read_ahead([], weight=_one, limit=3)) == []


class Source:
    """Numbers that are also their weights; knows how many were taken, and can be waited for."""

    def __init__(self, weights: list[int]) -> None:
        self._weights = weights
        self.taken = 0
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[int]:
        for weight in self._weights:
            with self._changed:
                self.taken += 1
                self._changed.notify_all()
            yield weight

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.taken >= count, timeout=60)


def test_it_runs_ahead_by_the_limit_and_no_further() -> None:
    source = Source([4, 3, 3, 5, 2, 2, 2, 2])
    items = read_ahead(source, weight=int, limit=10)
    assert next(items) == 4
    source.wait_for(4)  # 3 and 3 wait, 5 is in hand and does not fit beside them
    time.sleep(0.05)  # had it no bound, it would take the others now
    assert source.taken == 4
    assert next(items) == 3
    source.wait_for(6)  # 3, 5 and 2 wait, the other 2 is in hand
    time.sleep(0.05)
    assert source.taken == 6
    assert list(items) == [3, 5, 2, 2, 2, 2]


def test_an_item_heavier_than_the_limit_passes_alone() -> None:
    assert list(read_ahead([99, 1, 99, 99], weight=int, limit=10)) == [99, 1, 99, 99]


def test_an_error_is_raised_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("no such file")

    items = read_ahead(source(), weight=_one, limit=5)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(OSError, match="no such file"):
        next(items)
    assert not _threads()


def test_an_error_of_the_weight_is_raised_too() -> None:
    with pytest.raises(ZeroDivisionError):
        list(read_ahead([1], weight=lambda _: 1 // 0, limit=5))


def _endless() -> Generator[int]:
    while True:
        yield 1


@pytest.mark.parametrize("how", ["close", "forget", "never started"])
def test_the_thread_ends_when_the_consumer_stops_early(how: str) -> None:
    items = read_ahead(_endless(), weight=_one, limit=5)
    if how != "never started":
        next(items)
        assert len(_threads()) == 1
    if how == "close":
        items.close()
    del items
    assert not _threads()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_thread_ends_when_the_consumer_fails(error: type[BaseException]) -> None:
    def consume() -> None:
        for _ in read_ahead(_endless(), weight=_one, limit=5):
            raise error

    with pytest.raises(error):
        consume()
    assert not _threads()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt: a process that was started in the background ignores it, and a Dagster run of an
    earlier test may have left a handler that only takes note."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupt() -> None:
    """As Ctrl-C does: the main thread gets the signal, whatever it waits for."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_the_wait_for_a_slow_source() -> None:
    taken: list[int] = []
    interrupted = threading.Event()
    waited: list[bool] = []

    def source() -> Iterator[int]:
        yield 1
        while not taken:
            time.sleep(0.001)
        time.sleep(0.05)  # by then the consumer waits for the second item
        _interrupt()
        waited.append(interrupted.wait(60))  # the source gives nothing before the consumer has seen the interrupt
        yield 2

    def handler(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    with pytest.raises(KeyboardInterrupt):
        for item in read_ahead(source(), weight=_one, limit=5):
            taken.append(item)
    assert taken == [1] and waited == [True]
    assert not _threads()


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_at_any_moment_is_an_interrupt_and_the_thread_ends() -> None:
    """Wherever in its exchange with the thread the consumer is: no other error, and no thread that waits for ever."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the threads meet in the middle of things
    try:
        for number in range(300):
            with pytest.raises(KeyboardInterrupt):
                for _ in read_ahead(_interrupting(1 + number % 40), weight=_one, limit=1 + number % 3):
                    pass
            assert not _threads()
    finally:
        sys.setswitchinterval(interval)


def _interrupting(place: int) -> Iterator[int]:
    for number in range(100):
        if number == place:
            _interrupt()
        yield number


WORDS = "a granite lighthouse"
SILENT = Sample(sample_id="s", source="t", context="c", instruction="i", response="")


def test_text_begins_with_the_bos_and_loses_its_right_end() -> None:
    whole = text_ids(tokenizer(), WORDS)
    assert whole[0] == tokenizer().bos_token_id
    assert text_ids(tokenizer(), WORDS, max_tokens=3) == whole[:3]
    assert text_ids(tokenizer(bos=False), WORDS) == whole[1:]


def test_text_that_is_not_unicode_has_no_ids() -> None:
    with pytest.raises(UnscorableSampleError, match="cannot be tokenised"):
        text_ids(tokenizer(), "\ud800")


def test_samples_are_their_prompts_and_one_without_a_response_a_reject_in_its_place() -> None:
    first, *others = passages()
    found = list(sample_documents(tokenizer(), [first, SILENT, *others], max_length=300, template="gateau"))
    assert found.pop(1) == Reject(sample_id="s", reason="the response has no tokens")
    for sample, document in zip(passages(), found, strict=True):
        ids = build_prompt(tokenizer(), sample, max_length=300, template="gateau").ids
        assert document == Document(name=sample.sample_id, digest=sample.digest, ids=ids)


def test_they_are_made_by_another_thread_in_order() -> None:
    threads: list[str] = []

    def given():
        for name in "abc":
            threads.append(threading.current_thread().name)
            yield Document(name=name, ids=(1, 2, 3))

    assert [each.name for each in documents_ahead(given()) if isinstance(each, Document)] == ["a", "b", "c"]
    assert threading.current_thread().name not in threads
