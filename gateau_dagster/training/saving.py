"""What a failed write looks like, and what the user is told of it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from gateau_dagster.errors import GateauError

# torch's writers raise a RuntimeError of no kind of their own: the zip writer's (at any of its checks, or from the
# stream below it), and the older format's.
_TORCH_WRITER = ("inline_container.cc", "iostream error", "write(): fd")
# Not the disk: another rank, whose write failed, has removed the torn checkpoint, and gives the reason.
_REMOVED = "No such file or directory"


def write_failed(error: BaseException) -> bool:
    """Whether this is what Python, safetensors or torch raise when a file cannot be written."""
    if _REMOVED in str(error):
        return False
    if isinstance(error, RuntimeError):
        return any(sign in str(error) for sign in _TORCH_WRITER)
    return isinstance(error, OSError | SafetensorError)


@contextmanager
def saving(what: str, where: Path, *, torn: Path | None = None) -> Iterator[None]:
    """Around the writing of `what`; errors that are no failed write pass through.

    The folder `torn` is removed with a failed write: on a full disk the reason has no room beside it.

    Raises:
        GateauError: it could not be written.
    """
    try:
        yield
    except Exception as error:
        failed = write_failed(error)
        if torn is not None and (failed or isinstance(error, GateauError)):
            shutil.rmtree(torn, ignore_errors=True)
        if not failed:
            raise
        raise GateauError(
            f"{what} could not be written to {where}: {_reason(error)}. Free disk space (or check permissions) and "
            "run again: training goes on from the last complete checkpoint."
        ) from error


def _reason(error: BaseException) -> str:
    """In one line; torch's writer says only at which byte it stopped."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"torch could not write on ({text})" if isinstance(error, RuntimeError) else text
