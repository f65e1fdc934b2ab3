"""GATEAU: choose the long instruction samples that need their long context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateau_dagster.api import OutOfDateWarning, Project, open, score
    from gateau_dagster.component import GateauPipeline

    __version__: str

__all__ = ["GateauPipeline", "OutOfDateWarning", "Project", "__version__", "open", "score"]


def __dir__() -> list[str]:
    """List the Python API and the component, which are not loaded yet."""
    return __all__


def __getattr__(name: str) -> Any:
    """Load what is used of these: the commands and the workers do without them."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gateau-dagster")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "GateauPipeline":
        from gateau_dagster.component import GateauPipeline

        return GateauPipeline
    from gateau_dagster import api

    return getattr(api, name)
