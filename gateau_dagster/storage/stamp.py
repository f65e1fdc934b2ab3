"""Define the stamp of an output, the digests that decide whether work is needed, and JSON that detects flipped bits."""

# Why a stamp holds the parts of its fingerprint, and not the hash only: the hash says that something differs, the parts
# say what. "changed: models.short.window 64 → 48" is what a user needs before a day of GPU time. The price is some
# bytes per table.
#
# Why two digests: `fingerprint` is known before the work, from what goes in. `content` is known after it, from what
# came out. An output that comes out equal stops the work that reads it by content.
#
# What is not in a fingerprint: times, paths, devices, batch sizes and measured effort. So a copied store is up to date,
# and another machine continues the work.

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias


def sealed(content: Mapping[str, Any], key: str = "digest") -> dict[str, Any]:
    """Return the object with its digest under `key`. Infinity and NaN are kept, as Python writes them."""
    # Digested as a reader will see it: JSON turns keys into texts and tuples into lists.
    as_read = json.loads(json.dumps(content))  # keys are texts
    return {key: _digest(as_read), **as_read}


def unsealed(data: str | bytes, key: str = "digest") -> dict[str, Any]:
    """Return the content sealed under `key`; an object without a digest, from an old release, is accepted unchanged.

    Raises:
        ValueError: the data are not a JSON object, or differ from what was written.
    """
    try:
        content = json.loads(data)
    # A file of a million brackets is valid JSON for the parser until its stack ends.
    except RecursionError as error:
        raise ValueError("no object") from error
    if not isinstance(content, dict):
        raise ValueError("no object")
    digest = content.pop(key, None)
    if digest is not None and digest != _digest(content):
        raise ValueError("not as it was written")
    return content


def _digest(content: dict[str, Any]) -> str:
    # 64 bits: this detects flipped bits, not forgery.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 32 hex digits of SHA-256 over the canonical JSON of `parts`; equal in every process for equal parts."""
    # Canonical: sorted keys, no spaces, ASCII only, no NaN. A fingerprint must be the same in every process, release
    # and locale.
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def joint(versions: Mapping[str, str]) -> str:
    """Return one digest for many versions by name (the shards of a table)."""
    return fingerprint(dict(versions))


# How an upstream counts: by its origin (fingerprint), or by its content. By content, an upstream that was rebuilt with
# the same result costs nothing: a GPU week of training is not repeated for an equal selection.
By: TypeAlias = Literal["fingerprint", "content"]


_OLD_NAMES = {"short_of_memory": "lacking"}


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The stamp of an output, written in the same atomic step.

    fingerprint: of the inputs of the output (its data version in Dagster).
    content: digest of the output; equal contents of different origin let downstream work be skipped.
    inputs: the parts of the fingerprint by name, so that a difference can be named.
    scorer: digest of the model and settings that made each row, if rows can be kept one by one.
    rows: rows of the table, or None for other outputs.
    lacking: digest of the settings under which some rows could not be computed (see `without`); empty if none.
    complete: the fingerprint it would have with all rows.
    effort: the measured effort of its new rows; no part of any fingerprint.
    given: the number of samples or texts from which a table is drawn, if its rows and rejects do not add up to it; no
    part of any fingerprint.
    rule: of chosen samples, the rule that chose them; no part of any fingerprint.
    files: of a folder, the SHA-256 (hex) of each file by its name; of a document, the version of each file that it
    loads by its name in the store, see documents.beside.
    """

    fingerprint: str
    content: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)
    scorer: str = ""
    rows: int | None = None
    lacking: str = ""
    complete: str = ""
    effort: dict[str, Any] = field(default_factory=dict)
    given: int | None = None
    rule: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def without(self, absent: Iterable[str], means: str) -> "Stamp":
        """Return the stamp of a table without the rows that `means` cannot compute, with its own fingerprint.

        absent: ids without a row; if empty, the stamp is unchanged. means: see pipeline.asset.Asset.
        """
        names = sorted(absent)
        if not names:
            return self
        # Another fingerprint than that of the complete table: readers made from an incomplete table are stale once it
        # is complete. The ids are in it, as other missing rows are another input.
        made = fingerprint({"complete": self.fingerprint, "memory": means, "absent": names})
        return replace(self, fingerprint=made, complete=self.fingerprint, lacking=means)

    def to_json(self) -> str:
        """Return one line of JSON with sorted keys, and a digest of the others."""
        return json.dumps(sealed(asdict(self), "check"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Stamp":
        """Return the stamp from `to_json` output; raise ValueError for anything else, and for any changed byte."""
        data = unsealed(text, "check")
        # Stamps of earlier releases stay readable. An unknown field is refused: a newer release wrote it, and may mean
        # something else.
        for old, new in _OLD_NAMES.items():
            if old in data:
                data[new] = data.pop(old)
        if "fingerprint" not in data or not {*data} <= {*cls.__dataclass_fields__}:
            raise ValueError("not a stamp")
        return cls(**data)
