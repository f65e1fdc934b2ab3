"""What may import what, how large a file may grow, how fast the code location loads (design, section 2)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import ROOT, command_environment

PACKAGES = ("gateau_dagster", "assets", "resources")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
COMPOSITION_ROOT = ROOT / "gateau_dagster" / "definitions.py"
HEAVY = {"torch", "transformers", "deepspeed", "ray"}
MOST_LINES, MOST_FUNCTION_LINES = 320, 60


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Top-level names of the imported modules; with `everywhere` also inside functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module).split(".")[0]
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if everywhere or not (inner or for_types):
            waiting.extend(ast.iter_child_nodes(node))


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_the_walk_sees_what_it_should() -> None:
    tree = ast.parse(
        "import a.b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    import dagster.x\nclass C:\n    from z import y\n"
    )
    assert set(imported(tree, everywhere=True)) == {"a", "typing", "torch", "dagster", "z"}
    assert set(imported(tree, everywhere=False)) == {"a", "typing", "z"}
    assert len(FILES) > 100 and COMPOSITION_ROOT in FILES


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_point_one_way(file: Path) -> None:
    found = set(imported(parsed(file), everywhere=True))
    package = file.relative_to(ROOT).parts[0]
    if package == "gateau_dagster" and file != COMPOSITION_ROOT:
        dagster = {name for name in found if name.startswith("dagster")}
        # The training process reports to whoever started it through Dagster Pipes, a package without Dagster itself.
        assert not dagster - {"dagster_pipes"}
        assert not found & {"assets", "resources"}
    if package == "resources":
        assert "assets" not in found
    assert "tests" not in found


@pytest.mark.parametrize(
    "file", [file for file in FILES if name_of(file).startswith(("assets", "resources"))], ids=name_of
)
def test_heavy_libraries_are_imported_where_they_are_used(file: Path) -> None:
    assert not set(imported(parsed(file), everywhere=False)) & HEAVY


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_and_functions_stay_readable(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < MOST_LINES
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines < MOST_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_the_code_location_loads_without_the_heavy_libraries(tmp_path: Path) -> None:
    code = "import sys, gateau_dagster.definitions\nprint(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=command_environment(GATEAU_DEMO_FOLDER=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "dagster" in loaded
    assert not loaded & {*HEAVY, "matplotlib", "datasets", "accelerate"}
