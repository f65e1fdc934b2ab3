"""Make s3fs patient: retry requests that may succeed later, after growing pauses."""

# Why here and not in the callers: a request that fails for a moment must look like a slow one to all of them. A run of
# days makes so many that one failure in a million would end it.
#
# Two layers could repeat. botocore repeats requests, but not the reading of a body that breaks off. s3fs repeats both.
# Two layers together would multiply their tries, and a dead server would be noticed after many minutes. So botocore's
# is switched off (`remote.S3_CLIENT`), and only s3fs repeats.
#
# A conditional write is repeated, too, although its first try may have succeeded. The next is then refused because of
# it. `objects.create_object` knows its write by a mark.

from typing import Any

from aiobotocore.session import AioSession
from aiohttp import ClientConnectionError
from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.handlers import _handle_200_error  # pyright: ignore[reportPrivateUsage]
from s3fs.core import S3_RETRYABLE_ERRORS, add_retryable_error, set_custom_error_handler

from gateau_dagster.errors import GateauError

_ANSWERS = "before-parse.s3.*"
_DONE, _OF_A_PAGE = 200, 16  # a status; the characters by which a page is known
_STATUSES = {408, 429, 500, 502, 503, 504}
# With status 400: the request was damaged or delayed on its way.
_CODES = {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"}
# Beyond s3fs's own list: refused and broken connections, truncated or damaged bodies.
_BROKEN: tuple[type[Exception], ...] = (
    *(BotoConnectionError, ClientConnectionError, ConnectionError),
    *(IncompleteReadError, FlexibleChecksumError),
)


class GivenUpError(OSError):
    """A request that used up its tries; its cause is the last failure."""


def is_transient(error: BaseException | None) -> bool:
    """Return whether the answer may differ next time."""
    # An answer is judged by its status and code, and a failure without an answer by its class. All others, such as
    # missing rights, would fail again.
    if not isinstance(error, ClientError):
        return isinstance(error, (*S3_RETRYABLE_ERRORS, *_BROKEN))
    response: Any = error.response
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status in _STATUSES or response.get("Error", {}).get("Code") in _CODES


def make_patient(s3: Any, tries: int) -> None:
    """Let a file system try each request, and each reading of a body, `tries` times; reject servers of web pages.

    s3fs repeats the reading of a body as a whole, including its request; a request that has used up its tries ends
    both.
    """
    s3.retries = tries
    # fsspec may return the same file system twice, and one wrapper is enough.
    if "_call_s3" in vars(s3):
        return
    s3.session = AioSession(**s3.kwargs)  # the session that s3fs would create on connecting
    events = s3.session.get_component("event_emitter")
    # First, since this handler of botocore turns a page that is not XML into an error of the server.
    events.unregister(_ANSWERS, _handle_200_error)
    events.register_first(_ANSWERS, lambda response_dict, **_: _check_no_page(response_dict, s3))
    events.register_first(_ANSWERS, _handle_200_error)
    call = s3._call_s3

    async def call_and_give_up(*arguments: Any, **options: Any) -> Any:
        try:
            return await call(*arguments, **options)
        except (OSError, BotoCoreError, *S3_RETRYABLE_ERRORS) as error:
            if is_transient(error) or is_transient(error.__cause__):
                raise GivenUpError(str(error)) from error
            raise

    s3._call_s3 = call_and_give_up


def _check_no_page(answer: dict[str, Any], s3: Any) -> None:
    """Raise GateauError for a web page with status 200: its listing would look like an empty store.

    A stored page has an ETag, like every object. Only the body of an answer with XML tells whether that is a page.
    """
    headers, body = answer["headers"], answer["body"]
    is_page = str(headers.get("content-type", "")).lower().startswith(("text/html", "application/xhtml"))
    has_page = isinstance(body, bytes) and body.lstrip()[:_OF_A_PAGE].lower().startswith((b"<!doctype html", b"<html"))
    if answer["status_code"] == _DONE and (has_page or (is_page and "etag" not in headers)):
        client: Any = s3._s3
        raise GateauError(
            "storage.not_s3",
            f"{client.meta.endpoint_url} answers with a web page (HTML), as a console, a login page or a proxy does. "
            "Expected an S3 server. Set AWS_ENDPOINT_URL to the address of the S3 API, or NO_PROXY to avoid a proxy.",
        )


for _kind in _BROKEN:
    add_retryable_error(_kind)
set_custom_error_handler(is_transient)
