"""Carry a failure in a worker to the step."""

import pickle
from dataclasses import dataclass

from gateau_dagster.errors import GateauError


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The reason why a worker ends."""

    error: BaseException


def portable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, else another one with the same message."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # an error's own pickling can raise anything
        known = isinstance(error, GateauError)
        return error.reworded(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")
