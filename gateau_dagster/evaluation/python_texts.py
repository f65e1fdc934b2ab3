"""Read texts that a benchmark publishes inside Python files; the files are parsed, not run."""

from __future__ import annotations

import ast
from typing import Any

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.question_files import text_of


def assigned(file: SourceFile, name: str, place: str, *, inside: str | None = None) -> list[Any]:
    """Return the literal values assigned to `name`, in order: anywhere in the file, or `inside` a function.

    Raises GateauError for a file that is not Python, or has none.
    """
    found = []
    tree = _tree(file, place) if inside is None else _function(file, inside, place)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            try:
                found.append((node.lineno, ast.literal_eval(node.value)))
            except ValueError:  # not a literal
                continue
    if not found:
        raise GateauError(f"{place}: {file.label} assigns nothing to {name}: it is not the published file")
    return [value for _, value in sorted(found, key=lambda each: each[0])]


def texts_in(file: SourceFile, function: str, place: str) -> list[str]:
    """Return the string literals of a function or method, in order. Raises GateauError where it is missing."""
    node = _function(file, function, place)
    inside = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [str(each.value) for each in sorted(inside, key=lambda each: (each.lineno, each.col_offset))]


def _function(file: SourceFile, name: str, place: str) -> ast.AST:
    for node in ast.walk(_tree(file, place)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise GateauError(f"{place}: {file.label} has no function {name}: it is not the published file")


def _tree(file: SourceFile, place: str) -> ast.Module:
    text = text_of(file, place)
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deep"
        raise GateauError(f"{place}: {file.label} is no Python file ({reason}). Get it again") from error
