"""Configure Dagster's home on PostgreSQL, by `execution.postgres` or by the user's own dagster.yaml."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.config import pg_config
from dagster._serdes import ConfigurableClassData

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError

_OURS = ("resources.postgres", "PostgresStorage")
_OF_DAGSTER = ("dagster_postgres", "DagsterPostgresStorage")
_STORAGES = {"storage", "run_storage", "event_log_storage", "schedule_storage"}
_URL = ("postgres_url", "env")
_STORAGE_YAML = f"""\
storage:                    # by execution.postgres; the URL itself is in the environment only
  custom:
    module: {_OURS[0]}
    class: {_OURS[1]}
    config:
      postgres_url:
        env: """


def with_postgres(content: bytes, variable: str, file: Path) -> bytes:
    """Return a dagster.yaml with the database whose URL is in an environment variable; unchanged if it has it.

    Raises:
        GateauError: it names another storage.
    """
    try:
        found: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return content  # Dagster says what is wrong with it
    if found is None:
        found = {}
    if not isinstance(found, dict):
        return content
    if _STORAGES.isdisjoint(found):
        return content.rstrip(b"\n") + f"\n{_STORAGE_YAML}{variable}\n".encode()
    storage = found.get("storage")
    if variable not in (_at(storage, "postgres", *_URL), _at(storage, "custom", "config", *_URL)):
        raise GateauError(
            f"execution.postgres: {file} has a storage that is not the database of {variable}. Remove that storage, or "
            "execution.postgres."
        )
    return content


def _at(value: Any, *keys: str) -> Any:
    """Return the value at the end of a path of keys, or None if the path breaks off."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def mended(reference: InstanceRef) -> InstanceRef:
    """Add the driver that dagster-postgres's storage needs to an instance; return any other unchanged."""
    data = reference.storage_data
    if data is None or (data.module_name, data.class_name) != _OF_DAGSTER:
        return reference
    return reference._replace(storage_data=ConfigurableClassData(*_OURS, data.config_yaml))


def place_of_postgres(reference: InstanceRef, config: Config, home: Path) -> str | None:
    """Return the setting that puts a `mended` instance on PostgreSQL, or None if it is not there."""
    data = reference.storage_data
    if data is None or (data.module_name, data.class_name) != _OURS:
        return None
    return "execution.postgres" if config.execution.postgres else f"{home / 'dagster.yaml'}: storage"


def check_postgres(reference: InstanceRef, config: Config, home: Path) -> None:
    """Check that a `mended` instance has its packages and server; any other instance passes.

    Raises:
        GateauError: something is missing, or the server rejects this process.
    """
    data, place = reference.storage_data, place_of_postgres(reference, config, home)
    if data is None or place is None:
        return
    variable = config.execution.postgres
    for name in _variables(data.config_dict):
        if name not in os.environ:
            what = "It holds the database's URL, which begins with postgresql://." if name == variable else "Set it."
            raise GateauError(f"{place}: the environment variable {name} is not set. {what}")
    found = process_config(resolve_to_config_type(pg_config()), data.config_dict)
    if found.value is None or found.value.get("auth_provider"):
        return  # invalid, which Dagster reports on reading; or the password changes with each connection
    try:
        from resources.postgres import check_server

        check_server(found.value, place=place, source=variable or str(home / "dagster.yaml"))
    except ImportError as error:
        raise GateauError(
            f"{place}: the packages for PostgreSQL are not installed ({error}): pip install 'gateau-dagster[postgres]'"
        ) from error


def _variables(value: Any) -> Iterator[str]:
    """Yield the environment variables that a part of dagster.yaml names."""
    if isinstance(value, dict):
        if isinstance(name := value.get("env"), str) and len(value) == 1:
            yield name
        for inner in value.values():
            yield from _variables(inner)
