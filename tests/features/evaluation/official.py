"""Files of the benchmarks' authors, which are not part of this project: tests that need them are skipped without.

GATEAU_EVALUATION_DATA: a folder with mt_bench_questions.jsonl and the like. GATEAU_OFFICIAL_CODE: a folder with
checked-out repositories by their names, such as FastChat and LongAlign. GATEAU_PREDICTIONS: a folder with a folder for
each run of LongBench's pred.py, in which its <set>.jsonl lie.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def data(name: str) -> Path:
    """A file of GATEAU_EVALUATION_DATA, or the test is skipped."""
    return _found("GATEAU_EVALUATION_DATA", name)


def code(name: str) -> Path:
    """A file of GATEAU_OFFICIAL_CODE, or the test is skipped."""
    return _found("GATEAU_OFFICIAL_CODE", name)


def predictions() -> Path:
    """The folder GATEAU_PREDICTIONS, or the test is skipped."""
    return _found("GATEAU_PREDICTIONS", ".")


def _found(variable: str, name: str) -> Path:
    folder = os.environ.get(variable)
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"{variable} names no folder with {name}")
    return Path(folder) / name


def loaded(file: Path, patch: pytest.MonkeyPatch, *, name: str = "", **stubs: Any) -> ModuleType:
    """The official file as a module; `stubs` stand for what it imports and does not need, dots written as `__`."""
    for stubbed, attributes in stubs.items():
        stub = ModuleType(stubbed.replace("__", "."))
        vars(stub).update(attributes)
        patch.setitem(sys.modules, stub.__name__, stub)
    spec = importlib.util.spec_from_file_location(name or f"official_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module
