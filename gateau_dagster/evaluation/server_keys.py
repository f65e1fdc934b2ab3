"""What a server is asked with: the key, which stands in the environment alone, and the package openai."""

from __future__ import annotations

import os
from importlib.util import find_spec

from gateau_dagster.errors import GateauError, secret_variable_named


def server_key(place: str, variable: str | None, address: str) -> str:
    """The key of a server at `place` in the file; the word none for one that wants none.

    Raises GateauError where its environment variable is not set.
    """
    if variable is None:
        return "none"
    secret_variable_named(variable)
    key = os.environ.get(variable, "").strip()
    if not key:
        raise GateauError(
            f"{place}.key: the environment variable {variable} is not set. Set it to the key of {address}, or give "
            "key: null for a server that wants none."
        )
    return key


def check_server(place: str, variable: str | None, address: str) -> None:
    """Whether a server can be asked, before it is. Raises GateauError where key or package are missing."""
    server_key(place, variable, address)
    if find_spec("openai") is None:
        raise no_client(place)


def no_client(place: str) -> GateauError:
    """What to say where the package openai is not there."""
    return GateauError(f"{place}: needs the package openai. Install it with pip install 'gateau-dagster[judge]'.")
