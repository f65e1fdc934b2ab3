"""What Dagster's catalogue says of the assets beside what they are: whose they are, and how old they may be."""

import re
from fnmatch import fnmatchcase

from pydantic import Field, field_validator

from gateau_dagster.config.base import Section

_OWNER = re.compile(r"team:[A-Za-z0-9_]+|[^@\s:]+@[^@\s:]+\.[^@\s:]+")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


class CatalogueConfig(Section):
    """Shown beside the assets; changes no result. Patterns are those of file names: `*`, `perplexity/*`, `report`."""

    owners: dict[str, list[str]] = Field(
        default={}, description="By pattern of assets: e-mail addresses, or teams as team:name."
    )
    tags: dict[str, str] = Field(default={}, description="Of every asset, to search by.")
    code: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="Where the code can be read, such as https://github.com/a/b/blob/main; default: the local files.",
    )
    fresh_within_hours: dict[str, float] = Field(
        default={}, description="By pattern of assets: how long ago they may have been made, or found up to date."
    )

    @field_validator("owners")
    @classmethod
    def _possible_owners(cls, owners: dict[str, list[str]]) -> dict[str, list[str]]:
        for name in (name for names in owners.values() for name in names):
            if not _OWNER.fullmatch(name):
                raise ValueError(f"{name!r} is neither an e-mail address nor a team such as team:data")
        return owners

    @field_validator("tags")
    @classmethod
    def _possible_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for key, value in tags.items():
            if not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
                raise ValueError(f"{key}: {value!r}: letters, digits, _, . and -, 63 at most")
        return tags

    @field_validator("fresh_within_hours")
    @classmethod
    def _possible_hours(cls, hours: dict[str, float]) -> dict[str, float]:
        for pattern, value in hours.items():
            if not 0.1 <= value <= 100_000:
                raise ValueError(f"{pattern}: {value:g}: hours, from 0.1 to 100000")
        return hours

    def owners_of(self, asset: str) -> list[str]:
        """Those of every pattern that the asset matches, each once."""
        found = [owner for pattern, owners in self.owners.items() if fnmatchcase(asset, pattern) for owner in owners]
        return [*dict.fromkeys(found)]

    def hours_of(self, asset: str) -> float | None:
        """The fewest of the patterns that the asset matches; None for an asset that may be of any age."""
        found = [hours for pattern, hours in self.fresh_within_hours.items() if fnmatchcase(asset, pattern)]
        return min(found, default=None)
