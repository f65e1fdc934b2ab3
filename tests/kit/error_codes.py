"""The error codes in the source, and a check that a code is raised."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError

CODE = re.compile(r"[a-z][a-z_0-9]*\.[a-z][a-z_0-9]*")
KINDS = {
    *("GateauError", "TransientError", "LeaseLostError", "DamagedTableError"),
    *("UnusableServerError", "BudgetError", "_UnseenError"),
}


@contextmanager
def refused(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[GateauError]]:
    """Fail unless the block raises a GateauError of this code; `match`: of its facts, such as a name or a line."""
    with pytest.raises(GateauError, match=match) as found:
        yield found
    assert found.value.code == code, f"[{found.value.code}] {found.value}"


def raised_in(file: Path) -> Iterator[tuple[int, str | None]]:
    """Yield the line and the code of every error that a file makes; None for one without a code of its own."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            first = node.args[0]
            if len(node.args) < 2:
                yield node.lineno, None
            elif isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def texts_in(file: Path) -> set[str]:
    """Return all texts of a file that have the form of a code."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and CODE.fullmatch(text)}
