"""What readers yield: a record, or what is in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateau_dagster.data.sources import SourceFile


@dataclass(frozen=True, kw_only=True)
class Record:
    """A parsed record; `number` counts lines of JSON Lines, elements of a JSON list or rows of parquet, from 1."""

    number: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A record that cannot be read, or the file itself (`number` 0). The reason's kind stands before its colon."""

    number: int
    reason: str


def location(file: SourceFile, number: int) -> str:
    """'long.jsonl:17', or the file alone for number 0."""
    return f"{file.label or file.name}:{number}" if number else file.label or file.name
