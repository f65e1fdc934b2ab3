"""Turn records of Python programs into those of JSON Lines.

Values of NumPy, pandas, torch, Arrow and the standard library become what a reader of Parquet would make of them. The
libraries are recognised by their types' names and methods, so none of them is imported.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from gateau_dagster.errors import GateauError

_DEEPEST, _LONGEST_NAME = 100, 60
_FRAMES = {
    "pandas": 'samples.to_dict("records")',
    "polars": "samples.iter_rows(named=True), of a lazy frame after collect()",
    "pyarrow": "samples.to_pylist()",
}
_MISSING = {"NAType", "NaTType"}  # of pandas
_EACH = ("as_py", "tolist", "to_list")  # of a scalar or array of Arrow; of NumPy, pandas and torch; of Polars


def python_records(samples: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield each record as a dict that JSON can hold. A missing value (None, NaN, NaT, NA) is None.

    Raises:
        GateauError: `samples` is one record, a frame or a text, or is empty. A record is no mapping, or has a value
            that cannot be read; the message names both.
    """
    _check_several(samples)
    number = 0
    for number, sample in enumerate(samples, start=1):
        yield _record(sample, number)
    if not number:
        raise GateauError(
            "api.records", "samples has no record. Give at least one; a generator that was read before has none left."
        )


def record_name(number: int, sample_id: Any = None) -> str:
    """Return how a message names a record: by its number from 1, and its id if it has one."""
    return f"record {number:,} of samples" + (f" (id {sample_id})" if sample_id not in (None, "") else "")


def _check_several(samples: Any) -> None:
    library, kind = type(samples).__module__.partition(".")[0], type(samples).__name__
    if isinstance(samples, str | bytes | PurePath):
        what, cure = "a text", "Give a list of records. For files, write a configuration and use gateau_dagster.open."
    elif isinstance(samples, Mapping):
        what = "a mapping, which is one record, or the columns or splits of several"
        cure = "Give a list of records, one mapping for each sample, or one split."
    elif library in _FRAMES:
        what, cure = f"a {kind} of {library}", f"Give {_FRAMES[library]}."
    elif not isinstance(samples, Iterable):
        what, cure = f"a value of type {kind}", "Give a list of records, one mapping for each sample."
    else:
        return
    raise GateauError("api.records", f"samples is {what}. Expected several records. {cure}")


def _record(sample: Any, number: int) -> dict[str, Any]:
    if hasattr(sample, "_asdict"):  # a named tuple, as of itertuples
        sample = sample._asdict()
    if not isinstance(sample, Mapping) and not hasattr(sample, "keys"):
        raise GateauError(
            "api.records",
            f"{record_name(number)} is a value of type {type(sample).__name__}. Expected a mapping with the fields of "
            "a sample, such as context, instruction and response.",
        )
    record = dict(sample)
    name = next((record[key] for key in ("id", "sample_id", "prompt_id") if record.get(key) is not None), None)
    shown = record_name(number, str(name)[:_LONGEST_NAME] if name is not None else None)
    return {_key(key, shown): plain_value(value, f"{shown}, field {key}") for key, value in record.items()}


def _key(key: Any, place: str) -> str:
    if isinstance(key, str):
        return str(key)
    raise GateauError(
        "api.records", f"{place}: {key!r}, the name of a field, is of type {type(key).__name__}. Expected a text."
    )


def plain_value(value: Any, place: str, depth: int = 0) -> Any:  # noqa: PLR0911, PLR0912  one type after the other
    """Return a value as JSON holds it; `place` names it in messages.

    Raises:
        GateauError: the value, or a part of it, cannot be read.
    """
    if depth > _DEEPEST:
        raise GateauError("api.records", f"{place}: lists and mappings are nested more than {_DEEPEST} deep.")
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Enum):
        return plain_value(value.value, place, depth + 1)
    if isinstance(value, str | UUID | PurePath):
        return str(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal):
        if math.isnan(value):
            return None
        return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise GateauError(
                "api.records", f"{place}: the bytes are no UTF-8 text. Decode them, or leave the field out."
            ) from error
    if isinstance(value, Mapping):
        return {_key(key, place): plain_value(each, f"{place}.{key}", depth + 1) for key, each in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain_value(each, place, depth + 1) for each in value]
    return _of_library(value, place, depth)


def _of_library(value: Any, place: str, depth: int) -> Any:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in ("M", "m"):  # NumPy's dates; as Python's values, those in nanoseconds are bare integers
        if getattr(value, "ndim", 0):
            return [plain_value(each, place, depth + 1) for each in value]
        return None if str(value) == "NaT" else str(value)
    read = next((getattr(value, name) for name in _EACH if hasattr(value, name)), None)
    if read is None or isinstance(value, type):
        raise GateauError(
            "api.records",
            f"{place}: a value of type {type(value).__module__}.{type(value).__name__} cannot be read. Expected text, "
            "a number, a date, a list or a mapping. Convert it, or leave the field out.",
        )
    return plain_value(read(), place, depth + 1)
