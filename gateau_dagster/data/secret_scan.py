"""Find samples whose texts contain a secret, such as a key, before others read them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

import polars as pl

from gateau_dagster.errors import KEY_SHAPE
from gateau_dagster.progress import Progress

SCANNER = "bc-detect-secrets"
"""The package of the extra `publish`; without it only keys of the common services are found."""
# An address with a user and a password is an example far more often than a secret.
_NOISY = "Basic Auth Credentials"
# Example keys in AWS's documentation end in EXAMPLE. Classes of HTML pages begin with sk-, too, but have no digit.
_HARMLESS = re.compile(r".*EXAMPLE(?:KEY)?|sk-\D*")
Detector: TypeAlias = Callable[[str], Iterable[str]]
Findings: TypeAlias = dict[str, dict[str, str]]
"""The kind of each secret by its hash, by sample."""


def scanner_version() -> str:
    """Return the version of the installed scanner; empty if it is not installed."""
    try:
        return version(SCANNER)
    except PackageNotFoundError:
        return ""


def secrets_in(samples: pl.DataFrame, progress: Progress) -> Findings:
    """Return the secrets in the texts of each sample that has one, as hashes; never a secret itself.

    Args:
        samples: tables.SELECTED_SUBSET; all its texts are scanned, as they are.
        progress: receives the number of scanned samples.
    """
    detectors, found = _detectors(), Findings()
    texts = [
        name for name in samples.columns if name in {"source", "context", "instruction", "response", "conversation"}
    ]
    for done, row in enumerate(samples.select("sample_id", *texts).iter_rows(), start=1):
        sample_id, *parts = row
        kinds = {
            secret_hash(secret): kind
            for kind, matches in detectors.items()
            for part in parts
            if part
            for secret in matches(part)
            if not _HARMLESS.fullmatch(secret)
        }
        if kinds:
            found[sample_id] = kinds
        progress(done, samples.height, "samples", "secrets")
    return found


def _detectors() -> dict[str, Detector]:
    """Return the detectors by the kind of secret that they find: patterns alone, which need no request."""
    detectors: dict[str, Detector] = {"key of a service": KEY_SHAPE.findall}
    if scanner_version():
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.base import RegexBasedDetector

        for kind, plugin in get_mapping_from_secret_type_to_class().items():
            if issubclass(plugin, RegexBasedDetector) and kind != _NOISY:
                detectors[kind] = plugin().analyze_string
    return detectors


def secret_hash(secret: str) -> str:
    """Return the beginning of a secret's SHA-256, which `publish.accepted_findings` names it by."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:16]
