"""Check that a file that a command writes is no file of the input, of the store or of the configuration."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.config.base import made_inputs, made_prefixes
from gateau_dagster.data.sources import local_places
from gateau_dagster.errors import GateauError, demo_place
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.feature import completed, features
from gateau_dagster.storage.local import check_apart
from gateau_dagster.storage.remote import is_remote


def check_output(config: Config, file: Path, name: str) -> None:
    """Check that a file to write is apart from what the configuration names, from the store and from the work folder.

    Args:
        config: of the project.
        file: to be written.
        name: of the configuration; see `configuration_name`.

    Raises:
        GateauError: the file is one of them, or is in one of these folders.
    """
    own = [("the configuration", Path(name))] if name and not demo_place(name) else []
    check_apart(file, [*own, *named_files(config, file), *_kept(config, file)])


def check_inputs_apart(config: Config) -> None:
    """Check that no run writes a table or a page over a file of its input.

    Raises:
        GateauError: a file of the input has the name of such a table in the store.
    """
    root, written = config.located_root, _written(config)
    for key, paths in _inputs(config):
        for path in [paths] if isinstance(paths, str) else paths:
            located = config.located(path)
            if is_remote(located) or is_remote(root):
                name = located.removeprefix(f"{root}/") if located.startswith(f"{root}/") else ""
            else:
                place, top = (config.folder / Path(located).expanduser()).resolve(), Path(root).resolve()
                name = str(place.relative_to(top)) if place.is_relative_to(top) else ""
            if name and path not in made_inputs() and _is_written(name, written):
                raise GateauError(
                    "storage.file_in_use",
                    f"{key}: {path} is in the store {config.storage.root}, where a run writes this file. Copy it to "
                    "another folder and name the copy, or give another storage.root",
                )


def _inputs(config: Config) -> Iterator[tuple[str, str | Sequence[str]]]:
    """Yield the key of every input and model, and its paths as the configuration names them."""
    yield from config.addresses()
    for feature in features():
        yield from ((given.place, given.paths) for given in feature.inputs(config))
    for name, other in config.other_models.items():
        yield f"variants.also.{name}.path", other.path
    for method in chosen_methods(config).values():
        yield method.place, method.paths()
    for feature in features():
        yield from feature.named_files(config)


def named_files(config: Config, file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the use and the path of each file: the inputs, and other files that a text of the configuration names.

    Args:
        config: of the project.
        file: to be written; see `local_places`.
    """
    for key, paths in _inputs(config):
        located = [config.located(path) for path in ([paths] if isinstance(paths, str) else paths)]
        yield from ((f"which {key} names", place) for place in local_places(located, config.folder, file))
    for key, text in _texts(completed(config).model_dump(mode="json"), ()):
        if not text.startswith(made_prefixes()) and len(text) < 4096 and "\0" not in text:
            place = config.folder / text
            yield from [(f"which {key} names", place)] if place.is_file() else []


def _texts(value: Any, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield ".".join(place), value
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _texts(inner, (*place, str(key)))


def _kept(config: Config, file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders in which the product keeps tables and records; of a store around the project, its tables."""
    yield "where the records of the runs are", config.work_folder
    if is_remote(config.located_root):
        return
    root, place = Path(config.located_root).resolve(), file.resolve()
    if not config.folder.resolve().is_relative_to(root):
        yield "the store (storage.root)", root
    elif place.is_relative_to(root) and _is_written(str(place.relative_to(root)), _written(config)):
        yield "a file of the store (storage.root)", file


def _written(config: Config) -> set[str]:
    return {
        name.removesuffix(".parquet")
        for asset in pipeline_of(config).assets
        for name in (asset.key, asset.file, *asset.further_files)
        if name
    }


def _is_written(name: str, written: set[str]) -> bool:
    parts = Path(name.removesuffix(".parquet")).parts
    return any("/".join(parts[:size]) in written for size in range(1, len(parts) + 1))
