"""Find samples whose texts contain a secret, such as a key, before others read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from gateau_dagster.errors import KEY_SHAPE
from gateau_dagster.progress import Progress

if TYPE_CHECKING:
    from detect_secrets.plugins.base import RegexBasedDetector

SCANNER = "bc-detect-secrets"
"""The package of the extra `publish`; without it only keys of the common services are found."""
# An address with a user and a password is an example far more often than a secret.
_NOISY = "Basic Auth Credentials"
# Example keys in AWS's documentation end in EXAMPLE. Classes of HTML pages begin with sk-, too, but have no digit.
_HARMLESS = re.compile(r".*EXAMPLE(?:KEY)?|sk-\D*")
Detector: TypeAlias = Callable[[str], bool]


def scanner_version() -> str:
    """Return the version of the installed scanner; empty if it is not installed."""
    try:
        return version(SCANNER)
    except PackageNotFoundError:
        return ""


def secrets_in(samples: pl.DataFrame, progress: Progress) -> dict[str, list[str]]:
    """Return the kinds of secrets in the texts of each sample that has one, by id; never a secret itself.

    Args:
        samples: tables.SELECTED_SUBSET; all its texts are scanned, as they are.
        progress: receives the number of scanned samples.
    """
    detectors, found = _detectors(), dict[str, list[str]]()
    texts = [
        name for name in samples.columns if name in {"source", "context", "instruction", "response", "conversation"}
    ]
    for done, row in enumerate(samples.select("sample_id", *texts).iter_rows(), start=1):
        sample_id, *parts = row
        kinds = [kind for kind, finds in detectors.items() if any(finds(part) for part in parts if part)]
        if kinds:
            found[sample_id] = kinds
        progress(done, samples.height, "samples", "secrets")
    return found


def _detectors() -> dict[str, Detector]:
    """Return the detectors by the kind of secret that they find: patterns alone, which need no request."""
    detectors: dict[str, Detector] = {"key of a service": lambda text: _has_secret(KEY_SHAPE.findall(text))}
    if scanner_version():
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.base import RegexBasedDetector

        for kind, plugin in get_mapping_from_secret_type_to_class().items():
            if issubclass(plugin, RegexBasedDetector) and kind != _NOISY:
                detectors[kind] = partial(_finds, plugin())
    return detectors


def _finds(plugin: RegexBasedDetector, text: str) -> bool:
    return _has_secret(plugin.analyze_string(text))


def _has_secret(matches: Iterable[str]) -> bool:
    return any(not _HARMLESS.fullmatch(match) for match in matches)
