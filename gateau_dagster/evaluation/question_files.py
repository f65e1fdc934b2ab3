"""Find the files of a benchmark's questions, digest their content, and read their records."""

from __future__ import annotations

import ast
import json
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from gateau_dagster.data.readers import read_plain_text, read_records
from gateau_dagster.data.sources import FILE_DIGESTS, Problem, SourceFile, content_signature, location, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.remote import is_remote

if TYPE_CHECKING:
    from gateau_dagster.config import Config


Addresses = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class QuestionFiles:
    """Files that a benchmark's configuration names.

    place: the option's place in the configuration. path: None where it is not given. cure: how to get the files.
    plain_texts: whether they may be text files. key: of their digest in Benchmark.settings; default: the place.
    """

    config: Config
    place: str
    path: Addresses | None
    cure: str
    plain_texts: bool = False
    key: str = ""

    def find(self) -> list[SourceFile]:
        """Return the files, by sources.resolve_files. Raises GateauError for a path that is not given, or matches no
        file.
        """
        return self._find(self.path)

    def check(self) -> None:
        """Raise GateauError as `find` does; a remote address is only checked for being given."""
        for each in [self.path] if isinstance(self.path, str) or self.path is None else self.path:
            if each is None or not is_remote(each):
                self._find(each)

    def digest(self) -> str:
        """Return a digest of the files' names and contents. Raises GateauError as `find` does."""
        return content_signature(self.find(), self.config.work_folder / "cache" / FILE_DIGESTS)

    def _find(self, path: Addresses | None) -> list[SourceFile]:
        if path is None:
            raise GateauError("evaluation.benchmark_files", f"{self.place}: is required: {self.cure}")
        try:
            return resolve_files(path, self.config.folder, plain_texts=self.plain_texts)
        except GateauError as error:
            raise error.reworded(f"{self.place}: {error}; {self.cure}") from error


def rows_of(files: Sequence[SourceFile], place: str) -> Iterator[tuple[SourceFile, int, dict[str, Any]]]:
    """Yield file, number and content of each record of the files, in order.

    Raises GateauError for an unreadable record, because a benchmark without one of its questions is a different one.
    """
    for file in files:
        for item in read_records(file):
            if isinstance(item, Problem):
                raise GateauError(
                    "evaluation.benchmark_data",
                    f"{place}: {location(file, item.number)}: {item.reason}. Download the file again",
                )
            if not isinstance(item.value, dict):
                raise GateauError(
                    "evaluation.benchmark_data",
                    f"{place}: {location(file, item.number)} is not an object. Download the file again",
                )
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
        raise GateauError(
            "evaluation.benchmark_data",
            f"{place}: {location(file, read.number)}: {read.reason}. Download the file again",
        )
    return str(read.value)


def yaml_of(file: SourceFile, place: str) -> dict[str, Any]:
    """Return the content of a file that is one YAML mapping. Raises GateauError for other content."""
    text = text_of(file, place)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an invalid date, nested too deeply
        reason = " ".join(str(error).split())
        raise GateauError(
            "evaluation.benchmark_data", f"{place}: {location(file, 0)} is not YAML ({reason}). Download the file again"
        ) from error
    if not isinstance(found, dict):
        raise GateauError(
            "evaluation.benchmark_data", f"{place}: {location(file, 0)} is not a YAML mapping. Download the file again"
        )
    return found


def json_of(file: SourceFile, place: str) -> dict[str, Any]:
    """Return the content of a file that is one JSON object. Raises GateauError for other content."""
    text = text_of(file, place)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GateauError(
            "evaluation.benchmark_data", f"{place}: {location(file, 0)} is not JSON ({error}). Download the file again"
        ) from error
    if not isinstance(found, dict):
        raise GateauError(
            "evaluation.benchmark_data", f"{place}: {location(file, 0)} is not a JSON object. Download the file again"
        )
    return found


def assigned(file: SourceFile, name: str, place: str, *, inside: str | None = None) -> list[Any]:
    """Return the literal values assigned to `name`, in order: anywhere in the file, or `inside` a function.

    Raises GateauError for a file that is not Python, or has none.
    """
    found = []
    tree = _tree(file, place) if inside is None else _function(file, inside, place)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            try:
                found.append((node.lineno, ast.literal_eval(node.value)))
            except ValueError:  # not a literal
                continue
    if not found:
        raise GateauError(
            "evaluation.benchmark_data",
            f"{place}: {file.label} assigns nothing to {name}: it is not the published file",
        )
    return [value for _, value in sorted(found, key=lambda each: each[0])]


def texts_in(file: SourceFile, function: str, place: str) -> list[str]:
    """Return the string literals of a function or method, in order. Raises GateauError where it is missing."""
    node = _function(file, function, place)
    inside = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [str(each.value) for each in sorted(inside, key=lambda each: (each.lineno, each.col_offset))]


def _function(file: SourceFile, name: str, place: str) -> ast.AST:
    for node in ast.walk(_tree(file, place)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise GateauError(
        "evaluation.benchmark_data", f"{place}: {file.label} has no function {name}: it is not the published file"
    )


def _tree(file: SourceFile, place: str) -> ast.Module:
    text = text_of(file, place)
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deep"
        raise GateauError(
            "evaluation.benchmark_data", f"{place}: {file.label} is not a Python file ({reason}). Download it again"
        ) from error


def lengths_within(lengths: Iterable[int], longest: int) -> list[int]:
    """Return the lengths up to `longest`, each once, in order."""
    return sorted({length for length in lengths if length <= longest})


def check_lengths(place: str, lengths: Iterable[int], longest: int, *, given: bool) -> None:
    """Raise GateauError where every length is above `longest`, or where any is and the lengths were `given`."""
    above = sorted({length for length in lengths if length > longest})
    if above and (given or not lengths_within(lengths, longest)):
        raise GateauError(
            "evaluation.length",
            f"{place}: {', '.join(map(str, above))} tokens are more than the {longest} that "
            "scoring.max_length leaves for a question: give shorter lengths, or raise it",
        )
