"""Find the files of a benchmark's questions, digest their content, and read their records."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from gateau_dagster.data.readers import read_plain_text, read_records
from gateau_dagster.data.sources import FILE_DIGESTS, Problem, SourceFile, content_signature, location, resolve_files
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.remote import is_remote

if TYPE_CHECKING:
    from gateau_dagster.config import Config

Addresses = str | Sequence[str]


def question_files(
    config: Config, place: str, path: Addresses | None, *, cure: str, plain_texts: bool = False
) -> list[SourceFile]:
    """Return the files that the configuration names at `place`, by sources.resolve_files.

    Raises GateauError for a path that is not given, or matches no file; `cure` explains how to get the files.
    """
    if path is None:
        raise GateauError(f"{place}: is required: {cure}")
    try:
        return resolve_files(path, config.folder, plain_texts=plain_texts)
    except GateauError as error:
        kind = TransientError if isinstance(error, TransientError) else GateauError
        raise kind(f"{place}: {error}; {cure}") from error


def check_files(config: Config, place: str, path: Addresses | None, *, cure: str, plain_texts: bool = False) -> None:
    """Raise GateauError as `question_files` does; a remote address is only checked for being given."""
    paths = [path] if isinstance(path, str) or path is None else path
    for each in paths:
        if each is None or not is_remote(each):
            question_files(config, place, each, cure=cure, plain_texts=plain_texts)


def files_digest(config: Config, place: str, path: Addresses | None, *, cure: str, plain_texts: bool = False) -> str:
    """Return a digest of the files' names and contents, for a benchmark's settings. Raises as `question_files`."""
    files = question_files(config, place, path, cure=cure, plain_texts=plain_texts)
    return content_signature(files, config.work_folder / "cache" / FILE_DIGESTS)


def rows_of(files: Sequence[SourceFile], place: str) -> Iterator[tuple[SourceFile, int, dict[str, Any]]]:
    """Yield file, number and content of each record of the files, in order.

    Raises GateauError for an unreadable record, because a benchmark without one of its questions is a different one.
    """
    for file in files:
        for item in read_records(file):
            if isinstance(item, Problem):
                raise GateauError(f"{place}: {location(file, item.number)}: {item.reason}. Get the file again")
            if not isinstance(item.value, dict):
                raise GateauError(f"{place}: {location(file, item.number)} is no object. Get the file again")
            yield file, item.number, item.value


def template_gaps(template: str) -> list[str]:
    """Return the names in braces of a template, in order; a gap without a name is the empty text.

    Raises ValueError for an unmatched brace, and for more than a name. A width such as {question:>3000000000} would
    fill the memory, and {question.x} would read an attribute.
    """
    gaps = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if spec or conversion or not (name.isidentifier() or name.isdigit() or not name):
            shown = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(f"{{{shown[:60]}}} is more than a name in braces; expected {{name}}, without : ! . or [")
        gaps.append(name)
    return gaps


def text_of(file: SourceFile, place: str) -> str:
    """Return a whole text file. Raises GateauError for other content."""
    read = read_plain_text(file)
    if isinstance(read, Problem):
        raise GateauError(f"{place}: {location(file, read.number)}: {read.reason}. Get the file again")
    return str(read.value)


def yaml_of(file: SourceFile, place: str) -> dict[str, Any]:
    """Return the content of a file that is one YAML mapping. Raises GateauError for other content."""
    text = text_of(file, place)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an invalid date, nested too deeply
        reason = " ".join(str(error).split())
        raise GateauError(f"{place}: {location(file, 0)} is no YAML ({reason}). Get the file again") from error
    if not isinstance(found, dict):
        raise GateauError(f"{place}: {location(file, 0)} is no YAML mapping. Get the file again")
    return found


def json_of(file: SourceFile, place: str) -> dict[str, Any]:
    """Return the content of a file that is one JSON object. Raises GateauError for other content."""
    text = text_of(file, place)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GateauError(f"{place}: {location(file, 0)} is no JSON ({error}). Get the file again") from error
    if not isinstance(found, dict):
        raise GateauError(f"{place}: {location(file, 0)} is no JSON object. Get the file again")
    return found
