"""Questions and prompts of a benchmark, read from its authors' own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import Problem, SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.judging.needed import needed_judge
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, text_of

if TYPE_CHECKING:
    from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class OfficialFile:
    """A file that a configuration names.

    place: its key there. path: None where it is not given. origin: where its authors have it.
    """

    place: str
    path: str | None
    origin: str

    @property
    def cure(self) -> str:
        """What to do where it cannot be read."""
        return f"download {self.origin} and give its path, or an s3:// or hf:// address"

    def check(self, config: Config) -> None:
        """Raises GateauError where it is not given, or is a local file that is not there."""
        check_files(config, self.place, self.path, cure=self.cure)

    def signature(self, config: Config) -> str:
        """Changes with its name and content. Raises GateauError."""
        return files_digest(config, self.place, self.path, cure=self.cure)

    def records(self, config: Config) -> list[Any]:
        """Its records: lines of JSON Lines, elements of a JSON list. Raises GateauError, also for a broken one."""
        found: list[Any] = []
        file = self._file(config)
        for item in read_records(file):
            if isinstance(item, Problem):
                raise self.wrong(f"{location(file, item.number)}: {item.reason}")
            found.append(item.value)
        return found

    def text(self, config: Config) -> str:
        """The whole of it, byte for byte. Raises GateauError."""
        return text_of(self._file(config), self.place)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Around what is made of its content. Raises GateauError where a field is missing or is another thing."""
        try:
            yield
        except GateauError:
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # a lone } is a ValueError
            raise self.wrong(f"{type(error).__name__}: {error}") from error

    def wrong(self, reason: str) -> GateauError:
        """What to raise for content that is not what it should be."""
        return GateauError(f"{self.place}: {self.path} is not the file that is needed ({reason}); {self.cure}")

    def _file(self, config: Config) -> SourceFile:
        files = question_files(config, self.place, self.path, cure=self.cure)
        if len(files) != 1:
            raise self.wrong(f"{len(files)} files")
        return files[0]


@dataclass(frozen=True, kw_only=True)
class OfficialFiles:
    """Those of a benchmark that a judge rates.

    names: by the key of its options, as its authors call it. origin: where they have them.
    """

    benchmark: str
    names: Mapping[str, str]
    origin: str

    def of(self, options: Any) -> dict[str, OfficialFile]:
        """By key, each where the options have it."""
        return {
            key: OfficialFile(
                place=f"evaluation.{self.benchmark}.{key}",
                path=getattr(options, key),
                origin=f"{name} from {self.origin}",
            )
            for key, name in self.names.items()
        }

    def check(self, config: Config, options: Any) -> None:
        """Raises GateauError where there is no judge, or a file is not given or not there; see Benchmark.check."""
        needed_judge(config, self.benchmark)
        for file in self.of(options).values():
            file.check(config)

    def settings(self, config: Config, options: Any) -> dict[str, Any]:
        """What they hold, as far as it changes the questions; see Benchmark.settings. Raises GateauError."""
        return {f"{self.benchmark} {key}": file.signature(config) for key, file in self.of(options).items()}
