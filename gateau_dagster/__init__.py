"""GATEAU: choose the long instruction samples that need their long context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateau_dagster.api import Project, open, score

    __version__: str

__all__ = ["Project", "__version__", "open", "score"]


def __dir__() -> list[str]:
    """List the Python API, which is not loaded yet."""
    return __all__


def __getattr__(name: str) -> Any:
    """Load what is used of the Python API: the commands and the workers do without it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gateau-dagster")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gateau_dagster import api

    return getattr(api, name)
