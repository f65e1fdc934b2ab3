"""Read the texts of chosen shards for `raw_long_sft` from the files, with the index as a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import cast

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.catalogue import Convert, Identified
from gateau_dagster.data.index import InputIndex, converter
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.data.sources import Problem, SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent

_RAW = tables.schema((*tables.RAW_LONG_SFT, tables.CONVERSATION))


def read_shards(
    config: LongSftConfig, folder: Path, index: InputIndex, shards: Collection[int], progress: Progress = silent
) -> Iterator[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """Yield (shard, raw_long_sft rows sorted by sample_id, rejected rows) for each of `shards`, as it is complete.

    Only files with wanted records are opened, and only their wanted lines are parsed. At most the texts of the wanted
    shards are in memory.

    Raises:
        GateauError: a file no longer holds what the index recorded.
    """
    del folder  # the index knows the files, and their addresses are absolute
    rejected = index.rejected.filter(pl.col("shard").is_in(list(shards)))
    wanted = index.accepted.filter(pl.col("shard").is_in(list(shards)))
    shard_of = dict(wanted.select("sample_id", "shard").iter_rows())
    missing = Counter(shard_of.values())
    rows: dict[int, list[tuple[str | None, ...]]] = {shard: [] for shard in shards}

    def tables_of(shard: int) -> tuple[int, pl.DataFrame, pl.DataFrame]:
        raw = pl.DataFrame(rows.pop(shard), schema=_RAW, orient="row").sort("sample_id")
        raw = tables.with_conversations(raw, tables.RAW_LONG_SFT)
        mine = rejected.filter(pl.col("shard") == shard).select("sample_id", "reason").sort("sample_id", "reason")
        return shard, raw, mine

    for shard in sorted(set(shards) - set(missing)):
        yield tables_of(shard)
    for done, sample in enumerate(read_samples(config, index, wanted), start=1):
        shard = shard_of[sample.sample_id]
        texts = (sample.context, sample.instruction, sample.response)
        rows[shard].append((sample.sample_id, sample.source, *texts, sample.digest, sample.conversation or None))
        missing[shard] -= 1
        progress(done, len(shard_of), "samples", f"shard {shard}")
        if missing[shard] == 0:
            yield tables_of(shard)


def read_samples(config: LongSftConfig, index: InputIndex, wanted: pl.DataFrame) -> Iterator[Sample]:
    """Yield the long samples that `wanted` names, with the conversion of the index; see `read_wanted`."""
    for found in read_wanted(index.files, wanted, converter(config)):
        yield cast(Sample, found)


def read_wanted(files: Sequence[SourceFile], wanted: pl.DataFrame, convert: Convert) -> Iterator[Identified]:
    """Yield the samples that `wanted` (schema catalogue.ACCEPTED) names, in the files' order.

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
