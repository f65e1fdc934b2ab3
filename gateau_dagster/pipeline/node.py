"""Define an output of the pipeline as the planner sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateau_dagster.storage.stamp import By, Stamp, fingerprint


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """One partition of an asset whose partitions are made from different upstreams or settings."""

    upstream: Mapping[str, By] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One asset, as the planner compares it with the store.

    partitions: name of its partition set; empty for a single output.
    upstream: what is read, and how each counts; with `parts`, by any of them.
    settings: every part of the configuration that changes its result, and nothing else.
    parts: by partition, where partitions are made from different upstreams or settings; see `of`.
    scorer: for tables whose rows are computed one by one, the digest of what computes a row; see `row_scorer`.
    model: the upstream, compared by content, that is the model which computes the rows; empty for a model that exists
        already and is part of `scorer`.
    means: digest of the settings that change no row but decide which rows can be computed (what fits into memory, which
        server replies). Missing rows are tried again when it changes.
    required: whether the configuration needs it; if not, it is only made when it is named. Not part of the fingerprint.
    """

    asset: str
    partitions: str = ""
    upstream: Mapping[str, By] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    code_version: str = "1"
    scorer: str = ""
    model: str = ""
    means: str = ""
    required: bool = True
    parts: Mapping[str, NodePart] = field(default_factory=dict)

    @property
    def reads_input(self) -> bool:
        """Return whether each partition is made from its part of the input."""
        return bool(self.partitions) and not self.upstream and not self.parts

    def of(self, partition: str | None) -> "Node":
        """Return what one partition is made from: the node itself unless its partitions differ."""
        if partition is None or not self.parts:
            return self
        part = self.parts[partition]
        return replace(self, upstream=part.upstream, settings={**self.settings, **part.settings})

    def row_scorer(self, upstream_versions: Mapping[str, str]) -> str:
        """Return the digest of all that computes a row: rows with another digest are never kept."""
        if not self.model:
            return self.scorer
        assert self.upstream[self.model] == "content", "a model that came out the same computes the same rows"
        return fingerprint({"scorer": self.scorer, "model": upstream_versions[self.model]})

    def inputs(self, upstream_versions: Mapping[str, str]) -> dict[str, Any]:
        """Return the parts of the fingerprint by name, as the stamp keeps them."""
        assert set(upstream_versions) >= set(self.upstream), (self.asset, upstream_versions)
        return {"code": self.code_version, "settings": dict(self.settings), "upstream": dict(upstream_versions)}

    def is_current(self, stamp: Stamp | None, wanted: str) -> bool:
        """Return whether an output with this stamp is up to date, or as complete as the current `means` allow."""
        if stamp is None or not stamp.lacking:
            return stamp is not None and stamp.fingerprint == wanted
        return stamp.complete == wanted and stamp.lacking == self.means

    def fingerprint(self, upstream_versions: Mapping[str, str]) -> str:
        """Return the data version of the output made from these upstream versions."""
        return fingerprint({"asset": self.asset, **self.inputs(upstream_versions)})
