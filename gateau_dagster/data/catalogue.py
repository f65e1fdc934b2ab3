"""Scan input files once: the id, content digest and place of each record, and duplicates; read wanted records again."""

# Why all records with one id and different contents are rejected: scores, selections and exports name a sample by its
# id. Keeping the first would let the order of the files decide what an id means. Sessions are the exception, since
# agents name their files alike.
#
# What is kept of a record is small, so that the input may be larger than the memory. data/index.py has the reasons for
# a second pass over the texts.

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Beginnings, Conversation, Reject, Sample
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
        # The characters at the context's start that are the system text and the definitions of tools.
        "instructions": pl.Int64(),
        # The rule that separated context and instruction, see user_turns.Border; empty for a conversation.
        "border": pl.String(),
        # The control tokens that its texts spell.
        "control_tokens": pl.List(pl.String()),
    }
)
REJECTED = pl.Schema({"sample_id": pl.String(), "reason": pl.String(), "location": pl.String()})
BEGUN = pl.Schema({"sample_id": pl.String(), "longer": pl.String(), "turns": pl.UInt32(), "location": pl.String()})
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
    begun: accepted conversations whose turns are the first of a `longer` one, which holds their answers (schema BEGUN).
    fields: what became of the records' fields.
    files: those that were read, with the ids of sessions.
    """

    accepted: pl.DataFrame
    rejected: pl.DataFrame
    begun: pl.DataFrame
    records: int
    duplicates_dropped: int
    fields: FieldCounts
    files: tuple[SourceFile, ...]


@dataclass(kw_only=True)
class _Rows:
    """The samples and rejects of the files that `scan` has read.

    sessions: the numbers of the files that are sessions.
    ends, counts, turns: the `Beginnings` of each accepted row: all `ends` in one array, their number and the turns.
    unlearned: by the place in `ends`, the assistant turns without loss, if any.
    """

    accepted: list[tuple[str, str, str, int, int, int, int, int, str, list[str]]] = field(default_factory=list)
    rejected: list[tuple[str, str, str]] = field(default_factory=list)
    fields: FieldCounts = field(default_factory=dict)
    sessions: set[int] = field(default_factory=set)
    # Arrays, since a list takes some 40 bytes for each number of 64 bits.
    ends: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    turns: array[int] = field(default_factory=lambda: array("I"))
    unlearned: dict[int, int] = field(default_factory=dict)

    def accept(self, made: Identified, file: int, record: int) -> None:
        """Add a sample of a record."""
        sample = made if isinstance(made, Sample) else None
        instructions, border = (0, "") if sample is None else (sample.instructions, sample.border)
        beginnings = (sample and sample.beginnings) or Beginnings(turns=0, ends=())
        identity = (made.sample_id, made.digest, made.source)
        self.accepted.append((*identity, file, record, *made.lengths, instructions, border, made.control_tokens))
        without_loss = enumerate(beginnings.unlearned, start=len(self.ends))
        self.unlearned.update((place, bits) for place, bits in without_loss if bits)
        self.ends.extend(beginnings.ends)
        self.counts.append(len(beginnings.ends))
        self.turns.append(beginnings.turns)


def scan(files: Sequence[SourceFile], convert: Convert, progress: Progress) -> Catalogue:
    """Read all of `files` once. Memory: one record, some 250 bytes for each earlier one, and 8 bytes for each answer.

    Of records with the same id and content the first is kept. Sessions with the same id and different content are named
    by the paths of their files. Other records with the same id and different content are all rejected, each naming the
    others' places. Their records are rejected whole, with all other samples.

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
            if item.is_session:
                rows.sessions.add(number)
            for made in convert(item.value, location=place, stem=file.stem, counts=rows.fields):
                if isinstance(made, Reject):
                    rows.rejected.append((made.sample_id, made.reason, place))
                    continue
                rows.accept(made, number, item.number)
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
    frame = _with_contents(pl.DataFrame(rows.accepted, schema=ACCEPTED, orient="row").with_row_index("row"))
    rejected = pl.DataFrame(rows.rejected, schema=REJECTED, orient="row")
    clashing = frame.filter(pl.col("contents") > 1, pl.col("file").is_in(rows.sessions))["file"].unique()
    if len(clashing):
        frame, files = _with_paths_as_ids(frame, files, clashing)
    same = frame.filter(pl.col("contents") == 1).drop("contents")
    accepted = same.unique(subset="sample_id", keep="first", maintain_order=True)
    # An id means one thing: a reject whose id belongs to a usable record is named by its place.
    taken = pl.col("sample_id").is_in(accepted["sample_id"].implode())
    reason = pl.format("{} (its id {} is that of a usable record)", "reason", "sample_id")
    renamed = rejected.with_columns(
        sample_id=pl.when(taken).then("location").otherwise("sample_id"),
        reason=pl.when(taken).then(reason).otherwise("reason"),
    )
    return Catalogue(
        accepted=accepted.drop("row"),
        rejected=pl.concat([renamed, _conflicts(frame.filter(pl.col("contents") > 1), files)]),
        begun=_begun(accepted, rows, files),
        records=len(rows.accepted) + len(rows.rejected),
        duplicates_dropped=len(same) - len(accepted),
        fields=rows.fields,
        files=tuple(files),
    )


def _with_contents(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with `contents`: how many contents their id has, or another id of their record."""
    frame = frame.with_columns(pl.col("digest").n_unique().over("sample_id").alias("contents"))
    # First among the samples of a record, then among the records that share an id with one of them.
    for together in (["file", "record"], ["sample_id"]):  # a record with a sample in conflict is rejected whole
        frame = frame.with_columns(pl.col("contents").max().over(together))
    return frame


def _with_paths_as_ids(
    frame: pl.DataFrame, files: Sequence[SourceFile], numbers: pl.Series
) -> tuple[pl.DataFrame, list[SourceFile]]:
    """Name the sessions in these files by their paths. A path does not depend on other files, so that adding a third
    session of a name renames none.
    """
    named = [replace(file, session_id=file.path) if at in set(numbers) else file for at, file in enumerate(files)]
    names = pl.DataFrame(
        [(number, files[number].stem, files[number].path) for number in numbers],
        schema={"file": ACCEPTED["file"], "stem": pl.String(), "path": pl.String()},
        orient="row",
    )
    suffix = pl.col("sample_id").str.strip_prefix(pl.col("stem"))
    frame = frame.join(names, on="file", how="left", maintain_order="left").with_columns(
        sample_id=pl.when(pl.col("path").is_null()).then("sample_id").otherwise(pl.concat_str("path", suffix))
    )
    return _with_contents(frame.drop("stem", "path")), named


def _begun(accepted: pl.DataFrame, rows: _Rows, files: Sequence[SourceFile]) -> pl.DataFrame:
    """Return the samples whose conversation begins a longer one, or repeats one apart from the ids of tool calls.

    Every answer that such a sample learns is learned in the longer one, which is not in the result itself. Digests of
    64 bits decide. Of a million samples with ten answers each, one is wrong in one of a million data sets.
    """
    ends, counts = np.frombuffer(rows.ends, np.uint64), np.frombuffer(rows.counts, np.uint32)
    last = np.cumsum(counts, dtype=np.int64) - 1
    own = accepted.filter(counts[accepted["row"]] > 0)
    place = last[own["row"]]
    bits = [rows.unlearned.get(at, 0) for at in place.tolist()]
    # Longer ones first. Of several with the same turns, the first is never in the result.
    own = own.with_columns(
        end=ends[place],
        turns=np.frombuffer(rows.turns, np.uint32)[own["row"]],
        without_loss=pl.Series(map(int.bit_count, bits), dtype=pl.UInt32()),
        place=place,
        several=pl.col("border") == "conversation",
    ).sort("turns", "without_loss", "several", "sample_id", descending=[True, False, True, False])
    longer = {**_repeating(own, rows.unlearned), **_beginning(own, ends, counts, rows.unlearned)}
    shorter, others = own[list(longer)], own[list(longer.values())]
    places = [location(files[file], record) for file, record in shorter.select("file", "record").iter_rows()]
    return shorter.select("sample_id", others["sample_id"].alias("longer"), "turns", pl.Series("location", places))


def _beginning(
    own: pl.DataFrame, ends: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint32], unlearned: Mapping[int, int]
) -> dict[int, int]:
    """Return, by the rank of each conversation that begins a longer one, the rank of the first such one."""
    rank = np.full(counts.size, -1, dtype=np.int64)
    rank[own["row"]] = np.arange(own.height)
    of_end = np.repeat(rank, counts)
    is_earlier = (of_end >= 0) & np.isin(ends, own["end"].unique())
    is_earlier[own["place"]] = False
    at = np.flatnonzero(is_earlier)
    inside = pl.DataFrame({"end": ends[at], "longer": of_end[at], "at": at})
    partly = pl.Series(
        [place in unlearned for place in at.tolist()] if unlearned else [False] * len(at), dtype=pl.Boolean
    )
    whole = inside.filter(~partly).group_by("end").agg(pl.col("longer").min())
    pairs = own.select("end").with_row_index("rank").join(whole, on="end").select("rank", "longer")
    found = dict(pairs.iter_rows())
    several = inside.filter(partly).join(own.select("end", "place").with_row_index("rank"), on="end")
    for at, rank, longer, place in several.select("at", "rank", "longer", "place").iter_rows():
        if not unlearned[at] & ~unlearned.get(place, 0):
            found[rank] = min(longer, found.get(rank, longer))
    return found


def _repeating(own: pl.DataFrame, unlearned: Mapping[int, int]) -> dict[int, int]:
    """Return, by the rank of each conversation with the turns of an earlier one, the rank of that one.

    They differ in ids of calls or in turns without loss, or one is the record of a single exchange. Two records of a
    single exchange are not compared.
    """
    ranked = own.select("end", "digest", "several", "place").with_row_index("rank")
    alike = (pl.col("digest").n_unique().over("end") > 1) & pl.col("several").any().over("end")
    found, kept = dict[int, int](), dict[int, list[tuple[int, str, int]]]()
    for rank, end, digest, several, place in (
        ranked.filter(alike).select("rank", "end", "digest", "several", "place").iter_rows()
    ):
        bits, others = unlearned.get(place, 0), kept.setdefault(end, [])
        same = (other for other, content, learned in others if content != digest and not learned & ~bits)
        if (first := next(same, None)) is None:
            if several:
                others.append((rank, digest, bits))
        else:
            found[rank] = first
    return found


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
        # The content is compared again: between the passes, another program may have written the file.
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
