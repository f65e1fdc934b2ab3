"""Index the long input: identity, place and lengths of every sample; read the texts of chosen shards by it.

An index takes one streaming pass, or none if the files are those of the saved one.
"""

# Why there is an index, what it costs, and when another way is better:
#
# - Shards, rejects, repeated ids and documents are questions about the whole input. They must have answers before the
#   first shard is written, and the input need not fit into memory. So one pass keeps what is small: ids, places,
#   lengths and digests, some 250 bytes for each sample.
# - The texts are read again for the shards that are asked for. Compressed lines have no places to seek to, so a file
#   with wanted records is read up to the last of them, but only wanted lines are parsed. For shards that are all out of
#   date, that is a second pass.
# - Writing all texts by shard in the first pass would spare it. But a change of one record, or of the number of shards,
#   would write everything again, and the input would be on the disk twice before anything is known to be usable.
# - A saved index counts while address, size and time of the files stay. Where these are not to be trusted, `verify:
#   content` reads all bytes, which is faster than parsing them, but no longer free.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.catalogue import ACCEPTED, REJECTED, Convert, read_wanted, scan
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.input_index import CODE_VERSION, Begun, InputIndex
from gateau_dagster.data.rejects import rejects_among
from gateau_dagster.data.sample import Sample, shard_of, text_digest
from gateau_dagster.data.sources import FILE_DIGESTS, SourceFile, content_signature, input_signature, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.local import keeping
from gateau_dagster.storage.parquet import read_local, write_parquet

# Raise it if reading the same bytes gives other samples or reasons. The index is then rebuilt, and only shards with a
# different sample or reason are out of date.
READER_VERSION = "6"
INDEX_ACCEPTED = pl.Schema({**ACCEPTED, "shard": pl.Int32()})
INDEX_REJECTED = pl.Schema({**REJECTED, "shard": pl.Int32()})
# Another layout needs another name: a file of the old one is then rebuilt.
_KEY = b"gateau_input_index_4"
_BEGINS = pl.format(
    "begins another conversation: its {} turns are the first of {}, which holds its answers", "turns", "longer"
).alias("reason")
_RAW = tables.schema((*tables.RAW_LONG_SFT, tables.CONVERSATION))


def last_of_conversations(index: InputIndex) -> dict[str, str]:
    """Return, by the id of each earlier sample of a record, the id of the record's last sample."""
    last = index.accepted.select("sample_id", last=pl.col("sample_id").last().over("file", "record"))
    return dict(last.filter(pl.col("sample_id") != pl.col("last")).iter_rows())


def save_index(index: InputIndex, path: Path) -> None:
    """Write the index; a reader sees the old file or the new one. Raise GateauError if it cannot be written."""
    header = {
        "signature": index.signature,
        "shards": index.shards,
        "files": [asdict(file) for file in index.files],
        "records": index.records,
        "duplicates_dropped": index.duplicates_dropped,
        "fields": index.fields,
        "begun": index.begun,
    }
    frame = pl.concat([index.accepted, index.rejected], how="diagonal")
    metadata = {_KEY: json.dumps(header).encode()}
    Files(str(path.parent)).write_by(path.name, partial(write_parquet, frame, metadata))


def load_index(path: Path) -> InputIndex | None:
    """Return the saved index, or None if it is missing or damaged: it is a cache, and is then rebuilt."""
    if not path.is_file():
        return None
    try:
        frame, metadata = read_local(path)
        header = json.loads(metadata[_KEY])
        files, begun = tuple(SourceFile(**file) for file in header["files"]), Begun(*header["begun"])
    except (OSError, KeyError, TypeError, ValueError):
        return None
    rejected = pl.col("reason").is_not_null()
    return InputIndex(
        signature=header["signature"],
        shards=header["shards"],
        files=files,
        accepted=frame.filter(~rejected).select(INDEX_ACCEPTED.names()),
        rejected=frame.filter(rejected).select(INDEX_REJECTED.names()),
        records=header["records"],
        duplicates_dropped=header["duplicates_dropped"],
        fields=header["fields"],
        begun=begun,
    )


def index_signature(files: list[SourceFile], config: LongSftConfig, content: str = "") -> str:
    """Return the digest that a valid saved index has. `content`: of files whose size and time are not trusted."""
    ways = [f"ignore {name}" for name in sorted(set(config.ignore))]
    ways += [f"turns {config.turns}"] * (config.turns != "last") + [f"parts {config.parts}"] * (
        config.parts != "reject"
    )
    versions = [CODE_VERSION, READER_VERSION]
    return text_digest([input_signature(files), str(config.shards), *versions, *ways, *([content] if content else [])])


def converter(config: LongSftConfig) -> Convert:
    """Return the function that makes samples of a record."""
    return partial(to_samples, ignore=config.ignore, turns=config.turns, parts=config.parts)


def build_index(config: LongSftConfig, folder: Path, progress: Progress = silent) -> InputIndex:
    """Build the index in one streaming pass over all files of `config.path`, relative to `folder`; progress in bytes.

    Raises:
        GateauError: a file cannot be reached, or no sample is usable (naming the most frequent reasons).
    """
    files = resolve_files(config.path, folder)
    return _build(config, files, index_signature(files, config), progress)


def cached_index(config: LongSftConfig, folder: Path, cache_dir: Path, progress: Progress = silent) -> InputIndex:
    """Return the index, from `cache_dir` if it was saved there for the same files, number of shards and code version.

    "The same" means equal addresses, sizes and modification stamps, and with `verify: content` equal bytes, all of
    which are read. If the folder cannot be written, the next call costs a pass, and a warning is logged (`keeping`).
    Raises the errors of `build_index`.
    """
    files = resolve_files(config.path, folder)
    content = content_signature(files, cache_dir / FILE_DIGESTS, "content") if config.verify == "content" else ""
    signature = index_signature(files, config, content)
    path = index_file(config, folder, cache_dir)
    saved = load_index(path)
    if saved is not None and saved.signature == signature:
        return saved
    index = _build(config, files, signature, progress)
    with keeping(path):
        save_index(index, path)
    return index


def index_file(config: LongSftConfig, folder: Path, cache_dir: Path) -> Path:
    """Return the file in which `cached_index` keeps the index of these data."""
    return cache_dir / f"input-index-{text_digest([str(folder.absolute()), str(config.path)])[:16]}.parquet"


def _build(config: LongSftConfig, files: list[SourceFile], signature: str, progress: Progress) -> InputIndex:
    found = scan(files, converter(config), progress)
    # Checks.check_data reports that no made sample is accepted: only while the samples are not to be made again.
    if found.accepted.is_empty() and not all(file.is_made for file in files):
        raise GateauError("data.no_usable_record", no_usable_sample("long_sft.path", config.path, found.rejected))
    accepted, rejected, begun = found.accepted, found.rejected, found.begun.sort("sample_id")
    if config.turns != "observations":
        accepted = accepted.join(begun, on="sample_id", how="anti", maintain_order="left")
        rejected = pl.concat([rejected, begun.select("sample_id", _BEGINS, "location")])
    named = begun.select("sample_id", "longer").head(1).iter_rows()
    first = [Begun(begun.height, *ids, left_out=config.turns != "observations") for ids in named]
    return InputIndex(
        signature=signature,
        shards=config.shards,
        files=found.files,
        accepted=_with_shard(accepted, config.shards),
        rejected=_with_shard(rejected, config.shards),
        records=found.records,
        duplicates_dropped=found.duplicates_dropped,
        fields=found.fields,
        begun=first[0] if first else Begun(),
    )


def _with_shard(frame: pl.DataFrame, shards: int) -> pl.DataFrame:
    numbers = [shard_of(sample_id, shards) for sample_id in frame["sample_id"]]
    return frame.with_columns(pl.Series("shard", numbers, dtype=pl.Int32))


def no_usable_sample(key: str, path: str | list[str], rejected: pl.DataFrame, noun: str = "sample") -> str:
    """Return the message for an input without a usable sample: the three most frequent reasons, with counts."""
    found = rejects_among(rejected, rejected.height, named=True)
    return "\n".join([f"{key}: no usable {noun} in {path}; correct the data or the path. Rejected:", *found.lines()])


def read_shards(
    config: LongSftConfig, index: InputIndex, shards: Collection[int], progress: Progress = silent
) -> Iterator[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """Yield (shard, raw_long_sft rows sorted by sample_id, rejected rows) for each of `shards`, as it is complete.

    Only files with wanted records are opened, and only their wanted lines are parsed. At most the texts of the wanted
    shards are in memory.

    Raises:
        GateauError: a file no longer holds what the index recorded.
    """
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
