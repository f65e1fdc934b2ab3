"""Failures as Dagster shows them: the cause and the cure, without the traceback of our own code."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import OpExecutionContext

from gateau_dagster.errors import GateauError, PassingError

_FIRST_WAIT_SECONDS = 2.0


@contextmanager
def readable_failure(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | OpExecutionContext, retries: int = 0
) -> Iterator[None]:
    """Ends the step with the message of a GateauError; what may pass is tried again, with exponential back-off.

    Dagster's own RetryPolicy would also repeat what must fail again: a wrong path, a defect of ours.

    Raises:
        dagster.RetryRequested: for a PassingError, up to `retries` times.
        dagster.Failure: for any other GateauError. Anything else is a defect of ours and keeps its traceback.
    """
    try:
        yield
    except GateauError as error:
        if isinstance(error, PassingError) and context.retry_number < retries:
            wait = _FIRST_WAIT_SECONDS * 2**context.retry_number
            context.log.warning(f"{error} Trying again in {wait:.0f} s.")
            raise dg.RetryRequested(max_retries=retries, seconds_to_wait=wait) from error
        raise dg.Failure(description=str(error), allow_retries=False) from error
