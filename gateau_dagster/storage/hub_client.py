"""Prepare huggingface_hub's HTTP client: a time-out, a usable token, and answers that only the hub can have given.

The client reads fields of an answer without a check. A login page or a gateway in the hub's place would end in an error
of its code, or count as an empty data set.
"""

import re
import threading
from collections.abc import Callable
from typing import Any

from httpx2 import Client, Response
from huggingface_hub import get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status
from huggingface_hub.utils._http import default_client_factory

from gateau_dagster.errors import GateauError

_SECONDS_FOR_AN_ANSWER = 120.0  # without a sign of the hub; some commits take a minute
_NO_ERROR = 200
_SHOWN = 160  # characters of an answer
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_OF_A_PAGE = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def _texts(*names: str) -> Callable[[Any], bool]:
    """Return a predicate: a JSON object with a text under each name."""
    return lambda answer: (
        isinstance(answer, dict) and all(isinstance(answer.get(name), str) and answer[name] for name in names)
    )


def _objects(name: str) -> Callable[[Any], bool]:
    """Return a predicate: a JSON object with a list of objects under the name."""
    return lambda answer: isinstance(answer, dict) and _is_list(answer.get(name))


def _is_list(answer: Any) -> bool:
    return isinstance(answer, list) and all(isinstance(each, dict) for each in answer)


def _is_commit(answer: Any) -> bool:
    return _texts("commitUrl", "commitOid")(answer) and _COMMIT.fullmatch(answer["commitOid"]) is not None


_INFORMATION = re.compile(r"/api/(?:datasets|models)/[^/]+/(?!refs$)[^/]+(?:/revision/[^/]+)?$")
_VALIDATION = re.compile(r"/api/validate-yaml$")
_LFS_BATCH = re.compile(r"\.git/info/lfs/objects/batch$")
# What the hub answers, by the end of the address.
_EXPECTED: tuple[tuple[re.Pattern[str], Callable[[Any], bool]], ...] = (
    (_INFORMATION, _texts("id", "sha")),
    (re.compile(r"/api/(?:datasets|models)/.+/(?:tree|paths-info)/.+$"), _is_list),
    (re.compile(r"/api/repos/create$"), _texts("url")),
    (_VALIDATION, lambda answer: isinstance(answer, dict)),
    (re.compile(r"/api/datasets/.+/preupload/[^/]+$"), _objects("files")),
    (re.compile(r"/api/datasets/.+/xet-write-token/[^/]+$"), _texts("casUrl", "accessToken")),
    (re.compile(r"/api/datasets/.+/commit/[^/]+$"), _is_commit),
    (_LFS_BATCH, _objects("objects")),
)
_lock = threading.Lock()
_prepared: list[bool] = []


def prepare_hub() -> None:
    """Prepare this process's client of the hub, once, and check the token that it would send.

    Raises:
        GateauError: the token has a character that no token has.
    """
    check_token(get_token() or "", "HF_TOKEN")
    with _lock:  # a new factory closes the present client, which another thread may use
        if not _prepared:
            set_client_factory(_client)
            _prepared.append(True)


def check_token(token: str, name: str) -> None:
    """Raise GateauError if a token, the value of the variable `name`, cannot be sent to the hub."""
    if not token or _TOKEN.fullmatch(token):
        return
    place, wrong = next((place, each) for place, each in enumerate(token, start=1) if not _TOKEN.fullmatch(each))
    kinds = {"\n": "a line break", "\r": "a line break", '"': "a quotation mark", "'": "a quotation mark"}
    kind = kinds.get(wrong) or ("white space" if wrong.isspace() else f"U+{ord(wrong):04X}")
    raise GateauError(
        "hub.token",
        f"{name} is not a token of the Hugging Face hub: its character {place} is {kind}. Expected letters, digits and "
        "-._~+/= only. Copy the token again from the hub's settings, without quotation marks and line breaks.",
    )


def _client() -> Client:
    made = default_client_factory()
    made.timeout = _SECONDS_FOR_AN_ANSWER  # it has none, so a silent hub would stop a run for ever
    made.event_hooks = {**made.event_hooks, "response": [_check_answer]}
    return made


def _check_answer(response: Response) -> None:
    """Check an answer before the client reads fields of it.

    Raises:
        HfHubHTTPError: an answer of success is a web page, or not the JSON that the hub gives; its `response` has a
            status of success. Or the status is an error that the client could not read. An error that the hub gives
            for one file of an upload counts as the answer's.
    """
    request = response.request
    expected = next((test for end, test in _EXPECTED if end.search(request.url.path)), None)
    if "expand" in request.url.params and _INFORMATION.search(request.url.path):
        expected = None  # some of the fields only
    is_page = "html" in response.headers.get("Content-Type", "").lower()
    if response.is_success:
        if expected is not None or (is_page and request.method in {"GET", "HEAD"}):
            _check_success(response, expected, is_page)
    elif response.is_error and expected is not None:
        answer = _json_of(response)
        if answer is None and _VALIDATION.search(request.url.path):  # the client reads its JSON before the status
            hf_raise_for_status(response)
        if not isinstance(answer, dict | None):
            hf_raise_for_status(Response(response.status_code, request=request))


def _json_of(response: Response) -> Any:
    """Return an answer's JSON; None if it is not JSON, and the text "null" for null."""
    response.read()
    try:
        answer = response.json()
    except ValueError:
        return None
    return "null" if answer is None else answer


def _check_success(response: Response, expected: Callable[[Any], bool] | None, is_page: bool) -> None:
    answer, request = _json_of(response), response.request
    if expected is not None and not is_page and expected(answer):
        _check_files(response, answer)
        return
    kind = "a web page" if is_page else "no JSON" if answer is None else "JSON of another form"
    text = " ".join(_OF_A_PAGE.sub(" ", response.text).split())
    raise HfHubHTTPError(
        f"{request.method} {request.url.copy_with(query=None)} was answered with {kind}: "
        f"{text[:_SHOWN] or 'it is empty'}",
        response=response,
    )


def _check_files(response: Response, answer: Any) -> None:
    """Raise HfHubHTTPError for the first error in an answer of the LFS batch interface, whose status is of success."""
    if _LFS_BATCH.search(response.request.url.path) is None:
        return
    error = next((each["error"] for each in answer["objects"] if isinstance(each.get("error"), dict)), None)
    if error is not None:
        code, text = error.get("code"), str(error.get("message") or "no reason given")
        status = code if isinstance(code, int) and code > _NO_ERROR else 422
        hf_raise_for_status(Response(status, json={"error": text}, request=response.request))
