"""Find secrets, such as keys, in texts that others are about to read.

Each text is scanned as it is, and as each layer of escapes leaves it. JSON in a tool call's arguments in a conversation
has three. Decoding is lenient, since many texts hold a part of a JSON value. No finding contains the secret.
"""

# Why layers: an agent's traces hold files as JSON inside JSON. There a line end is the letters `\n`, so that a key has
# no border and a private key no lines. What it costs: one more scan per layer, for texts with a backslash only.
#
# Why patterns here beside the package: `gateau export` warns without an extra, and the patterns know what printing adds
# to a file. docs/reference/secrets.md compares the packages, and lists what is not found.

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gateau_dagster.errors import KEY_SHAPE, MASK, is_common
from gateau_dagster.progress import Progress
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner

SCANNER = "kingfisher-secret-scanner"
"""The package of the extra `publish`; without it only the kinds of docs/reference/secrets.md are found."""
LAYERS = 8
"""Layers of escapes that are decoded; each takes at least one character from a text."""
_NAMED = 5  # samples in a message, and places of each
_TOGETHER = 1 << 18
"""Characters of short texts that are scanned as one."""
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """A secret, without the secret.

    sample: the sample's id, its place in the file if the id holds the secret, or a file's name. field: the column, and
    the place in it: messages[2].content. kind: what the secret is. secret_hash: see `secret_hash`.
    """

    sample: str
    field: str
    kind: str
    secret_hash: str


def scanner_version() -> str:
    """Return the version of the installed scanner; empty if it is not installed."""
    return _version_of(SCANNER)


@cache
def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def secret_hash(secret: str) -> str:
    """Return the beginning of a secret's SHA-256, which `publish.accepted_findings` names it by."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:16]


def named_findings(found: Collection[Finding]) -> str:
    """Return the first samples with secrets, their fields and kinds, and how many more there are, for a message."""
    samples = list(dict.fromkeys(each.sample for each in found))
    named = []
    for sample in samples[:_NAMED]:
        places = dict.fromkeys(f"{each.field}: {each.kind}" for each in found if each.sample == sample)
        named.append(f"{sample} ({', '.join([*places][:_NAMED])}{', …' * (len(places) > _NAMED)})")
    more = len(samples) - len(named)
    return f"secrets in {'; '.join(named)}" + (f"; and in {plural(more, 'other sample')}" if more else "")


def secrets_of_files(folder: Path, progress: Progress) -> Iterator[Finding]:
    """Yield the secrets in the strings of every file of a folder: Parquet tables and texts.

    Images hold no text of the data.

    Args:
        folder: is read as a whole.
        progress: receives the number of scanned rows of each table.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".parquet":
            yield from secrets_of_rows(_rows(path, name, progress), name)
        elif path.suffix != ".png":
            yield from secrets_of_text(path.read_text(encoding="utf-8"), name)


def _rows(path: Path, name: str, progress: Progress) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        done, total = 0, file.metadata.num_rows
        for batch in file.iter_batches(batch_size=256):
            yield from batch.to_pylist()
            done += batch.num_rows
            progress(done, total, "rows scanned for secrets", name)


def secrets_of_text(text: str, name: str) -> Iterator[Finding]:
    """Yield the secrets of a text, each with the number of its line, or without if it has several lines."""
    kinds = {secret_hash(secret): kind for secret, kind in secrets_in(text).items()}
    for number, line in enumerate(text.splitlines(), start=1) if kinds else ():
        for key in {*map(secret_hash, secrets_in(line))} & {*kinds}:
            yield Finding(sample=name, field=f"line {number}", kind=kinds.pop(key), secret_hash=key)
    for key, kind in kinds.items():
        yield Finding(sample=name, field="", kind=kind, secret_hash=key)


def secrets_of_rows(rows: Iterable[Row], name: str = "") -> Iterator[Finding]:
    """Yield the secrets in all strings of rows that have a `sample_id`; few rows are in memory at a time.

    Args:
        rows: their values are of any depth.
        name: of the file that holds them.
    """
    together: list[tuple[int, Row]] = []
    size = 0
    for number, row in enumerate(rows, start=1):
        together.append((number, row))
        size += sum(len(text) for _, text in _strings(row, ""))
        if size >= _TOGETHER:
            yield from _of_some(together, name)
            together, size = [], 0
    yield from _of_some(together, name)


def _of_some(rows: list[tuple[int, Row]], name: str) -> Iterator[Finding]:
    """Yield the findings of some rows. Nearly always there are none, which a scan of all their texts as one shows."""
    if not secrets_in("\n".join(text for _, row in rows for _, text in _strings(row, ""))):
        return
    for number, row in rows:
        sample = ""
        for column, text in _strings(row, ""):
            for (secret, kind), place in _located(column, text).items():
                sample = sample or masked(row["sample_id"], package=True)
                if sample == MASK:
                    sample = f"row {number}{f' of {name}' if name else ''}"
                yield Finding(sample=sample, field=place, kind=kind, secret_hash=secret_hash(secret))


def _located(place: str, text: str) -> dict[tuple[str, str], str]:
    """Return the innermost place of each secret and its kind; a text that is JSON has places."""
    found = dict.fromkeys(secrets_in(text).items(), place)
    try:
        value = json.loads(text) if found and text.startswith(("{", "[", '"')) else None
        parts = [*_strings(value, place)]
    except (ValueError, RecursionError):
        return found
    for inner, part in parts:
        if places := _located(inner, part):
            found |= dict.fromkeys(places, place) if secrets_in(inner) else places
    return found


def _strings(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each string in a value, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _strings(part, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _strings(part, f"{place}[{number}]")


# Example keys in AWS's documentation end in EXAMPLE. Classes of HTML pages begin with sk-, too, but are words.
_HARMLESS = re.compile(
    r"(?is)sk-(?:\D*|(?:[a-z]+|\d{1,4})(?:[-_]+(?:[a-z]+|\d{1,4}))*)"
    r"|.*example(?:key)?|.*(?:your|placeholder|([x0*.])\1{7}).*"
)


# Rules of the package that take placeholders for secrets.
_REPLACED = frozenset({"private-key", "generic-credential-uri"})


def masked(text: str, *, package: bool = False) -> str:
    """Return a text with *** in place of every secret; only *** if an escaped secret cannot be replaced."""
    for secret in secrets_in(text, package=package):
        text = text.replace(secret, MASK)
    return MASK if secrets_in(text, package=package) else text


def secrets_in(text: str, *, package: bool = True) -> dict[str, str]:
    """Return the kind of each secret in a text, or in what its escapes stand for.

    package: whether to use the package's rules, too, if it is installed.
    """
    found: dict[str, str] = {}
    private_keys: dict[str, str] = {}
    for view in _views(text):
        for kind, matches in _OWN.items():
            found |= {secret: kind for secret in matches(view) if not _HARMLESS.fullmatch(secret)}
        # As the last view has them: escapes add letters to the others.
        private_keys |= dict(_private_keys(view))
        for match in _package().scan(view.encode(errors="replace")) if package and scanner_version() else ():
            secret = match.secret
            # The package cuts the same key elsewhere.
            is_known = any(secret in known or known in secret for known in (*found, *private_keys))
            rule = re.split("[./]", match.rule_id)[-1]
            if match.visible and not is_known and rule not in _REPLACED and not _HARMLESS.fullmatch(secret):
                found[secret] = rule.replace("-", " ")
    return found | dict.fromkeys(private_keys.values(), "private key")


@cache
def _package() -> Scanner:
    from kingfisher_sdk import Scanner

    return Scanner()


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "e": "\x1b"}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _views(text: str) -> Iterator[str]:
    """Yield the text, and what each layer of its escapes leaves, without a terminal's colours."""
    for _ in range(LAYERS):
        yield text
        if "\x1b[" in text:
            text = _COLOUR.sub("", text)
            yield text
        if "\\" not in text:
            return
        text = _ESCAPE.sub(_unescaped, text)
    yield text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _LETTERS.get(match[3], match[3])


_BEGIN = re.compile(r"BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?[ -]*|Private-Lines: ?\d+")
_END = re.compile(r"-----|---- |Private-MAC")
_BEGINNING, _LONGEST_KEY = 48, 20_000
# What is before a key's first line: the fields of PEM, and what printing a file adds: a number, an arrow, a quote mark,
# a name.
_BEFORE = re.compile(
    r"(?:\\(?:[nrt]|u[0-9a-f]{4})|[^A-Za-z0-9]|\d+(?![A-Za-z0-9+/])|[\w./-]+[:-]\d+[:-]"
    r"|(?:Proc-Type|DEK-Info|Version|Comment|Hash)[:-].*)*"
)
_LINE = re.compile(r"[A-Za-z0-9+/]{16,}={0,3}")
_PLAIN = re.compile(r"[A-Za-z0-9+/\\\n]{10,}={0,3}")


def _private_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield the beginning and the lines of each private key, without what is printed before them."""
    for begin in _BEGIN.finditer(text) if "PRIVATE KEY" in text or "Private-Lines" in text else ():
        end = _END.search(text, begin.end(), begin.end() + _LONGEST_KEY)
        rest = text[begin.end() : end.start() if end else begin.end() + _LONGEST_KEY]
        before = _BEFORE.match(rest)
        first = _LINE.match(rest, before.end() if before else 0)
        line = first[0] if first else ""
        # A short line without all three kinds of characters may be the name of a function.
        mixed = all(re.search(letters, line) for letters in ("[a-z]", "[A-Z]", "[0-9+/]"))
        if first and (mixed or len(line) >= 40):
            plain = _PLAIN.match(rest)
            yield line[:_BEGINNING], plain[0] if plain else "\n".join(_LINE.findall(rest, first.start()))


_TOKEN = re.compile(r"(eyJ[\w-]{8,})\.eyJ[\w-]{8,}\.[\w-]{16,}")


def _web_tokens(text: str) -> Iterator[str]:
    """Yield signed JSON web tokens."""
    for match in _TOKEN.finditer(text) if "eyJ" in text else ():
        try:
            head = base64.urlsafe_b64decode(match[1] + "==")
        except binascii.Error:
            continue
        if b'"alg"' in head:
            yield match[0]


_AWS = tuple(  # by two, since a search for letters is fast
    re.compile(before + r"[\s\S]{0,80}?(?<![A-Za-z0-9/+])([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])")
    for before in ("ecret", "(?:SECRET|A[KS]IA[A-Z0-9]{16})")
)


def _aws_secrets(text: str) -> Iterator[str]:
    # Only the words before a key tell it from other texts of 40 letters.
    for match in (match for shape in _AWS for match in shape.finditer(text)):
        if all(re.search(letters, match[1]) for letters in ("[a-z]", "[A-Z]", "[0-9]")) and len({*match[1]}) > 15:
            yield match[1]


_ADDRESS = re.compile(r"://[^\s/@:\"'<>]*:([^\s/@\"'<>]{6,})@(?!sha\d+:|(?:[\w-]+\.)*example\.)[\w.\[-]")
_VARIABLE = re.compile(r"[$%{\[(*].*|[A-Z_]+")
_USUAL_PASSWORDS = frozenset({"passwd", "passphrase", "mypassword", "dbpassword", "password123"})


def _passwords(text: str) -> Iterator[str]:
    """Yield passwords in addresses, apart from words for one and the names of variables."""
    for match in _ADDRESS.finditer(text) if "://" in text else ():
        password = match[1]
        if not (_VARIABLE.fullmatch(password) or is_common(password) or password.lower() in _USUAL_PASSWORDS):
            yield password


_OWN: dict[str, Callable[[str], Iterable[str]]] = {
    "key of a service": KEY_SHAPE.findall,
    "AWS secret key": _aws_secrets,
    "JSON web token": _web_tokens,
    "password in an address": _passwords,
}
