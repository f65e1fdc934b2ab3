"""How a failure in a worker reaches the step."""

import pickle
from dataclasses import dataclass

from gateau_dagster.errors import GateauError, TransientError


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Why a worker ends."""

    error: BaseException


def portable(error: BaseException) -> BaseException:
    """The error itself where it survives the way to the step, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # an error's own pickling can raise anything; whatever it is, the step is to hear of the failure
        kind = TransientError if isinstance(error, TransientError) else GateauError
        known = isinstance(error, GateauError)
        return kind(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")
