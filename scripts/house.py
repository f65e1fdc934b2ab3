"""Print the measures of the house: who imports whom, and what the product consists of.

    python scripts/house.py [--edges]

Everything is read from the files, and nothing is run. A closure is what a module imports, directly or not; imports
inside functions and for type checkers count, `__init__` files of packages do not. The kernel is all but
gateau_dagster/features. --edges lists its imports of features.
"""

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

Graph = Mapping[str, set[str]]
COMPUTED = "(computed)"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def modules(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """Return the file of each module of some packages below `root`, also behind links; a package is `__init__.py`."""
    found = {}
    folders = [Path(folder) for each in packages for folder, _, _ in os.walk(root / each, followlinks=True)]
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(file: Path, *, everywhere: bool = True) -> tuple[str, ...]:
    """Return dotted names of what a file imports: `a.b.c` for `from a.b import c`, be it a module or something in one.

    With `everywhere` those inside functions, of importlib and for type checkers only count, too; COMPUTED stands for
    a name that is made at run time. Relative imports are left out: see `relative_imports`.
    """
    whole, top_level, _ = _read(file, file.stat().st_mtime_ns)
    return whole if everywhere else top_level


@cache
def _read(file: Path, _: int) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the imports of one state of a file: everywhere, and at its top level; whether some are relative."""
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
    """Return `f` of a call of `f` or of `module.f`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def relative_imports(file: Path) -> bool:
    """Return whether a file says `from . import ...`."""
    return _read(file, file.stat().st_mtime_ns)[2]


def import_graph(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the modules among `files` that each of them imports."""
    graph = {}
    for module, file in files.items():
        whole = {name if name in files else name.rpartition(".")[0] for name in imported(file)}
        graph[module] = (whole & files.keys()) - {module}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return sets of modules that reach one another, each sorted."""
    reached = {module: _reached(graph, module) for module in graph}
    on_one = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    return sorted(sorted(circle) for circle in on_one)


def _reached(graph: Graph, start: str) -> set[str]:
    """Return the modules that `start` imports, directly or not."""
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def layer_of(module: str, core: str) -> str:
    """Return the layer of a module: a package of `core` or a module right in it."""
    first, *rest = module.split(".")
    return rest[0] if first == core and rest else first


def upward_arrows(graph: Graph, layers: Sequence[str], core: str) -> list[str]:
    """Return the imports of a layer that stands above; `layers` from the ground up."""
    height = {layer: number for number, layer in enumerate(layers)}
    return sorted(
        f"{module} -> {other}"
        for module, found in graph.items()
        for other in found
        if height[layer_of(other, core)] > height[layer_of(module, core)]
    )


ROOT = Path(__file__).parents[1]
PRODUCT = ("gateau_dagster",)
HEARTS = ("gateau_dagster.assets.sample_tables", "gateau_dagster.pipeline.state")
"""The modules of which the closures are watched: what makes the tables by sample, and what plans."""


def closure(graph: Graph, start: str) -> set[str]:
    """Return a module and all that it imports, directly or not."""
    return {start, *_reached(graph, start)}


def feature_of(module: str) -> str:
    """Return the folder in `features/` that a module of the product is in; empty for the kernel."""
    core, name, *_ = *module.removeprefix("gateau_dagster.").split("."), ""
    return name if core == "features" else ""


def edges(graph: Graph) -> list[str]:
    """Return the imports of features by the kernel, one line each."""
    of_kernel = [module for module in graph if not feature_of(module)]
    return sorted(f"{module} -> {other}" for module in of_kernel for other in graph[module] if feature_of(other))


def parts_of(source: str) -> dict[str, int]:
    """Return how many lines of a source are code, comments and docstrings, and how many functions it has."""
    tree, spans = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        holds = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        body: list[ast.stmt] = getattr(node, "body", []) if holds else []
        for each in body:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                spans |= {*range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    lines = source.splitlines()
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    plain = {number for number, line in enumerate(lines, start=1) if line.strip()} - spans - comments - imports
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
    found = {"lines": len(lines), "code": len(plain), "comments": len(comments), "docstrings": len(spans)}
    return found | {"functions": functions}


def measures() -> dict[str, str]:
    """Return each measure of the house, as text."""
    files = modules(ROOT, PRODUCT)
    graph = import_graph(files)
    parts = {module: parts_of(file.read_text(encoding="utf-8")) for module, file in files.items()}
    total = {name: sum(each[name] for each in parts.values()) for name in next(iter(parts.values()))}
    kernel = sum(each["lines"] for module, each in parts.items() if not feature_of(module))
    found = {}
    for heart in HEARTS:
        reached = closure(graph, heart)
        lines = sum(parts[module]["lines"] for module in reached)
        found[f"closure of {heart.removeprefix('gateau_dagster.')}"] = f"{len(reached)} modules, {lines:,} lines"
    tests = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "tests").rglob("*.py"))
    keys = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference/configuration").glob("*.md"))
    users = [module for module in graph if not feature_of(module) and _uses(graph[module], "features.evaluation")]
    named = {module.rpartition(".")[0] for module, file in files.items() if "synthesis" in file.read_text("utf-8")}
    return found | {
        "imports of features by the kernel": str(len(edges(graph))),
        "packages that name synthesis": str(len(named)),
        "kernel's modules that import evaluation": str(len(users)),
        "lines of the kernel": f"{kernel:,}",
        "lines of the product": f"{total['lines']:,} in {len(files)} files",
        "functions": f"{total['functions']:,}, of {total['code'] / total['functions']:.1f} lines of code",
        "comments": f"{total['comments'] / total['lines']:.1%} of the lines",
        "configuration keys": str(len(re.findall(r"^#+ `.*`\n\n\*", keys, re.MULTILINE))),
        "lines of the tests": f"{tests:,}, {tests / total['lines']:.2f} of the product's",
    }


def _uses(imports: Iterable[str], package: str) -> bool:
    return any(f"{other}.".startswith(f"gateau_dagster.{package}.") for other in imports)


def main(given: Sequence[str]) -> int:
    """Print the measures, or the kernel's imports of features."""
    shown = (f"{name:45} {value}" for name, value in measures().items())
    lines = edges(import_graph(modules(ROOT, PRODUCT))) if "--edges" in given else shown
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
