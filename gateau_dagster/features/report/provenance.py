"""Collect the origin of the figures: configuration, fingerprints, models and packages."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import yaml

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.registry import with_benchmarks

PACKAGES = (
    "gateau-dagster", "torch", "transformers", "tokenizers", "safetensors", "accelerate", "deepspeed", "dagster",
    "polars", "pyarrow", "numpy", "scipy", "pydantic", "matplotlib",
)  # fmt: skip
_CREDENTIALS = re.compile(r"(://)[^/@\s'\"]*@")


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes a list of plain values on one line: a benchmark's word lists would fill screens."""

    def represent_list(self, data: list[Any]) -> yaml.Node:
        plain = not any(isinstance(value, dict | list) for value in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _Dumper.represent_list)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The record of a run as text, ready to show."""

    generated_at: str
    command: str | None
    python: str
    system: str
    packages: list[tuple[str, str]]
    fingerprints: list[tuple[str, str]]
    configuration: str


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a result, without importing them."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def configuration_text(config: Config) -> str:
    """Return the configuration with all defaults filled in, as YAML that gives the same configuration when loaded.

    No key of it holds a secret. A `user:password@` in an address is removed.
    """
    filled = with_benchmarks(config).model_dump(mode="json")
    text = yaml.dump(filled, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return _CREDENTIALS.sub(r"\1", text)


def provenance(
    config: Config, *, fingerprints: Mapping[str, str], generated_at: datetime, command: str | None = None
) -> Provenance:
    """Return the record of a run. `generated_at` should have a time zone; `fingerprints` is by asset key."""
    return Provenance(
        generated_at=generated_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
        command=None if command is None else _CREDENTIALS.sub(r"\1", command),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        packages=list(package_versions().items()),
        fingerprints=sorted(fingerprints.items()),
        configuration=configuration_text(config),
    )
