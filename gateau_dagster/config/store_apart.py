"""Check that the store is apart from the inputs: the pipeline's own tables would be its next input."""

import fnmatch
import glob
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gateau_dagster.config.schema import Config
from gateau_dagster.errors import GateauError

_WRITTEN = ("0.parquet", "comparison.json")  # examples of names of tables and documents
_ANY_DEPTH = "**"


def check_store_apart(config: Config) -> None:
    """Check that no folder of input and no model's folder contains the store.

    Raises:
        GateauError: one does.
    """
    for name, path in _addresses(config):
        if _takes_in(path, config):
            raise GateauError(
                "storage.root_in_input",
                f"storage.root: {config.storage.root} is inside {path!r} ({name}), whose files are all read as input. "
                "Move one of the two to another folder",
            )


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    yield from config.addresses()
    for name in config.homologous_models:
        options = config.models[name].homologous
        assert options is not None
        for paths in (options.texts, options.short_texts):
            found = [paths] if isinstance(paths, str) else paths or []
            yield from ((f"models.{name}.homologous", path) for path in found)


def _takes_in(path: str, config: Config) -> bool:
    root = config.located_root
    if "://" in path or "://" in root:
        return f"{root.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")
    place = config.folder / Path(config.located(path)).expanduser()
    if not place.exists() and _ANY_DEPTH in place.parts:
        if not any(fnmatch.fnmatch(name, place.name) for name in _WRITTEN):
            return False
        place = Path(*place.parts[: next(number for number, part in enumerate(place.parts) if glob.has_magic(part))])
    below = _below(Path(root), place) if place.is_dir() else None
    return below is not None and not any(part.startswith(".") for part in below.parts)  # hidden folders are not read


def _below(root: Path, folder: Path) -> PurePosixPath | None:
    """Return the root relative to the folder, or None if it is outside."""
    root, folder = root.resolve(), folder.resolve()
    return PurePosixPath(root.relative_to(folder)) if root.is_relative_to(folder) else None
