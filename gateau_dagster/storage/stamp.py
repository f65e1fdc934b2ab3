"""What an output says about itself, and the digests that decide whether work is needed."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from gateau_dagster.storage.sealed_json import sealed, unsealed


def fingerprint(parts: Mapping[str, Any]) -> str:
    """32 hex digits of SHA-256 over the canonical JSON of `parts`; equal parts give equal digests in any process."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def joint(versions: Mapping[str, str]) -> str:
    """One digest for many versions by name (the shards of a table)."""
    return fingerprint(dict(versions))


# How an upstream counts: by its origin (fingerprint), or by what is in it (content). By content, an upstream that was
# rebuilt but came out the same costs nothing: a GPU week of training is not repeated for an equal selection.
By: TypeAlias = Literal["fingerprint", "content"]


_CHECK = "check"
_OLD_NAMES = {"short_of_memory": "lacking"}


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Written with every output, in the same atomic step.

    fingerprint: what the output was made from (its data version in Dagster).
    content: digest of what is in it; equal contents of unequal origin let downstream work be skipped.
    inputs: the parts of the fingerprint by name, so that a difference can be named.
    scorer: digest of the model and settings that made each row, where rows can be kept one by one.
    rows: rows of the table, or None for what is not a table.
    lacking: digest of the settings under which some rows could not be had (see `without`); empty when all could.
    complete: the fingerprint it would have had with all of them.
    effort: what computing its new rows took, and what had been expected; no part of any fingerprint.
    given: how many samples or texts a table is drawn from, where its rows and rejects do not tell; no part of any
        fingerprint.
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
    files: dict[str, str] = field(default_factory=dict)

    def without(self, absent: Iterable[str], means: str) -> "Stamp":
        """The stamp of a table that lacks rows which `means` cannot give: not the wanted one, and known for what it is.

        absent: the ids of what lacks them; with none, the stamp is as it was. means: see Node.
        """
        names = sorted(absent)
        if not names:
            return self
        made = fingerprint({"complete": self.fingerprint, "memory": means, "absent": names})
        return replace(self, fingerprint=made, complete=self.fingerprint, lacking=means)

    def to_json(self) -> str:
        """One line of JSON with sorted keys, and a digest of the others."""
        return json.dumps(sealed(asdict(self), _CHECK), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Stamp":
        """The inverse of `to_json`; raises ValueError for anything else, and where a byte of it has changed."""
        data = unsealed(text, _CHECK)
        for old, new in _OLD_NAMES.items():
            if old in data:
                data[new] = data.pop(old)
        if "fingerprint" not in data or not {*data} <= {*cls.__dataclass_fields__}:
            raise ValueError("not a stamp")
        return cls(**data)
