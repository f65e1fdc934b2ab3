"""Who imports whom, read from the files without running them; for the tests of the layers and of what is declared."""

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

Graph = Mapping[str, set[str]]
COMPUTED = "(computed)"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def modules(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """The file of each module of some packages below `root`, links to packages included; a package is `__init__.py`."""
    found = {}
    folders = [Path(folder) for each in packages for folder, _, _ in os.walk(root / each, followlinks=True)]
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(file: Path, *, everywhere: bool = True) -> tuple[str, ...]:
    """Dotted names of what a file imports: `a.b.c` for `from a.b import c`, be it a module or something in one.

    With `everywhere` those inside functions, of importlib and for type checkers only count, too; COMPUTED stands for
    a name that is made at run time. Relative imports are left out: see `relative_imports`.
    """
    whole, top_level, _ = _read(file, file.stat().st_mtime_ns)
    return whole if everywhere else top_level


@cache
def _read(file: Path, _: int) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """The imports of one state of a file: everywhere, and at its top level; whether some are relative."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    return tuple(_names(tree, everywhere=True)), tuple(_names(tree, everywhere=False)), relative


def _names(tree: ast.Module, *, everywhere: bool) -> Iterator[str]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif everywhere and isinstance(node, ast.Call) and _name(node.func) in {"import_module", "__import__"}:
            name = node.args[0] if node.args else None
            yield str(name.value) if isinstance(name, ast.Constant) else COMPUTED
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if everywhere or not (isinstance(node, _FUNCTIONS) or for_types):
            waiting.extend(ast.iter_child_nodes(node))


def _name(function: ast.expr) -> str:
    """`f` of a call of `f` or of `module.f`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def relative_imports(file: Path) -> bool:
    """Whether a file says `from . import ...`."""
    return _read(file, file.stat().st_mtime_ns)[2]


def import_graph(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules among `files` that each of them imports."""
    graph = {}
    for module, file in files.items():
        whole = {name if name in files else name.rpartition(".")[0] for name in imported(file)}
        graph[module] = (whole & files.keys()) - {module}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Sets of modules that reach one another, each sorted."""
    reached = {module: _reached(graph, module) for module in graph}
    on_one = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    return sorted(sorted(circle) for circle in on_one)


def _reached(graph: Graph, start: str) -> set[str]:
    """The modules that `start` imports, directly or not."""
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def layer_of(module: str, core: str) -> str:
    """The layer of a module: a package of `core` or a module right in it."""
    first, *rest = module.split(".")
    return rest[0] if first == core and rest else first


def upward_arrows(graph: Graph, layers: Sequence[str], core: str) -> list[str]:
    """Imports of a layer that stands above; `layers` from the ground up."""
    height = {layer: number for number, layer in enumerate(layers)}
    return sorted(
        f"{module} -> {other}"
        for module, found in graph.items()
        for other in found
        if height[layer_of(other, core)] > height[layer_of(module, core)]
    )
