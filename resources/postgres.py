"""Check the PostgreSQL server that holds Dagster's records before Dagster uses it."""

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import pg_url_from_config
from sqlalchemy.exc import ArgumentError, DBAPIError

from gateau_dagster.errors import GateauError

# Text of libpq before and after the reason.
_AROUND = re.compile(r"connection to server at .*? failed: | Is the server running .*?\?|(FATAL|ERROR): +")
_CONNECT_SECONDS = 10
_CURES = {
    "password authentication failed": "user or password is wrong. Correct the URL in {source}.",
    "no password supplied": "it requires a password. Add it to the URL in {source}.",
    "does not exist": "there is no such database or user ({reason}). Create it, or correct the URL in {source}.",
    "no pg_hba.conf entry": "it refuses this machine ({reason}). Allow it in the server's pg_hba.conf.",
    "too many clients": "it has too many connections ({reason}). Raise its max_connections, or end some.",
    "too many connections": "it has too many connections ({reason}). Raise the limit, or end some.",
    "invalid dsn": "its URL is wrong ({reason}). Correct the URL in {source}.",
    "starting up": "it is starting. Run again in a moment.",
}
_UNREACHABLE = "it cannot be reached ({reason}). Start it, or correct the URL in {source}."


class PostgresStorage(DagsterPostgresStorage):
    """dagster-postgres's storage, by the name that earlier versions wrote into dagster.yaml."""


def check_server(config_value: Mapping[str, Any], *, place: str, source: str) -> None:
    """Check that the server accepts this process; dagster-postgres would retry for long, and log each try.

    Args:
        config_value: of a storage.
        place: where the storage is configured, for the message.
        source: variable or file with its URL, for the message.

    Raises:
        GateauError: the server refuses it, or the URL is invalid. The message contains neither URL nor password.
    """
    try:
        target = sqlalchemy.make_url(pg_url_from_config(config_value))
    except (ArgumentError, ValueError):
        raise GateauError(
            "execution.postgres",
            f"{place}: {source} is not the URL of a database. Give postgresql:// with user, password, host and name.",
        ) from None
    if target.get_backend_name() != "postgresql":
        raise GateauError(
            "execution.postgres",
            f"{place}: the URL in {source} begins with {target.drivername}://. Give a URL that begins with "
            "postgresql://.",
        )
    timeout = {} if "connect_timeout" in target.query else {"connect_timeout": _CONNECT_SECONDS}
    try:
        engine = sqlalchemy.create_engine(target, poolclass=sqlalchemy.NullPool, connect_args=timeout)
        engine.connect().close()
    except DBAPIError as error:
        reason = _AROUND.sub("", " ".join(str(error.orig).split()))
        cure = next((cure for words, cure in _CURES.items() if words in reason), _UNREACHABLE)
        server = f"{target.host or 'this machine'}, database {target.database}, user {target.username}"
        raise GateauError(
            "execution.postgres", f"{place}: PostgreSQL on {server}: {cure.format(reason=reason, source=source)}"
        ) from None
