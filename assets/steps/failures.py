"""Convert failures to Dagster's: the cause and the remedy, without the traceback of our code."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import OpExecutionContext

from gateau_dagster.errors import GateauError, TransientError, redact_exception, redacted
from gateau_dagster.storage.failures import explained_by_system

# Metadata keys of a failure: the assets that the step makes, and the error's code.
TITLE, CODE = "assets", "code"
_FIRST_WAIT_SECONDS = 2.0


@contextmanager
def readable_failure(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | OpExecutionContext,
    retries: int = 0,
    *,
    title: str | None = None,
) -> Iterator[None]:
    """End the step with the message of a GateauError; retry a TransientError with exponential back-off.

    Dagster's own RetryPolicy would also repeat permanent failures: a wrong path, or a defect.

    `title`: the step's name for people, if it differs from its own. A full disk or a lost permission is reported as
    such wherever it occurs.

    Raises:
        dagster.RetryRequested: for a TransientError, up to `retries` times.
        dagster.Failure: for any other GateauError. Other errors are defects and keep their traceback.
    """
    try:
        with redacted_failure(), _readable_system_failures():
            yield
    except GateauError as error:
        if isinstance(error, TransientError) and context.retry_number < retries:
            wait = _FIRST_WAIT_SECONDS * 2**context.retry_number
            context.log.warning(f"{error} Trying again in {wait:.0f} s.")
            raise dg.RetryRequested(max_retries=retries, seconds_to_wait=wait) from redact_exception(error)
        metadata = {CODE: error.code, **({} if title is None else {TITLE: title})}
        said = redacted(str(error))
        raise dg.Failure(description=said, metadata=metadata, allow_retries=False) from redact_exception(error)


@contextmanager
def redacted_failure() -> Iterator[None]:
    """Redact what a step or a sensor raises: Dagster stores its message, and those of its causes.

    It is also a decorator, for sensors and schedules.
    """
    try:
        yield
    except Exception as error:
        shown = redact_exception(error)
        if shown is not error:
            raise shown from None
        raise


@contextmanager
def _readable_system_failures() -> Iterator[None]:
    try:
        yield
    except GateauError:
        raise
    except Exception as error:
        place = getattr(error, "filename", None)
        made = explained_by_system(error, f"use {place}" if place else "write")
        if made is error:
            raise
        raise made from error
