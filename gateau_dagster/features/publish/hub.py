"""Write a data set to the Hugging Face hub: one commit with all files, or none if the hub already holds them."""

import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateau_dagster.errors import GateauError, TransientError, redacted
from gateau_dagster.readable import listed
from gateau_dagster.storage.failures import chain, hub_endpoint, readable_failures

_log = logging.getLogger(__name__)
_TRIES = 5
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between two tries, whatever the hub asks for
_NOT_FOUND, _BUSY = 404, 429
_MOVED = frozenset({409, 412})  # another commit came first
_REFUSED = frozenset({401, 402, 403, 404})
_UNACCEPTED = frozenset({400, 413, 422})
_README = "README.md"
_SECONDS_FOR_A_LOOK = 10.0  # a plan waits for it


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision of a data set: the SHA of its commit, and its page."""

    sha: str
    url: str


def has_token() -> bool:
    """Return whether the environment has a token."""
    return bool(os.environ.get("HF_TOKEN", "").strip())


def hub_token() -> str:
    """Return the token that may write to the hub. It comes from the environment only, and is never stored.

    Raises:
        GateauError: the token is not set, or the value cannot be a token.
    """
    from gateau_dagster.storage.hub_client import check_token

    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        raise GateauError(
            "publish.no_token",
            "publish: HF_TOKEN is not set. Set it to a token with the right to write to publish.repository.",
        )
    check_token(token, "HF_TOKEN")
    return token


def publish_files(
    repository: str, folder: Path, *, private: bool, summary: str, own: Collection[str], mark: str, token: str
) -> Revision:
    """Make a data set on the hub hold the files of a folder, by one commit.

    A file with the same content is not sent again, and without a difference there is no commit. Only the commit makes
    files visible, so the next upload completes one that broke off. If another commit comes first, that one is
    read and the upload is tried again.

    Args:
        repository: owner/name; created if it does not exist.
        folder: holds the files, and nothing else.
        private: whether a new data set is private.
        summary: the message of the commit.
        own: files that an earlier revision may hold besides README.md; those that the folder lacks are removed.
        mark: a text in the README.md of every revision that this function makes. Without it, the files belong to
            somebody else.
        token: see hub_token.

    Returns:
        The new revision, or the present one if nothing differs.

    Raises:
        GateauError: the token may not write, or the hub does not accept the files. Also if the data set is public but
            should be private, has another name now, or holds such files without `mark`.
        TransientError: the hub does not answer, limits requests or fails; trying again may help.
    """
    from gateau_dagster.storage.hub_client import prepare_hub

    prepare_hub()
    with readable_failures(f"publish {repository}"):
        for tries in count(1):
            try:
                return _committed(repository, folder, private, summary, own, mark, token)
            except Exception as error:
                answer, text = _answer(error)
                if tries == _TRIES or answer is None or answer.status_code not in {_BUSY, *_MOVED}:
                    if answer is not None and (refusal := _refusal(answer, text, repository)) is not None:
                        raise refusal from error
                    raise
                wait = _wait(answer, tries)
                _log.warning(f"The hub answered {answer.status_code}. Trying again in {wait:.0f} s.")
                time.sleep(wait)
    raise AssertionError


def change_on_hub(repository: str, sha: str, *, private: bool) -> str:
    """Return how a data set on the hub differs from a published revision; an empty text if it does not. One request.

    Args:
        repository: owner/name.
        sha: of the published revision.
        private: whether the data set should be private.

    Raises:
        GateauError: the difference cannot be determined.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    from gateau_dagster.storage.hub_client import prepare_hub

    token = os.environ.get("HF_TOKEN", "").strip()
    if private and not token:
        raise GateauError("publish.no_token", "HF_TOKEN is not set, and without it the hub hides a private data set.")
    prepare_hub()
    with readable_failures(f"compare {repository} on the hub with its record"):
        try:
            head = HfApi(endpoint=hub_endpoint(), token=token or False).dataset_info(
                repository, timeout=_SECONDS_FOR_A_LOOK
            )
        except RepositoryNotFoundError as error:
            if error.response.status_code != _NOT_FOUND:  # it says nothing about the data set without a valid token
                raise
            return f"the hub no longer has {repository}, or hides it from HF_TOKEN"
    if head.id.lower() != repository.lower():
        return f"{repository} is now {head.id} on the hub"
    if private and not head.private:
        return f"{repository} on the hub is public now"
    return "" if head.sha == sha else f"{repository} on the hub has another revision, {head.sha}"


def _committed(
    repository: str, folder: Path, private: bool, summary: str, own: Collection[str], mark: str, token: str
) -> Revision:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    api = HfApi(endpoint=hub_endpoint(), token=token)
    try:
        head = api.dataset_info(repository)
    except RepositoryNotFoundError:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        head = api.dataset_info(repository)
    if head.id.lower() != repository.lower():
        raise GateauError(
            "publish.renamed",
            f"publish.repository: {repository} is now {head.id} on the hub. Write that name, or another one for a new "
            "data set.",
        )
    if private and not head.private:
        raise GateauError(
            "publish.public",
            f"publish.private is true, but {repository} on the hub is public, and everyone would see the data. Make it "
            "private on its settings page, name another repository, or set private: false.",
        )
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    held = {each.rfilename for each in head.siblings or ()}
    foreign = sorted(held.intersection({_README, *own}))
    if foreign and not (_README in held and mark in _readme(api, repository, head.sha)):
        raise GateauError(
            "publish.foreign",
            f"publish.repository: {repository} on the hub holds {listed(foreign)}, not written by gateau-dagster, and "
            "an upload would replace or remove them. Name another repository, or remove these files from this one.",
        )
    _check_xet(api, repository)
    # With `parent_commit`: a commit that came in between may have changed what was checked above, and is refused.
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


def _check_xet(api: Any, repository: str) -> None:
    """Ask for the token of the hub's store of large files, whose client asks for minutes after a wrong answer."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status
    from huggingface_hub.utils._runtime import is_xet_available

    if is_xet_available():
        address = f"{api.endpoint}/api/datasets/{repository}/xet-write-token/main"
        hf_raise_for_status(get_session().get(address, headers=build_hf_headers(token=api.token)))


def _readme(api: Any, repository: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    address = hf_hub_url(repository, _README, repo_type="dataset", revision=revision, endpoint=api.endpoint)
    answer = get_session().get(address, headers=build_hf_headers(token=api.token))
    hf_raise_for_status(answer)
    return answer.text


def _answer(error: BaseException) -> tuple[Any, str]:
    """Return the answer that an error is about, and the server's own text on one line; None if there is no answer."""
    for link in chain(error):
        answer = getattr(link, "response", None)
        if hasattr(answer, "status_code"):
            text = getattr(link, "server_message", None) or str(link)
            return answer, redacted(" ".join(text.split()))
    return None, ""


def _wait(answer: Any, tries: int) -> float:
    """Return the seconds that the hub asks for, or a few that double, up to a limit."""
    asked = answer.headers.get("Retry-After", "")
    return min(_LONGEST_WAIT, float(asked) if asked.isdigit() else _FIRST_WAIT * 2**tries)


def _refusal(answer: Any, text: str, repository: str) -> GateauError | None:
    """Return the meaning of a hub's answer for a data set; None if `readable_failures` explains it.

    Objects go to signed addresses of another server, whose refusals say nothing about the token.
    """
    status = answer.status_code
    of_hub = urlsplit(str(answer.url)).netloc == urlsplit(hub_endpoint()).netloc
    if of_hub and status in _REFUSED:
        return GateauError(
            "publish.refused",
            f"publish.repository: the hub refuses to write to {repository} (HTTP status {status}: {text}). If that "
            "names no other reason, set HF_TOKEN to a token with write access to it, or correct the name.",
        )
    if of_hub and status in _UNACCEPTED:
        return GateauError(
            "publish.unaccepted",
            f"publish: the hub does not accept the files for {repository} (HTTP status {status}: {text}). Correct what "
            "it names, such as publish.license. Nothing was replaced.",
        )
    if status in _MOVED:
        return TransientError(
            "publish.moved",
            f"publish.repository: other commits to {repository} on the hub came first at each try. Nothing was "
            "replaced. Run again when they are done.",
        )
    if status == _BUSY:
        return TransientError(
            "hub.unavailable",
            f"Cannot publish {repository}: the hub limits requests (HTTP status 429). Run again later.",
        )
    if not of_hub and answer.is_client_error:
        return TransientError(
            "hub.unavailable",
            f"Cannot publish {repository}: the hub's store of large files refuses a file (HTTP status {status}: "
            f"{text}). Nothing was replaced. Run again, since the address may have expired.",
        )
    return None
