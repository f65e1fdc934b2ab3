"""Write a data set to the Hugging Face hub: one commit with all files, or none where the hub holds them already."""

import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.failures import chain, hub_endpoint, readable_failures

_log = logging.getLogger(__name__)
_TRIES = 5
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between two tries, whatever the hub asks for
_BUSY = 429
_MOVED = frozenset({409, 412})  # another commit came first
_REFUSED = frozenset({401, 403, 404})


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision of a data set: the SHA of its commit, and its page."""

    sha: str
    url: str


def hub_token() -> str:
    """Return the token that may write to the hub. It comes from the environment only, and is never stored.

    Raises:
        GateauError: there is none.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        raise GateauError(
            "publish.no_token",
            "publish: HF_TOKEN is not set. Set it to a token with the right to write to publish.repository.",
        )
    return token


def publish_files(
    repository: str, folder: Path, *, private: bool, summary: str, own: Collection[str], token: str
) -> Revision:
    """Make a data set on the hub hold the files of a folder, by one commit.

    A file with the same content is not sent again, and without a difference there is no commit. Only the commit makes
    files visible, so an upload that broke off is completed by the next one. A commit that came between is read first.

    Args:
        repository: owner/name; created if it does not exist.
        folder: holds the files, and nothing else.
        private: whether a new data set is private.
        summary: of the commit.
        own: files that an earlier revision may hold; those that the folder lacks are removed.
        token: see hub_token.

    Raises:
        GateauError: the token may not write, or the data set is public although it should be private.
        TransientError: the hub does not answer, limits requests or fails; trying again may help.
    """
    with readable_failures(f"publish {repository}"):
        for tries in count(1):
            try:
                return _committed(repository, folder, private, summary, own, token)
            except Exception as error:
                answer = _answer(error)
                if tries == _TRIES or answer is None or answer.status_code not in {_BUSY, *_MOVED}:
                    if answer is not None and (refusal := _refusal(answer.status_code, repository)) is not None:
                        raise refusal from error
                    raise
                wait = _wait(answer, tries)
                _log.warning(f"The hub answered {answer.status_code}. Trying again in {wait:.0f} s.")
                time.sleep(wait)
    raise AssertionError


def _committed(
    repository: str, folder: Path, private: bool, summary: str, own: Collection[str], token: str
) -> Revision:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(endpoint=hub_endpoint(), token=token)
    api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
    head = api.dataset_info(repository)
    if private and not head.private:
        raise GateauError(
            "publish.public",
            f"publish.private is true, but {repository} on the hub is public, and everyone would see the data. Make it "
            "private on its settings page, name another repository, or set private: false.",
        )
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    held = {each.rfilename for each in head.siblings or ()}
    made = api.create_commit(
        repository,
        [
            *(CommitOperationAdd(name, path) for name, path in files.items()),
            *(CommitOperationDelete(name) for name in sorted(held.intersection(own) - files.keys())),
        ],
        commit_message=summary,
        repo_type="dataset",
        parent_commit=head.sha,
    )
    return Revision(sha=made.oid, url=f"{api.endpoint}/datasets/{repository}/tree/{made.oid}")


def _answer(error: BaseException) -> Any:
    """Return the hub's answer that an error is about; None if there is none."""
    found = (getattr(link, "response", None) for link in chain(error))
    return next((each for each in found if hasattr(each, "status_code")), None)


def _wait(answer: Any, tries: int) -> float:
    """Return the seconds that the hub asks for, or a few that double, up to a limit."""
    asked = answer.headers.get("Retry-After", "")
    return min(_LONGEST_WAIT, float(asked) if asked.isdigit() else _FIRST_WAIT * 2**tries)


def _refusal(status: int, repository: str) -> GateauError | None:
    """Return what the status of an answer means for a data set; None where `readable_failures` explains it."""
    if status in _REFUSED:
        return GateauError(
            "publish.refused",
            f"publish.repository: the hub does not let this token write to {repository} (HTTP status {status}). Set "
            "HF_TOKEN to a token with write access to it, or correct the name.",
        )
    if status in _MOVED:
        return TransientError(
            "publish.moved", f"{repository} on the hub changes while it is written. Nothing was replaced: run again."
        )
    if status == _BUSY:
        return TransientError(
            "hub.unavailable",
            f"Cannot publish {repository}: the hub limits requests (HTTP status 429). Run again later.",
        )
    return None
