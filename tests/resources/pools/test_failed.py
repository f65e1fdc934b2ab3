"""Whatever a worker raises reaches the step."""

import pickle

import pytest

from gateau_dagster.errors import GateauError, TransientError
from resources.pools.failed import portable


class TwoPartsError(Exception):
    """Cannot be unpickled: it wants more than its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class StubbornError(TransientError):
    """Cannot be pickled, and says so in its own way."""

    def __reduce__(self) -> str:
        raise KeyError("not me")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (GateauError("as it is"), GateauError, "as it is"),
        (TwoPartsError("a", "b"), RuntimeError, "TwoPartsError: ab"),
        (StubbornError("no answer"), TransientError, "no answer"),
    ],
)
def test_every_failure_survives_the_way(error: Exception, kind: type[Exception], text: str) -> None:
    found = pickle.loads(pickle.dumps(portable(error)))
    assert type(found) is kind and str(found) == text
