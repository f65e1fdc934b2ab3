"""Define how work for a user can fail: the whole of it, or one sample of it. No message contains a secret.

Only `redacted` knows secrets. It is applied to error messages, log records, failures that Dagster stores, answers,
judges' replies and rejected samples.
"""

import base64
import json
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from gateau_dagster.readable import EscapedRecords, escaped_controls

ENVIRONMENT_VARIABLE = "GATEAU_CONFIG"
"""Environment variable that names the configuration; the command line sets it for every process that it starts."""
DEMO = "demo"
"""Name of the embedded demo as a configuration."""
DEMO_FOLDER = "gateau_demo"
"""Folder of the embedded demo, below the current one: its store, its models, its records."""

KEY_SHAPE = re.compile(  # each branch begins with its letters, which makes the search fast
    # 48 letters before are an encoded picture.
    r"hf_(?<![\w-]{48}hf_)[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|AIza[\w-]{30,}"
    # Capitals before a key may be the beginning of a word: SLOVAKIA.
    r"|A[KS]IA(?:(?<![A-Z]A[KS]IA)|(?=[A-Z]*[0-9]))[A-Z0-9]{16}"
    # So may small letters before `sk-`: task-, disk-, minsk-. There a key has capitals, or a long part with digits.
    r"|sk-(?:(?<!\wsk-)[\w-]{20,}|(?:ant|proj|svcacct|admin)-(?=[\w-]*[A-Z])[\w-]{20,}|or-v1-[0-9a-f]{32,}"
    r"|(?<![\w-]{48}sk-)(?:(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}"
    r"|(?<![aeiouAEIOU]sk-)(?=[\w-]*[0-9])(?=[\w-]*[A-Za-z0-9]{16})[\w-]{20,}))"
    r"|gsk_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|gl(?:pat|agent|cbt|dt|ffct|ft|imt|oas|ptt|rt|soat)-[\w-]{16,}(?:\.[0-9a-z]{2}\.[0-9a-z]{9})?"
    r"|xai-\w{16,}|nvapi-[\w-]{16,}|xox[a-z]-[\w-]{16,}|xapp-[\w-]{20,}|hooks\.slack\.com/services/[\w/]{20,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{20,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{40,}"
)
"""The shape of a key of the common services. It needs no border: an escaped newline puts a letter before a key."""
# Credentials, recognised by their place in an address or by their own shape.
_SHAPES = (
    re.compile(r"(?<=://)[^\s/@]*:(?!\d+/)[^\s@]*(?=@)|(?<=://)[^\s/@]+(?=@)"),
    re.compile(r"(?i)(?<=[?&;])(?:x-amz-(?:signature|credential|security-token)|signature|token)=[^\s&;'\"]+"),
    KEY_SHAPE,
)
# Variables whose names mark them as secret, whether the configuration names them or not.
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:ACCESS_|SECRET_|PRIVATE_)?KEY(?:_ID)?|API_?KEYS?|TOKENS?|SECRETS?|PASS|PASSWORD|PASSWD|PASSPHRASE"
    r"|PGPASSWORD|CREDENTIALS?|WEB_?HOOK(?:_URL)?|HOOK(?:_URL)?)$"
)
_HOOK_NAME = re.compile(r"(?i)HOOK(?:_URL)?$")
_ECHO_GAP = re.compile(r"\*{2,}|\.{3,}|\u2026|[xX\u2022]{4,}")
_ECHO = 7  # characters next to a gap; a longer run counts as a part
_ECHOES = range(3, _ECHO + 1)
_PART = 8
"""Any run of this many characters of a secret is masked too."""
_FEWEST_LETTERS = 4
"""The least number of different characters in a secret: 00000000 is not one."""
MASK = "***"
"""The text that `redacted` puts in place of a secret."""
_NAME_LIKE = re.compile(r"[A-Z_${}%\s]*")
"""A variable's name in another spelling, such as ${OPENAI_API_KEY}, which may be shown."""
_PIECE = re.compile(r"[^\W_]+")
# Words of placeholders for a key ("not-needed", "your-api-key"), well-known defaults, and words of messages. A text of
# these words alone is not a secret: masking it hides nothing and makes messages unreadable.
_COMMON_WORDS = frozenset(
    _PIECE.findall("""
    a an and any api apikey base body change changeit changeme concurrency currency database default demo dummy
    empty engine env environment evaluation example extra fake false file for gateau here host http https in insert
    is it judge key keys limit local localhost max minioadmin model models my name needed no none not null of openai
    or password path placeholder please port postgres postgresql prices prompt provider put repeats required retries
    secret seed server set temperature test the timeout to token tokens top true unused url user username value
    variable vllm with your
    """)
)
_COMMON_PARTS = frozenset(
    word[place : place + _PART] for word in _COMMON_WORDS for place in range(len(word) - _PART + 1)
)
_NAMES_VARIABLE = "GATEAU_SECRET_VARIABLES"
"""Environment variable for child processes without configuration: names the variables whose values to mask."""

_variables: set[str] = set()
_values: set[str] = set()


def secret_variable_named(name: str) -> None:
    """Make `redacted` mask what the environment variable of this name holds, here and in child processes."""
    _variables.add(name)
    os.environ[_NAMES_VARIABLE] = ",".join(sorted(_named_variables()))


def secret_found(value: str) -> None:
    """Make `redacted` mask a value: a key that was given in place of the name of its variable."""
    if len(value.strip()) >= _PART and not _NAME_LIKE.fullmatch(value):
        _values.add(value.strip())


def no_secret(value: str) -> str:
    """Return a value of the configuration that is no secret, whatever the name of its key; `redacted` leaves it."""
    _values.discard(value.strip())
    return value


def _named_variables() -> frozenset[str]:
    return frozenset(_variables | {*filter(None, os.environ.get(_NAMES_VARIABLE, "").split(","))})


def redacted(text: str, *, shapes: bool = True) -> str:
    """Return the text with *** in place of every secret, and of each part of a secret that has eight characters.

    shapes: whether a text counts as a secret by its shape alone, such as the password in an address.

    Secrets are the values of variables that the configuration names or that are secret by name (HF_TOKEN,
    AWS_SECRET_ACCESS_KEY). Secrets are also passwords in addresses, keys pasted into the configuration, and texts with
    the shape of a key. A secret is also found if it is encoded (base64, URL, JSON) or cut as in `sk-abc...wxyz`.

    A secret has at least eight characters, four of them different. A value of four to seven characters is masked as a
    whole if the configuration names its variable, unless it is all letters or all digits. A text of common words
    alone, such as `password`, `changeme` or `your-api-key`, is never a secret.
    """
    for shape in _SHAPES if shapes else ():
        text = shape.sub(MASK, text)
    known = _known_secrets()
    whole, parted = known
    if not whole:
        return text
    for value in sorted(whole, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _without_echoes(_without_parts(text, parted), parted)


def redact_exception(error: BaseException) -> BaseException:
    """Redact the messages of an exception, of its notes and of those that caused it or that it groups.

    Returns the exception itself, or a replacement if its message cannot be changed. Dagster and tracebacks show both.
    """
    return _redacted_exception(error, set())


def _redacted_exception(error: BaseException, seen: set[int]) -> BaseException:
    if id(error) in seen:  # for `raise first from second`, if second was raised while first was handled
        return error
    seen.add(id(error))
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = [redacted(str(note)) for note in notes]
    if isinstance(error, BaseExceptionGroup):
        grouped = [_redacted_exception(each, seen) for each in error.exceptions]
        if (shown := redacted(error.message)) != error.message or grouped != [*error.exceptions]:
            made = BaseExceptionGroup(shown, grouped).with_traceback(error.__traceback__)
            made.__cause__ = error.__cause__
            error = made
    if error.__cause__ is not None:
        error.__cause__ = _redacted_exception(error.__cause__, seen)
    elif error.__context__ is not None and not error.__suppress_context__:
        error.__context__ = _redacted_exception(error.__context__, seen)
    said = str(error)
    if redacted(said) == said:
        return error
    error.args = tuple(redacted(each) if isinstance(each, str) else each for each in error.args)
    if redacted(str(error)) == str(error):
        return error
    stand_in = RuntimeError(f"{type(error).__name__}: {redacted(said)}").with_traceback(error.__traceback__)
    stand_in.__cause__ = error.__cause__
    return stand_in


def redact_output() -> None:
    """Redact every log record of this process, whichever library writes it, and every exception that nobody catches.

    Control characters in a record's message are escaped, whatever handler prints it.
    """
    made, uncaught, of_thread = logging.getLogRecordFactory(), sys.excepthook, threading.excepthook
    if getattr(made, "redacts", False):
        return

    def show(_: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown = redact_exception(error)
        uncaught(type(shown), shown, trace)

    def show_of_thread(found: threading.ExceptHookArgs) -> None:
        shown = None if found.exc_value is None else redact_exception(found.exc_value)
        of_thread(threading.ExceptHookArgs((type(shown), shown, found.exc_traceback, found.thread)))

    def record(*args: Any, **more: Any) -> logging.LogRecord:
        found = made(*args, **more)
        try:
            said = found.getMessage()
        except Exception:  # whoever handles the record reports it
            return found
        if (shown := escaped_controls(redacted(said), lines=True)) != said:
            found.msg, found.args = shown, None
        if found.exc_info and found.exc_info[1] is not None:
            error = redact_exception(found.exc_info[1])
            found.exc_info = (type(error), error, error.__traceback__)
        return found

    if logging.lastResort is not None:  # it prints records without a handler
        logging.lastResort.setFormatter(EscapedRecords())
    record.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(record)
    sys.excepthook, threading.excepthook = show, show_of_thread


def _known_secrets() -> tuple[frozenset[str], frozenset[str]]:
    """Return the secrets that are masked as a whole, and those whose parts are masked too."""
    configured = _named_variables()
    named = {
        (name, value.strip())
        for name, value in os.environ.items()
        if name in configured or "://" in value or _is_secret_name(name)
    }
    return _sorted_secrets(frozenset(named), frozenset(_values), configured)


@lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


@lru_cache(maxsize=16)
def _sorted_secrets(
    named: frozenset[tuple[str, str]], pasted: frozenset[str], configured: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    whole: set[str] = set()
    parted: set[str] = set()
    for name, value in [*named, *(("", value) for value in pasted)]:
        is_configured = name in configured or not name
        if "://" in value:
            is_hook = bool(_HOOK_NAME.search(name)) or (is_configured and value.startswith("http"))
            whole |= {value} if is_configured or is_hook else set()
            parted |= set(_secrets_of_address(value, is_hook=is_hook))
        elif is_configured or name.startswith("AWS_") or not value.startswith(("/", "~", ".")):  # those are paths
            parted.add(value)
            short = is_configured and 4 <= len(value) < _PART and not (value.isalpha() or value.isdigit())
            whole |= {value} if short else set()
    kept = {each for each in parted if len(each) >= _PART and len({*each}) >= _FEWEST_LETTERS}
    common = {each for each in whole | kept if is_common(each)}
    return frozenset((whole | kept) - common), frozenset(kept - common)


def is_common(text: str) -> bool:
    """Return whether a text, whole or a part, consists of common words, such as a placeholder for a key."""
    pieces = _PIECE.findall(text.lower())
    return text.lower() in _COMMON_PARTS or (bool(pieces) and _COMMON_WORDS.issuperset(pieces))


def _secrets_of_address(address: str, *, is_hook: bool) -> Iterator[str]:
    """Yield the password of an address; for a web hook also everything behind the host except plain words."""
    try:
        parts = urlsplit(address)
    except ValueError:
        yield address
        return
    if parts.password:
        yield from {parts.password, unquote(parts.password)}
    if is_hook:
        for each in re.split(r"[/?&=]", f"{parts.path}?{parts.query}"):
            if not (each.isalpha() and each.islower()):
                yield each


@lru_cache(maxsize=16)
def _parts_of(secrets: frozenset[str]) -> frozenset[str]:
    """Return every run of _PART characters of the secrets, as they are and encoded."""
    forms = {form for secret in secrets for form in _forms(secret)}
    parts = {form[place : place + _PART] for form in forms for place in range(len(form) - _PART + 1)}
    return frozenset(part for part in parts if not is_common(part))


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    data = secret.encode("utf-8", errors="surrogatepass")
    for before in range(3):  # within another text, base64 begins at any of three offsets
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(bytes(before) + data).decode().rstrip("=")
            cut = 0 if not before else before + 1
            yield encoded[cut : len(encoded) - (1 if (before + len(data)) % 3 else 0)]


def _without_parts(text: str, secrets: frozenset[str]) -> str:
    parts = _parts_of(secrets)
    if parts.isdisjoint(text[place : place + _PART] for place in range(len(text) - _PART + 1)):
        return text
    shown: list[str] = []
    place = done = 0
    while place <= len(text) - _PART:
        if text[place : place + _PART] not in parts:
            place += 1
            continue
        end = place + _PART
        while end < len(text) and text[end - _PART + 1 : end + 1] in parts:
            end += 1
        shown += [text[done:place], MASK]
        place = done = end
    return "".join([*shown, text[done:]])


def _without_echoes(text: str, secrets: frozenset[str]) -> str:
    """Return the text without the ends of a secret that a server shows around a gap, as in `sk-a****wxyz`."""
    shown: list[str] = []
    done = 0
    for gap in _ECHO_GAP.finditer(text):
        before, after = text[max(done, gap.start() - _ECHO) : gap.start()], text[gap.end() : gap.end() + _ECHO]
        begin = max((size for each in secrets for size in _ECHOES if before.endswith(each[:size])), default=0)
        end = max((size for each in secrets for size in _ECHOES if after.startswith(each[-size:])), default=0)
        if begin or end:
            shown += [text[done : max(done, gap.start() - begin)], MASK]
            done = gap.end() + end
    return "".join([*shown, text[done:]])


def demo_name(folder: str) -> str:
    """Return the name of the embedded demo in a folder; it is valid in every process, whatever its current folder."""
    return f"{DEMO}:{folder}"


def demo_place(name: str) -> str:
    """Return the folder of the embedded demo that a `demo_name` names; empty for the path of a file."""
    folder = name.removeprefix(f"{DEMO}:")
    return "" if folder == name else folder


def shown_configuration(name: str) -> str:
    """Return a configuration's name for a command in the current folder, not yet quoted for a shell.

    Args:
        name: the absolute path of a file, or `demo_name`.
    """
    folder = demo_place(name)
    try:
        here = os.getcwd()  # noqa: PTH109  as text
    except OSError:  # the folder was removed
        return name
    if folder:
        return DEMO if folder == os.path.join(here, DEMO_FOLDER) else name  # noqa: PTH118
    return min(os.path.relpath(name, here), name, key=len)


def gateau_command(words: str) -> str:
    """Return a `gateau` command for a message, with the configuration of this process: gateau run --config other.yaml.

    Without GATEAU_CONFIG, for example in a library, the command names no configuration.
    """
    name = os.environ.get(ENVIRONMENT_VARIABLE)
    return f"gateau {words}{f' --config {shlex.quote(shown_configuration(name))}' if name else ''}"


SEVERAL = "gateau.several"
"""Code of an error that lists several mistakes, each with its own code."""


class GateauError(ValueError):
    """The run cannot continue. The message names the cause and the cure, and is printed without a traceback.

    code: `section.what`, an entry of cli/error_codes.yaml or of the file of this name in a feature's folder. Programs
    and tests rely on it, not on the message.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, redacted(message))  # both, since an exception is pickled by its arguments
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def reworded(self, message: str) -> "GateauError":
        """Return an error of this code, transient if this one is, with another message: this one's with its place."""
        return (TransientError if isinstance(self, TransientError) else GateauError)(self.code, message)

    def with_code(self) -> str:
        """Return the message and, in brackets, the code that `gateau explain` takes."""
        return str(self) if self.code == SEVERAL else f"{self} [{self.code}]"


@contextmanager
def error_at(place: str) -> Iterator[None]:
    """Put a place, such as a key, before the message of each GateauError of the block."""
    try:
        yield
    except GateauError as error:
        raise error.reworded(f"{place}: {error}") from error


def together(heading: str, mistakes: Sequence[GateauError]) -> GateauError:
    """Return one error for several: with their common code, else with SEVERAL and a code behind each message."""
    codes = {mistake.code for mistake in mistakes}
    lines = [str(mistake) if len(codes) == 1 else mistake.with_code() for mistake in mistakes]
    return GateauError(codes.pop() if len(codes) == 1 else SEVERAL, "\n".join([heading, *lines]))


class UnscorableSampleError(ValueError):
    """One sample cannot be scored; its message becomes the `reason` in the rejected table, and the run continues."""


class ShortOfMemoryError(UnscorableSampleError):
    """One sample does not fit into memory; unlike other rejects, it is retried under other memory settings."""


class TransientError(GateauError):
    """A failure that may pass, such as a server that does not answer. Dagster retries the step with back-off."""


class UnforeseenError(GateauError):
    """A step failed unexpectedly: the user cannot fix it, because it is a defect of this product.

    kind: the name of the exception.
    trace: its traceback as text.
    """

    def __init__(self, message: str, *, kind: str, trace: str) -> None:
        super().__init__("gateau.defect", message)
        self.kind, self.trace = kind, redacted(trace)


class MissingUpstreamError(GateauError):
    """An output cannot be computed because one that it reads does not exist yet."""

    def __init__(self, asset: str, partition: str | None, missing: tuple[str, str | None]) -> None:
        name = missing[0] if missing[1] is None else f"{missing[0]}[{missing[1]}]"
        super().__init__(
            "storage.not_computed",
            f"{asset}{'' if partition is None else f'[{partition}]'} needs {name}, which is not in the store. "
            f"Materialise {missing[0]} first, or run `{gateau_command('run')}`, which brings everything that is needed "
            "up to date.",
        )
