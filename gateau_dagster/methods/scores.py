"""Scores of another program: a file with the columns `sample_id` and `score`."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import AnyPath
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.streams import DAMAGE, open_stream, unheard
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from gateau_dagster.methods.method import Reads, Tables

_READERS = {
    ".parquet": pl.read_parquet,
    ".csv": partial(pl.read_csv, infer_schema=False),  # an id such as 0017 is a text
    ".jsonl": partial(pl.read_ndjson, infer_schema_length=None),
    ".ndjson": partial(pl.read_ndjson, infer_schema_length=None),
}
_COLUMNS = {"sample_id": pl.String, "score": pl.Float64}
_NAMED = 3


class ScoresOptions(Section):
    """The file of the scores."""

    path: AnyPath = Field(
        default="",
        description="Parquet, CSV or JSON Lines file with the columns sample_id and score, also .gz or .zst; a "
        "relative path begins at this file's folder; or an s3:// address. `method: {scores: FILE}` means the same. "
        "Higher is better; null: no score.",
        examples=["my_scores.parquet"],
    )


class Scores(Method):
    """Score as another program did; the content of its file is part of the fingerprint."""

    name = "scores"
    title = "Another program gave a high score, in a file."
    source = "another program's"
    per_sample = False
    options: ScoresOptions

    def paths(self) -> Sequence[str]:
        return [self.options.path]

    def reads(self) -> Reads:
        return {"raw_long_sft": ["sample_id"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables["raw_long_sft"].select("sample_id").join(self._file(), on="sample_id", how="left")

    def check(self) -> None:
        if not self.options.path:
            raise GateauError(
                "methods.scores_file",
                f"{self.place}.path: is required: name the file of scores, or write method: {{scores: FILE}}",
            )

    def check_data(self, accepted: pl.DataFrame) -> None:
        scored = self._file().drop_nulls("score")
        if scored.join(accepted, on="sample_id", how="semi").is_empty():
            raise self._wrong(
                f"has a score for none of the samples: its first sample_id is {scored['sample_id'][0]}, and "
                f"that of the data is {accepted['sample_id'].min()}. Use the ids of raw_long_sft"
            )

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Name the ids that only the file or only the data has; a sample without a score is never chosen."""
        file = self._file()
        unknown = file.join(accepted, on="sample_id", how="anti")["sample_id"].sort()
        scored = file.filter(pl.col("score").is_not_null())
        absent = accepted.join(scored, on="sample_id", how="anti")["sample_id"].sort()
        found = []
        if len(absent):
            found.append(
                f"{self.place}.path: {self.options.path} has no score for {plural(len(absent), 'sample')}, which will "
                f"not be chosen: {_named(absent)}"
            )
        if len(unknown):
            found.append(
                f"{self.place}.path: {self.options.path} has {plural(len(unknown), 'sample')} that the data do not "
                f"have: {_named(unknown)}"
            )
        return found

    def _file(self) -> pl.DataFrame:
        """Return the scores as they are in the file.

        Raises:
            GateauError: there is no such file, or not just one; it cannot be read, or what is in it cannot be used.
        """
        files = self.files()
        if len(files) != 1:
            raise self._wrong(f"names {len(files)} files: name one")
        try:
            return _read(files[0])
        except GateauError:
            raise
        except ValueError as error:
            raise self._wrong(str(error)) from error

    def _wrong(self, what: str) -> GateauError:
        return GateauError("methods.scores_file", f"{self.place}.path: {self.options.path} {what}")


@lru_cache(maxsize=4)
def _read(file: SourceFile) -> pl.DataFrame:
    """Return the columns of a file of scores.

    Raises:
        ValueError: the file cannot be read, or has no valid scores.
        GateauError: the file cannot be reached.
    """
    plain = file.name.lower().removesuffix(f".{file.compression}")
    ending = next((ending for ending in _READERS if plain.endswith(ending)), None)
    if ending is None:
        raise ValueError(f"is not one of {', '.join(_READERS)}: write it as one of these, or correct its name")
    try:
        with open_stream(file, unheard) as stream:
            content = stream.read()
        _check_once(content, ending)
        table = _READERS[ending](io.BytesIO(content))
        lacking = [name for name in _COLUMNS if name not in table.columns]
        if lacking:
            has = f"it has {', '.join(table.columns)}"
            raise ValueError(f"has no column {' and no column '.join(lacking)}: {has}. Rename them")
        table = table.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())
    except (pl.exceptions.PolarsError, *DAMAGE) as error:
        raise ValueError(f"cannot be read: {str(error).splitlines()[0]}. Write it again") from error
    if table["sample_id"].null_count():
        raise ValueError("has rows without a sample_id: remove them")
    odd = table.filter(pl.col("score").is_nan() | pl.col("score").is_infinite())["sample_id"].sort()
    if len(odd):
        raise ValueError(f"has scores that are not finite, of {_named(odd)}: leave them empty, which means no score")
    twice = table.filter(pl.col("sample_id").is_duplicated())["sample_id"].unique().sort()
    if len(twice):
        raise ValueError(f"lists samples more than once: {_named(twice)}. Keep one row of each")
    if table["score"].null_count() == table.height:
        raise ValueError("has no scores: all are empty. Write a number for each sample that may be chosen")
    return table


def _check_once(content: bytes, ending: str) -> None:
    """Raise ValueError if a row has two values of one column: the readers would take one of them without a word."""
    if ending == ".csv":
        names = pl.read_csv(io.BytesIO(content), has_header=False, n_rows=1, infer_schema=False)
        header = [*names.row(0)] if names.height else []
        twice = [name for name in _COLUMNS if header.count(name) > 1]
        if twice:
            raise ValueError(f"has two columns {twice[0]}: keep one")
    elif ending != ".parquet":  # whose reader refuses it
        for number, line in enumerate(content.splitlines(), start=1):
            if b"\\" in line or any(line.count(f'"{name}"'.encode()) > 1 for name in _COLUMNS):
                try:
                    keys = [key for key, _ in json.loads(line, object_pairs_hook=list)]
                except (ValueError, TypeError, RecursionError):  # the reader says what is wrong
                    continue
                twice = [name for name in _COLUMNS if keys.count(name) > 1]
                if twice:
                    raise ValueError(f"gives {twice[0]} twice in line {number}: keep one")


def _named(ids: pl.Series) -> str:
    shown = ", ".join(ids.head(_NAMED))
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED:,} more"
