"""`gateau explain`: the cause and the cure behind an error's code."""

import textwrap
from functools import cache
from pathlib import Path

import click
import yaml

from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name


@cache
def error_codes() -> dict[str, dict[str, str]]:
    """Return `cause` and `cure` by code, in alphabetical order."""
    return yaml.safe_load(Path(__file__).with_name("error_codes.yaml").read_text(encoding="utf-8"))


def print_explanation(code: str | None) -> None:
    """Print cause and cure of one code, or the list of all.

    Raises:
        GateauError: there is no such code.
    """
    known = error_codes()
    if code is None:
        for name, entry in known.items():
            click.echo(f"{name:<{max(map(len, known))}}  {entry['cause'].partition('. ')[0].rstrip('.')}")
        return
    name = code.strip("[]")
    if name not in known:
        alike = [each for each in known if each.split(".")[0] == name.split(".")[0]] or known
        raise GateauError("explain.code", f"there is no error code {name!r}; {nearest_name(name, alike)}")
    for part in (name, f"Cause: {known[name]['cause']}", f"Cure:  {known[name]['cure']}"):
        click.echo(textwrap.fill(part, subsequent_indent=" " * 7))
