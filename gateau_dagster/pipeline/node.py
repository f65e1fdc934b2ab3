"""An output of the pipeline as the planner sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateau_dagster.storage.stamp import By, Stamp, fingerprint


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """One partition of an asset whose partitions are not made from the same: which upstreams it reads, and what else
    of the configuration changes it.
    """

    upstream: Mapping[str, By] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One asset.

    partitions: name of its partition set; empty for a single output.
    upstream: what is read, and how each counts; where there are `parts`, by any of them.
    settings: every part of the configuration that changes its result, and nothing else.
    parts: by partition, where not all are made from the same; see `of`.
    scorer: for tables whose rows are computed one by one, the digest of what computes a row; see `row_scorer`.
    model: the upstream, compared by content, that is the model which computes the rows; empty for a model that is there
        already, and a part of `scorer`.
    means: digest of the settings that change no row and decide which can be had (what fits into memory, which server
        replies); what could not be had is tried again when they change.
    required: whether the configuration asks for it; if not, it is only made when it is named. No part of the
        fingerprint.
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
        """Whether each partition is made from its part of the input."""
        return bool(self.partitions) and not self.upstream and not self.parts

    def of(self, partition: str | None) -> "Node":
        """What one partition is made from: the node itself where all are made from the same."""
        if partition is None or not self.parts:
            return self
        part = self.parts[partition]
        return replace(self, upstream=part.upstream, settings={**self.settings, **part.settings})

    def row_scorer(self, upstream_versions: Mapping[str, str]) -> str:
        """The digest of all that computes a row: rows of another one are never kept."""
        if not self.model:
            return self.scorer
        assert self.upstream[self.model] == "content", "a model that came out the same computes the same rows"
        return fingerprint({"scorer": self.scorer, "model": upstream_versions[self.model]})

    def inputs(self, upstream_versions: Mapping[str, str]) -> dict[str, Any]:
        """The parts of the fingerprint by name, as the stamp keeps them."""
        assert set(upstream_versions) >= set(self.upstream), (self.asset, upstream_versions)
        return {"code": self.code_version, "settings": dict(self.settings), "upstream": dict(upstream_versions)}

    def is_current(self, stamp: Stamp | None, wanted: str) -> bool:
        """Whether an output with this stamp is the wanted one, or all of it that can be had by these means."""
        if stamp is None or not stamp.lacking:
            return stamp is not None and stamp.fingerprint == wanted
        return stamp.complete == wanted and stamp.lacking == self.means

    def fingerprint(self, upstream_versions: Mapping[str, str]) -> str:
        """The data version of the output made from these upstream versions."""
        return fingerprint({"asset": self.asset, **self.inputs(upstream_versions)})
