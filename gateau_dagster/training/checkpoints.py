"""Write the checkpoints of an unfinished run completely, verify them on resuming, and handle a full disk."""

# Why a marker: the Trainer and DeepSpeed write a checkpoint as many files, from several ranks. A folder that a kill
# left half written looks like a whole one. So a checkpoint counts only once all ranks have passed a barrier and rank 0
# has written the digests of its files.
#
# What it costs: each save reads the checkpoint once for its digests, and each resume reads one again. Two are kept,
# because the newest may turn out damaged. While the next one is written, there are three on the disk.
# `training.save_steps` weighs the steps that a kill costs against the time of saving.

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from gateau_dagster.errors import GateauError
from gateau_dagster.readable import plural
from gateau_dagster.storage.content import tree_digests
from gateau_dagster.storage.files import replace_text
from gateau_dagster.storage.local import fill_with, replace_local

# torch's writers raise a plain RuntimeError: the zip writer (at any of its checks, or from the stream below it), and
# the older format's writer.
_TORCH_WRITER = ("inline_container.cc", "iostream error", "write(): fd")
# This is not the disk's fault: another rank's write failed, and that rank removed the torn checkpoint and reports why.
_REMOVED = "No such file or directory"
_NAME = re.compile(r"^checkpoint-(\d+)$")
_KEY_FILE = "resume_key"
MARKER = "COMPLETE"
"""The file that marks a complete checkpoint, with the digests of all other files."""
KEPT = 2
_log = logging.getLogger(__name__)


def write_failed(error: BaseException) -> bool:
    """Return whether Python, safetensors or torch raise this error when a file cannot be written."""
    if _REMOVED in str(error):
        return False
    if isinstance(error, RuntimeError):
        return any(sign in str(error) for sign in _TORCH_WRITER)
    return isinstance(error, OSError | SafetensorError)


@contextmanager
def saving(what: str, where: Path, *, torn: Path | None = None) -> Iterator[None]:
    """Explain failures of writing `what` inside the context; errors other than failed writes pass through.

    After a failed write, the folder `torn` is removed: on a full disk, the reason could not be written otherwise.

    Raises:
        GateauError: a file could not be written.
    """
    try:
        yield
    except Exception as error:
        failed = write_failed(error)
        if torn is not None and (failed or isinstance(error, GateauError)):
            shutil.rmtree(torn, ignore_errors=True)
        if not failed:
            raise
        # torch's writer reports only at which byte it stopped.
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = f"torch could not write on ({text})" if isinstance(error, RuntimeError) else text
        raise GateauError(
            "training.not_written",
            f"{what} could not be written to {where}: {reason}. Free disk space (or check permissions) and "
            "run again: training goes on from the last complete checkpoint.",
        ) from error


def step_of(checkpoint: Path) -> int:
    """Return the number of optimiser steps that the checkpoint holds."""
    match = _NAME.match(checkpoint.name)
    assert match is not None
    return int(match.group(1))


def of_step(work: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`; the Trainer chooses the name."""
    return work / f"checkpoint-{step}"


def complete_checkpoints(work: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [folder for folder in work.glob("checkpoint-*") if _NAME.match(folder.name) and (folder / MARKER).exists()]
    return sorted(found, key=step_of)


def prepare_work(work: Path, resume_key: str, say: Callable[[str], None] = _log.warning) -> Path | None:
    """Prepare the work folder for one training run. Call this on one rank only, before the others read the folder.

    A work folder of another run (another `resume_key`) is emptied. Incomplete checkpoints are removed, and so are
    damaged ones that are newer than the one to resume from. `say` reports complete checkpoints that are removed.

    Returns:
        The checkpoint to resume from, or None.

    Raises:
        GateauError: the folder cannot be written.
    """
    key_file = work / _KEY_FILE
    try:
        known = _has_key(work, resume_key)
        if not known and work.exists():
            _discard_of_others(work, resume_key, say)
        work.mkdir(parents=True, exist_ok=True)
        for folder in work.glob("checkpoint-*"):  # the remains of a killed or failed save
            if not (folder / MARKER).exists():
                shutil.rmtree(folder)
        discard_damaged(work, say)
        if not known:  # do not rewrite an unchanged key: half a key would cost every existing checkpoint
            replace_text(key_file, resume_key)
    except OSError as error:
        raise GateauError(
            "training.not_written", f"the training's work folder {work} cannot be written: {error.strerror}"
        ) from error
    return last_checkpoint(work)


def _has_key(folder: Path, resume_key: str) -> bool:
    file = folder / _KEY_FILE
    return file.exists() and file.read_bytes() == resume_key.encode()


def _discard_of_others(work: Path, resume_key: str, say: Callable[[str], None]) -> None:
    """Empty a work folder with the key of another run, unless its checkpoints show that the key is damaged."""
    found = complete_checkpoints(work)
    others = [folder for folder in found if not _has_key(folder, resume_key)]
    if len(others) < len(found):
        say(f"{work / _KEY_FILE} is damaged or missing: training goes on from the checkpoints that name it themselves.")
        for folder in others:
            _discard(folder)
        return
    if others:
        say(
            f"{work} has {plural(len(found), 'checkpoint')} of a run with other samples or settings; removed, for "
            "this one begins anew."
        )
    shutil.rmtree(work)


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint."""
    complete = complete_checkpoints(work)
    return complete[-1] if complete else None


def discard_damaged(work: Path, say: Callable[[str], None]) -> None:
    """Remove the newest complete checkpoints, down to the first one with undamaged files.

    torch and safetensors read damaged numbers without an error.
    """
    # From the newest: an older one is read only if all newer ones are damaged.
    for folder in reversed(complete_checkpoints(work)):
        others = damaged_files(folder)
        if not others:
            return
        say(f"{folder} is damaged ({', '.join(others)}): training goes on from the one before it, or begins anew.")
        _discard(folder)


def damaged_files(checkpoint: Path) -> list[str]:
    """Return the files of a complete checkpoint that were changed, removed or added since it was written."""
    try:
        written = dict(json.loads((checkpoint / MARKER).read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError):  # not pairs, JSON or UTF-8
        return [MARKER]
    found = _digests(checkpoint)
    return sorted(name for name in {*written, *found} if written.get(name) != found.get(name))


def _digests(checkpoint: Path) -> dict[str, str]:
    found = tree_digests(checkpoint)
    found.pop(MARKER, None)  # it holds the digests
    return found


def _discard(checkpoint: Path) -> None:
    # The marker first, so that a partly removed checkpoint does not look complete.
    (checkpoint / MARKER).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def discard_all(work: Path) -> None:
    """Remove every checkpoint after training, because they are several times the model's size."""
    for folder in work.glob("checkpoint-*"):
        _discard(folder)


def mark_complete(checkpoint: Path, resume_key: str) -> None:
    """Mark a checkpoint as complete, and remove the oldest ones. Call this on one rank, after all have written.

    Each checkpoint stores the key, covered by its digests. Damage to a single key for all would cost all of them.
    """
    replace_local(checkpoint / _KEY_FILE, partial(fill_with, data=resume_key.encode()))
    digests = json.dumps(_digests(checkpoint), indent=1).encode()
    replace_local(checkpoint / MARKER, partial(fill_with, data=digests))
    for old in complete_checkpoints(checkpoint.parent)[:-KEPT]:
        _discard(old)
