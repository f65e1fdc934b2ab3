"""Read plain texts of a pre-training corpus from files of any form."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateau_dagster.data.readers import read_plain_text, read_records
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import Problem, Record, SourceFile, location
from gateau_dagster.errors import GateauError

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: JSON may encode it, and no table can hold it


@dataclass(frozen=True, kw_only=True)
class TextFields:
    """The fields of a record; `meta.domain` is the field `domain` of the object `meta`.

    domain None: the file's name without its ending. name None: the record's place, such as `web.jsonl:17`. whole None:
    no text is a part of another.
    """

    text: str = "text"
    domain: str | None = None
    name: str | None = None
    whole: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusText:
    """A text of the corpus, and its place: numbers of file and record, as readers count them.

    whole: the parent text, such as a repository of code; empty for a text without a parent.
    """

    name: str
    domain: str
    text: str
    file: int
    record: int
    whole: str = ""

    @property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """A scored text without its content; `tokens` and `digest` are those of the whole text."""

    name: str
    domain: str
    tokens: int
    spans: int | None
    score: float | None
    file: int
    record: int
    digest: str


def read_texts(
    files: Sequence[SourceFile],
    fields: TextFields,
    on_bytes: Callable[[int], None],
    *,
    plain_texts: bool = False,
    wanted: Mapping[int, Collection[int]] | None = None,
) -> Iterator[CorpusText | Reject]:
    """Yield every record of the files, in order; one without text, or with a repeated name, is a Reject.

    Args:
        files: to read.
        fields: of their records.
        on_bytes: receives counts of stored bytes as they are read.
        plain_texts: whether a file that is no data file is one text, instead of a Reject.
        wanted: by file, its place in `files`, the numbers of the only records that are read.

    Raises:
        GateauError: a file cannot be reached.
    """
    seen: set[str] = set()
    for number, file in enumerate(files):
        if wanted is not None and number not in wanted:
            continue
        plain = plain_texts and file.format is None
        own = TextFields() if plain else fields
        records = (
            [read_plain_text(file, on_bytes)] if plain else read_records(file, wanted and wanted[number], on_bytes)
        )
        for item in records:
            if isinstance(item, Problem):
                yield Reject(sample_id=location(file, item.number), reason=item.reason)
                continue
            record = replace(item, value={own.text: item.value}) if plain else item
            found = _text(record, number, file, own)
            if isinstance(found, CorpusText):
                if found.name in seen:
                    found = Reject(sample_id=location(file, item.number), reason=f"the name {found.name!r} came before")
                else:
                    seen.add(found.name)
            yield found


def records_of(
    files: Sequence[SourceFile], fields: TextFields, texts: Iterable[ScoredText]
) -> Iterator[tuple[ScoredText, Any]]:
    """Yield the records of these texts as they are in the files, in the files' order.

    Raises:
        GateauError: a record no longer holds its text.
    """
    wanted: dict[int, dict[int, ScoredText]] = defaultdict(dict)
    for text in texts:
        wanted[text.file][text.record] = text
    for number in sorted(wanted):
        waiting, file = wanted[number], files[number]
        for item in read_records(file, wanted=waiting.keys()):
            if item.number not in waiting:
                continue  # a known problem, or one that concerns nothing wanted
            text = waiting.pop(item.number)
            found = _text(item, number, file, fields) if isinstance(item, Record) else None
            if not isinstance(found, CorpusText) or found.digest != text.digest:
                raise _changed(file, text.record)
            assert isinstance(item, Record)
            yield text, item.value
            if not waiting:
                break
        if waiting:
            raise _changed(file, min(waiting))


def _changed(file: SourceFile, record: int) -> GateauError:
    return GateauError(
        "data.changed",
        f"{location(file, record)} is not what was scored: {file.address} changed since. Score it again when "
        "nothing writes it",
    )


def _text(item: Record, number: int, file: SourceFile, fields: TextFields) -> CorpusText | Reject:
    place = location(file, item.number)
    text = _field(item.value, fields.text)
    if not isinstance(text, str) or not text.strip():
        state = "is missing" if text is None else "is no text" if not isinstance(text, str) else "is empty"
        return Reject(sample_id=place, reason=f"no text: the field {fields.text!r} {state}")
    name = place if fields.name is None else _field(item.value, fields.name)
    domain = file.stem if fields.domain is None else _field(item.value, fields.domain)
    whole = "" if fields.whole is None else _field(item.value, fields.whole)
    own = (("name", name, fields.name), ("domain", domain, fields.domain), ("value to join by", whole, fields.whole))
    for what, found, field in own:
        if not isinstance(found, str | int) or isinstance(found, bool) or _HALF.search(str(found)):
            return Reject(sample_id=place, reason=f"no {what}: the field {field!r} holds no text or whole number")
    known = {"name": str(name), "domain": str(domain), "whole": str(whole)}
    return CorpusText(**known, text=text, file=number, record=item.number)


def _field(value: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value
