"""Find the files of a benchmark's questions, digest their content, and read their records."""

from __future__ import annotations

import ast
import json
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
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


def cure(name: str, origin: str) -> str:
    """Return how to get a published file."""
    return f"download {name} from {origin} and give its path, or an s3:// or hf:// address"


@dataclass(frozen=True, kw_only=True)
class QuestionFiles:
    """Files that a benchmark's configuration names. Every method that reads one raises GateauError for other content.

    place: the option's place in the configuration. path: None if it is not given. cure: instructions to get the files.
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

    def wrong(self, reason: str) -> GateauError:
        """Return the error for unexpected content."""
        return GateauError("evaluation.benchmark_data", f"{self.place}: {reason}; {self.cure}")

    @contextmanager
    def understood(self, name: object = None) -> Iterator[None]:
        """Turn errors in the body, such as a missing field or a wrong type, into GateauError. name: of the file."""
        try:
            yield
        except GateauError:
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # an unmatched } is a ValueError
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise self.wrong(f"{name or self.path} is not the published file ({reason})") from error

    def records(self, files: Sequence[SourceFile] | None = None) -> Iterator[tuple[SourceFile, int, Any]]:
        """Yield file, number and content of each record: lines of JSON Lines, elements of a JSON list.

        No record is left out, because a benchmark without one of its questions is a different benchmark.
        """
        for file in self.find() if files is None else files:
            for item in read_records(file):
                if isinstance(item, Problem):
                    raise self.wrong(f"{location(file, item.number)}: {item.reason}")
                yield file, item.number, item.value

    def objects(self, files: Sequence[SourceFile] | None = None) -> Iterator[tuple[SourceFile, int, dict[str, Any]]]:
        """Yield file, number and content of each record, which must be an object."""
        for file, number, value in self.records(files):
            if not isinstance(value, dict):
                raise self.wrong(f"{location(file, number)} is not an object")
            yield file, number, value

    def rows(self, *, one: bool = False) -> Iterator[OfficialRow]:
        """Yield the records; `one`: of the only file."""
        for file, number, value in self.records([self.only()] if one else None):
            yield OfficialRow(where=location(file, number), value=value)

    def only(self) -> SourceFile:
        """Return the only file."""
        files = self.find()
        if len(files) != 1:
            raise self.wrong(f"{self.path} names {len(files)} files, not one")
        return files[0]

    def text(self, file: SourceFile) -> str:
        """Return a whole text file."""
        read = read_plain_text(file)
        if isinstance(read, Problem):
            raise self.wrong(f"{location(file, read.number)}: {read.reason}")
        return str(read.value)

    def template(self) -> str:
        """Return the text of the only file, with gaps in braces."""
        text = self.text(self.only())
        with self.understood():
            template_gaps(text)
        return text

    def mapping(self, file: SourceFile) -> dict[str, Any]:
        """Return the content of a file that is one JSON object or one YAML mapping."""
        text, name = self.text(file), location(file, 0)
        kind, parse = ("JSON", json.loads) if file.name.endswith(".json") else ("YAML", yaml.safe_load)
        try:
            found = parse(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # an invalid date, nested too deeply
            raise self.wrong(f"{name} is not {kind} ({' '.join(str(error).split())})") from error
        if not isinstance(found, dict):
            raise self.wrong(f"{name} is not a {kind} mapping")
        return found

    def assigned(self, file: SourceFile, name: str, *, inside: str | None = None) -> list[Any]:
        """Return the literal values that a Python file assigns to `name`, in order; `inside` a function or anywhere."""
        found = []
        for node in ast.walk(self._tree(file, inside)):
            if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
                try:
                    found.append((node.lineno, ast.literal_eval(node.value)))
                except ValueError:  # not a literal
                    continue
        if not found:
            raise self.wrong(f"{file.label} is not the published file: it assigns nothing to {name}")
        return [value for _, value in sorted(found, key=lambda each: each[0])]

    def texts_in(self, file: SourceFile, function: str) -> list[str]:
        """Return the string literals of a function or method of a Python file, in order."""
        nodes = ast.walk(self._tree(file, function))
        texts = [each for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return [str(each.value) for each in sorted(texts, key=lambda each: (each.lineno, each.col_offset))]

    def _tree(self, file: SourceFile, function: str | None) -> ast.AST:
        """Return the tree of a Python file, or of a function in it."""
        text = self.text(file)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
            reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deep"
            raise self.wrong(f"{file.label} is not a Python file ({reason})") from error
        if function is None:
            return tree
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
                return node
        raise self.wrong(f"{file.label} is not the published file: it has no function {function}")

    def _find(self, path: Addresses | None) -> list[SourceFile]:
        if path is None:
            raise GateauError("evaluation.benchmark_files", f"{self.place}: is required: {self.cure}")
        try:
            return resolve_files(path, self.config.folder, plain_texts=self.plain_texts)
        except GateauError as error:
            raise error.reworded(f"{self.place}: {error}; {self.cure}") from error


@dataclass(frozen=True, kw_only=True)
class OfficialRow:
    """A record of an official file; its methods check the fields as they read them.

    where: file and line. Every method raises ValueError, which names the place, the fault and what was expected.
    """

    where: str
    value: Any

    def field(self, key: str) -> Any:
        """Return a required field."""
        if not isinstance(self.value, dict):
            raise self.wrong("it is no object", f"an object with {key}")
        if key not in self.value:
            raise self.wrong(f"{key} is missing", f"a field {key}")
        return self.value[key]

    def inner(self, key: str) -> OfficialRow:
        """Return a field that is an object."""
        value = self.field(key)
        if not isinstance(value, dict):
            raise self.wrong(f"{key} is {_kind(value)}", "an object")
        return OfficialRow(where=f"{self.where}, {key}", value=value)

    def text(self, key: str, *, empty: bool = False) -> str:
        """Return a text of Unicode characters, which may be blank only if `empty` allows it."""
        return self._checked(key, self.field(key), empty=empty)

    def texts(self, key: str, *, most: int | None = None) -> tuple[str, ...]:
        """Return a list of one to `most` texts."""
        given = self.field(key)
        expected = "a list of texts" if most is None else f"a list of 1 to {most} texts"
        if not isinstance(given, list):  # a str would be read letter by letter
            raise self.wrong(f"{key} is {_kind(given)}", expected)
        if not given or (most is not None and len(given) > most):
            raise self.wrong(f"{key} has {len(given)} elements", expected)
        return tuple(self._checked(f"{key}[{number}]", text) for number, text in enumerate(given))

    def one_of(self, key: str, known: Collection[str]) -> str:
        """Return a text that is one of `known`."""
        value = self.text(key)
        if value not in known:
            raise self.wrong(f"{key} is {value[:60]!r}", f"one of {', '.join(known)}")
        return value

    def identifier(self, key: str) -> str:
        """Return an id: an integer or a text."""
        given = self.field(key)
        if isinstance(given, float) and given.is_integer() and abs(given) < 2**53:
            given = int(given)
        if isinstance(given, int) and not isinstance(given, bool):
            return str(given)
        if not isinstance(given, str):
            raise self.wrong(f"{key} is {_kind(given)}", "a whole number or a text")
        return self._checked(key, given)

    def template(self, key: str) -> str:
        """Return a text with gaps, which are names in braces."""
        found = self.text(key)
        try:
            template_gaps(found)
        except ValueError as error:
            raise self.wrong(f"{key}: {error}", "the published prompt") from error
        return found

    def wrong(self, fault: str, expected: str) -> ValueError:
        """Return the exception for a fault."""
        return ValueError(f"{self.where}: {fault}; expected {expected}")

    def _checked(self, name: str, text: Any, *, empty: bool = False) -> str:
        if not isinstance(text, str):
            raise self.wrong(f"{name} is {_kind(text)}", "a text")
        if not empty and not text.strip():
            raise self.wrong(f"{name} is empty", "a text")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise self.wrong(f"{name} holds half of a surrogate pair", "Unicode text")
        return text


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}.get(
        type(value), "an object"
    )


def by_id(rows: Iterable[OfficialRow], key: str) -> Iterator[tuple[str, OfficialRow]]:
    """Yield the rows with their ids. Raises ValueError for a repeated id."""
    places: dict[str, str] = {}
    for row in rows:
        name = row.identifier(key)
        if name in places:
            raise row.wrong(f"{key} {name} is also in {places[name]}", "every id once")
        places[name] = row.where
        yield name, row


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


def lengths_within(lengths: Iterable[int], longest: int) -> list[int]:
    """Return the lengths up to `longest`, each once, in order."""
    return sorted({length for length in lengths if length <= longest})


def check_lengths(place: str, lengths: Iterable[int], longest: int, *, given: bool) -> None:
    """Raise GateauError if every length is above `longest`, or if any is and the lengths were `given`."""
    above = sorted({length for length in lengths if length > longest})
    if above and (given or not lengths_within(lengths, longest)):
        raise GateauError(
            "evaluation.length",
            f"{place}: {', '.join(map(str, above))} tokens are more than the {longest} that "
            "scoring.max_length leaves for a question: give shorter lengths, or raise it",
        )
