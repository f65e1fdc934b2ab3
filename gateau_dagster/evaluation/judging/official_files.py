"""Read questions and prompts of a benchmark from its authors' own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import Problem, SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.judging.needed import needed_judge
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, template_gaps, text_of

if TYPE_CHECKING:
    from gateau_dagster.config import Config


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

    def text(self, key: str, *, empty: bool = False) -> str:
        """Return a text of Unicode characters, which may be blank only where `empty` allows it."""
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
        """Return a text whose gaps are names in braces."""
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


def by_id(rows: Sequence[OfficialRow], key: str) -> dict[str, OfficialRow]:
    """Return the rows by their ids. Raises ValueError for a repeated id."""
    found: dict[str, OfficialRow] = {}
    for row in rows:
        name = row.identifier(key)
        if name in found:
            raise row.wrong(f"{key} {name} is also in {found[name].where}", "every id once")
        found[name] = row
    return found


@dataclass(frozen=True, kw_only=True)
class OfficialFile:
    """A file that a configuration names.

    place: its key there. path: None where it is not given. origin: where its authors publish it.
    """

    place: str
    path: str | None
    origin: str

    @property
    def cure(self) -> str:
        """Return what to do where the file cannot be read."""
        return f"download {self.origin} and give its path, or an s3:// or hf:// address"

    def check(self, config: Config) -> None:
        """Raise GateauError where the file is not given, or is a local file that does not exist."""
        check_files(config, self.place, self.path, cure=self.cure)

    def signature(self, config: Config) -> str:
        """Return a digest of the file's name and content. Raises GateauError where it cannot be read."""
        return files_digest(config, self.place, self.path, cure=self.cure)

    def rows(self, config: Config) -> list[OfficialRow]:
        """Return the records: lines of JSON Lines, elements of a JSON list. Raises GateauError for a broken one."""
        found: list[OfficialRow] = []
        file = self._file(config)
        for item in read_records(file):
            if isinstance(item, Problem):
                raise self.wrong(f"{location(file, item.number)}: {item.reason}")
            found.append(OfficialRow(where=location(file, item.number), value=item.value))
        return found

    def template(self, config: Config) -> str:
        """Return the file's whole text, with gaps in braces. Raises GateauError where it cannot be read."""
        text = text_of(self._file(config), self.place)
        with self.understood():
            template_gaps(text)
        return text

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Turn errors in the body, such as a missing field or a wrong type, into GateauError."""
        try:
            yield
        except GateauError:
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # an unmatched } is a ValueError
            named = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise self.wrong(named) from error

    def wrong(self, reason: str) -> GateauError:
        """Return the exception for unexpected content."""
        return GateauError(f"{self.place}: {self.path} is not the file that is needed ({reason}); {self.cure}")

    def _file(self, config: Config) -> SourceFile:
        files = question_files(config, self.place, self.path, cure=self.cure)
        if len(files) != 1:
            raise self.wrong(f"{len(files)} files")
        return files[0]


@dataclass(frozen=True, kw_only=True)
class OfficialFiles:
    """The files of a benchmark that a judge rates.

    names: file name as its authors call it, by the key of the options. origin: where they publish them.
    """

    benchmark: str
    names: Mapping[str, str]
    origin: str

    def of(self, options: Any) -> dict[str, OfficialFile]:
        """Return the files by key, with the paths of the options."""
        return {
            key: OfficialFile(
                place=f"evaluation.{self.benchmark}.{key}",
                path=getattr(options, key),
                origin=f"{name} from {self.origin}",
            )
            for key, name in self.names.items()
        }

    def check(self, config: Config, options: Any) -> None:
        """Raise GateauError where there is no judge, or a file is not given or missing; for Benchmark.check."""
        needed_judge(config, self.benchmark)
        for file in self.of(options).values():
            file.check(config)

    def settings(self, config: Config, options: Any) -> dict[str, Any]:
        """Return a digest per file, for Benchmark.settings. Raises GateauError where a file cannot be read."""
        return {f"{self.benchmark} {key}": file.signature(config) for key, file in self.of(options).items()}
