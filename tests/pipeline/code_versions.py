"""The constants that hold code versions, and raising one as an edit of its line would: wherever it is imported."""

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

from tests.kit.project import ROOT

PACKAGE = ROOT / "gateau_dagster"
RAISED = "of other code"


def constants() -> set[str]:
    """Every `..._CODE_VERSION` of the package, as `<module>.<name>`."""
    found = set()
    for module, tree in _modules().items():
        for statement in tree.body:
            inner = ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ()
            names = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            found |= {f"{module}.{name}" for name in names if name.endswith("CODE_VERSION")}
    return found


def raise_version(monkeypatch: pytest.MonkeyPatch, constant: str) -> None:
    """Gives a constant another value, under every name by which a module of the package knows it."""
    module, _, name = constant.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, RAISED)
    for importing, tree in _modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                for known in (alias.asname or alias.name for alias in node.names if alias.name == name):
                    monkeypatch.setattr(importlib.import_module(importing), known, RAISED)


@cache
def _modules() -> dict[str, ast.Module]:
    return {_name(file): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
