"""The benchmark scripts as modules: they import their siblings, as a script does."""

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.project import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Loads a script of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module
