"""Scan input files once: the id, content digest and place of each record, and duplicates; read wanted records again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import polars as pl

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Conversation, Reject, Sample
from gateau_dagster.data.sources import Problem, SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress

ACCEPTED = pl.Schema(
    {
        "sample_id": pl.String(),
        "digest": pl.String(),
        "source": pl.String(),
        "file": pl.Int32(),
        "record": pl.Int64(),
        # For estimates of the work: all text, and its part outside the context.
        "characters": pl.Int64(),
        "tail_characters": pl.Int64(),
        # The rule that separated context and instruction, see user_turns.Border; empty for a conversation.
        "border": pl.String(),
    }
)
REJECTED = pl.Schema({"sample_id": pl.String(), "reason": pl.String(), "location": pl.String()})
_SHOWN = 5
Identified = Sample | Conversation


class Convert(Protocol):
    """A function that makes samples of a record."""

    def __call__(
        self, record: Any, *, location: str, stem: str, counts: FieldCounts | None = None
    ) -> Iterable[Identified | Reject]:
        """Return the samples, or the reason for refusing the record."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalogue:
    """`accepted` (schema ACCEPTED, in reading order, ids unique) and `rejected` (schema REJECTED).

    A record with several samples counts once for each.

    No id is in both, and records = accepted + rejected + duplicates_dropped (a file that cannot be read counts as one).
    fields: what became of the records' fields.
    """

    accepted: pl.DataFrame
    rejected: pl.DataFrame
    records: int
    duplicates_dropped: int
    fields: FieldCounts


@dataclass(kw_only=True)
class _Rows:
    accepted: list[tuple[str, str, str, int, int, int, int, str]] = field(default_factory=list)
    rejected: list[tuple[str, str, str]] = field(default_factory=list)
    fields: FieldCounts = field(default_factory=dict)


def scan(files: Sequence[SourceFile], convert: Convert, progress: Progress) -> Catalogue:
    """Read all of `files` once. Memory: one record, and some 250 bytes for each earlier one.

    Of records with the same id and content the first is kept. Records with the same id and different content are all
    rejected, each naming the others' places. Their records are rejected whole, with all other samples.

    Raises:
        GateauError: a file cannot be reached.
    """
    rows = _Rows()
    total = sum(file.size for file in files)
    for number, file in enumerate(files):
        note = _reporter(file, sum(other.size for other in files[:number]), total, rows, progress)
        for item in read_records(file, on_bytes=note):
            place = location(file, item.number)
            if isinstance(item, Problem):
                rows.rejected.append((place, item.reason, place))
                continue
            for made in convert(item.value, location=place, stem=file.stem, counts=rows.fields):
                if isinstance(made, Reject):
                    rows.rejected.append((made.sample_id, made.reason, place))
                    continue
                border = made.border if isinstance(made, Sample) else ""
                identity = (made.sample_id, made.digest, made.source)
                rows.accepted.append((*identity, number, item.number, *made.lengths, border))
    return _without_duplicates(rows, files)


def _reporter(file: SourceFile, before: int, total: int, rows: _Rows, progress: Progress) -> Callable[[int], None]:
    """Return a callback that reports bytes read of all files' bytes; `before`: bytes of the files before this one."""
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done = min(done + count, file.size)
        progress(
            before + done, total, "bytes", f"{file.label}: {len(rows.accepted)} samples, {len(rows.rejected)} rejected"
        )

    return note


def _without_duplicates(rows: _Rows, files: Sequence[SourceFile]) -> Catalogue:
    frame = pl.DataFrame(rows.accepted, schema=ACCEPTED, orient="row")
    rejected = pl.DataFrame(rows.rejected, schema=REJECTED, orient="row")
    frame = frame.with_columns(pl.col("digest").n_unique().over("sample_id").alias("contents"))
    for together in (["file", "record"], ["sample_id"]):  # a record with a sample in conflict is rejected whole
        frame = frame.with_columns(pl.col("contents").max().over(together))
    same = frame.filter(pl.col("contents") == 1).drop("contents")
    accepted = same.unique(subset="sample_id", keep="first", maintain_order=True)
    conflicts = _conflicts(frame.filter(pl.col("contents") > 1), files)
    return Catalogue(
        accepted=accepted,
        rejected=pl.concat([_renamed(rejected, accepted), conflicts]),
        records=len(rows.accepted) + len(rows.rejected),
        duplicates_dropped=len(same) - len(accepted),
        fields=rows.fields,
    )


def _conflicts(frame: pl.DataFrame, files: Sequence[SourceFile]) -> pl.DataFrame:
    """Return the rejects for records that share an id but not the content."""
    places: dict[str, list[str]] = {}
    for sample_id, file, record in frame.select("sample_id", "file", "record").iter_rows():
        places.setdefault(sample_id, []).append(location(files[file], record))
    rejected = []
    for sample_id, found in places.items():
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        reason = f"duplicate id: different content under one id in {', '.join(found[:_SHOWN])}{more}"
        rejected += [(sample_id, reason, place) for place in found]
    return pl.DataFrame(rejected, schema=REJECTED, orient="row")


def _renamed(rejected: pl.DataFrame, accepted: pl.DataFrame) -> pl.DataFrame:
    """Name a reject by its place if its id belongs to a usable record: an id means one thing."""
    taken = pl.col("sample_id").is_in(accepted["sample_id"].implode())
    reason = pl.format("{} (its id {} is that of a usable record)", "reason", "sample_id")
    return rejected.with_columns(
        sample_id=pl.when(taken).then("location").otherwise("sample_id"),
        reason=pl.when(taken).then(reason).otherwise("reason"),
    )


def read_wanted(files: Sequence[SourceFile], wanted: pl.DataFrame, convert: Convert) -> Iterator[Identified]:
    """Yield the samples that `wanted` (schema ACCEPTED) names, in the files' order.

    Raises:
        GateauError: a record differs from its catalogue entry.
    """
    for (number,), part in sorted(wanted.partition_by("file", as_dict=True).items()):
        file = files[cast(int, number)]
        known: dict[int, dict[str, str]] = {}
        for record, sample_id, digest in part.select("record", "sample_id", "digest").iter_rows():
            known.setdefault(record, {})[sample_id] = digest
        for item in read_records(file, wanted=known.keys()):
            if item.number not in known:
                continue  # a known problem, or one that concerns nothing wanted
            if isinstance(item, Problem):
                raise _changed(file, item.number)
            digests = known.pop(item.number)
            for sample in convert(item.value, location=location(file, item.number), stem=file.stem):
                if sample.sample_id not in digests:
                    continue
                if isinstance(sample, Reject) or sample.digest != digests.pop(sample.sample_id):
                    raise _changed(file, item.number)
                yield sample
                if not digests:
                    break
            if digests:
                raise _changed(file, item.number)
            if not known:
                break
        if known:
            raise _changed(file, min(known))


def _changed(file: SourceFile, number: int) -> GateauError:
    place = location(file, number)
    return GateauError(
        "data.changed",
        f"{place} changed while the input was read: run again when nothing writes {file.address}. If nothing "
        "does, its size and time are unreliable: set verify: content beside its path",
    )
