"""LongBench's rows and prompts as they are published, read from wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateau_dagster.data.sources import SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.longbench_sets import SETS
from gateau_dagster.evaluation.question_files import json_of, rows_of, template_gaps

PROMPTS, LENGTHS = "dataset2prompt.json", "dataset2maxlen.json"
DATA_CURE = (
    "download https://huggingface.co/datasets/THUDM/LongBench/resolve/main/data.zip, unpack it, and give its folder "
    "data of .jsonl files, or an s3:// or hf:// address of them"
)
PROMPTS_CURE = (
    f"get {PROMPTS} and {LENGTHS} from https://github.com/THUDM/LongBench (folder LongBench/config), and give their "
    "folder"
)
_EXTENDED = "_e"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Holds a row of a data set; `fields`: as published. bucket: its range of length, in words or characters."""

    data_set: str
    row_id: str
    bucket: str
    fields: Mapping[str, Any]
    answers: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Holds by data set the prompt with {context} and {input}, and the most tokens of an answer."""

    texts: Mapping[str, str]
    answer_tokens: Mapping[str, int]


def bucket_of(length: int) -> str:
    """Return the published range of a length."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


def read_prompts(files: Sequence[SourceFile], sets: Sequence[str], place: str) -> Prompts:
    """Return the prompts. Raises GateauError, with `place` in front, where a file or a set in it is missing."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in ((PROMPTS, str), (LENGTHS, int)):
        file = next((each for each in files if each.name == name), None)
        if file is None:
            raise GateauError(f"{place}: {name} is not there; {PROMPTS_CURE}")
        found[name] = json_of(file, place)
        missing = [each for each in sets if each not in found[name]]
        if missing:
            raise GateauError(f"{place}: {file.label} says nothing of {', '.join(missing)}; {PROMPTS_CURE}")
        other = [each for each in sets if not isinstance(found[name][each], kind)]
        if other:
            what = "text" if kind is str else "whole number"
            raise GateauError(f"{place}: {file.label} has no {what} for {', '.join(other)}; {PROMPTS_CURE}")
    for name in sets:
        try:
            template_gaps(found[PROMPTS][name])
        except ValueError as error:
            raise GateauError(f"{place}: {PROMPTS}: {name}: {error}; {PROMPTS_CURE}") from error
    return Prompts(texts=found[PROMPTS], answer_tokens=found[LENGTHS])


def read_rows(
    files: Sequence[SourceFile], sets: Sequence[str], place: str, *, extended: bool, most: int | None
) -> Iterator[Row]:
    """Yield the first `most` rows of each of `sets`, in their order; `extended`: of LongBench-E.

    A file belongs to the set that it is named after, with _e behind it for LongBench-E; of a file of another name each
    record says it itself. Raises GateauError for a set without rows, a row without what is asked, or an id twice.
    """
    known = {f"{name}{_EXTENDED if extended else ''}": name for name in SETS}
    other = {f"{name}{'' if extended else _EXTENDED}" for name in SETS}
    wanted = [file for file in files if file.stem not in other and known.get(file.stem, sets[0]) in sets]
    rows: dict[str, list[Row]] = {name: [] for name in sets}
    ids: set[tuple[str, str]] = set()
    for file, number, record in rows_of(wanted, place):
        name = known.get(file.stem) or record.get("dataset")
        if name not in rows or (most is not None and len(rows[name]) == most):
            continue
        row = _row(name, record, f"{place}: {location(file, number)}", number)
        if (name, row.row_id) in ids:
            raise GateauError(f"{place}: {location(file, number)}: the id {row.row_id!r} of {name} came before")
        ids.add((name, row.row_id))
        rows[name].append(row)
    missing = [name for name, found in rows.items() if not found]
    if missing:
        raise GateauError(f"{place}: no rows of {', '.join(missing)}: leave them out of sets, or {DATA_CURE}")
    for found in rows.values():
        yield from found


def _row(name: str, record: dict[str, Any], where: str, number: int) -> Row:
    answers, length = record.get("answers"), record.get("length")
    missing = [key for key in ("context", "input") if not isinstance(record.get(key), str)]
    if not isinstance(length, int):
        missing.append("length")
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
        missing.append("answers")
    if missing:
        raise GateauError(f"{where} is no row of {name}: it lacks {', '.join(missing)}; {DATA_CURE}")
    assert isinstance(length, int) and isinstance(answers, list)
    return Row(
        data_set=name,
        row_id=str(record.get("_id") or number),
        bucket=bucket_of(length),
        fields=record,
        answers=tuple(answers),
        classes=tuple(record.get("all_classes") or ()),
    )
