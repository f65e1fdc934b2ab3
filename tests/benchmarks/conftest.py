"""The benchmark scripts as modules: they import their siblings, as a script does."""

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.project import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a script of benchmarks/ or scripts/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module
