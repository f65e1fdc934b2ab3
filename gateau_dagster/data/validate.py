"""Summarise the long input for `gateau validate`: counts, and each kind of reject with examples."""

from __future__ import annotations

from dataclasses import dataclass

from gateau_dagster.data.index import InputIndex
from gateau_dagster.data.record_fields import FieldCounts, field_lines
from gateau_dagster.data.rejects import RejectKind

_SOURCES = 10


@dataclass(frozen=True, kw_only=True)
class ValidationSummary:
    """Counts of records: read = accepted + rejected + duplicates_dropped. `kinds`: most frequent first."""

    files: tuple[str, ...]
    read: int
    accepted: int
    rejected: int
    duplicates_dropped: int
    sources: tuple[tuple[str, int], ...]
    kinds: tuple[RejectKind, ...]
    fields: FieldCounts
    contexts: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the summary as plain text."""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        text = [f"{self.read} records in {files}: {self.accepted} usable, {self.rejected} rejected"]
        if len(self.sources) > 1:
            named = ", ".join(f"{source} {count}" for source, count in self.sources[:_SOURCES])
            more = f" and {len(self.sources) - _SOURCES} more" if len(self.sources) > _SOURCES else ""
            text.append(f"usable by source: {named}{more}")
        if self.duplicates_dropped:
            text.append(f"{self.duplicates_dropped} repeat an earlier record (same id, same content) and count once")
        text += self.contexts
        for kind in self.kinds:
            text.append(f"{kind.count} x {kind.kind}")
            text += [f"    {place}  {reason}" for place, reason in kind.examples]
            if kind.count > len(kind.examples):
                text.append(f"    and {kind.count - len(kind.examples)} more")
        return text + field_lines(self.fields, "long_sft")


def validation_summary(index: InputIndex) -> ValidationSummary:
    """Summarise an index; no file is read."""
    sources = index.accepted.group_by("source").len().sort(["len", "source"], descending=[True, False])
    return ValidationSummary(
        files=tuple(file.label for file in index.files),
        read=index.records,
        accepted=len(index.accepted),
        rejected=len(index.rejected),
        duplicates_dropped=index.duplicates_dropped,
        sources=tuple(sources.iter_rows()),
        kinds=index.rejects.kinds,
        fields=index.fields,
        contexts=tuple(index.contexts.lines),
    )
