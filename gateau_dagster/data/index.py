"""Making the index of the long input: one streaming pass, or none if the files are those of the saved index."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.catalogue import scan
from gateau_dagster.data.forms import to_sample
from gateau_dagster.data.index_file import CODE_VERSION, InputIndex, load_index, save_index
from gateau_dagster.data.sample import shard_of, text_digest
from gateau_dagster.data.sources import SourceFile, input_signature, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.progress import Progress, silent

__all__ = ["InputIndex", "build_index", "cached_index", "index_signature", "no_usable_sample"]


def index_signature(files: list[SourceFile], shards: int) -> str:
    """Tells whether a saved index still holds; reads no content."""
    return text_digest([input_signature(files), str(shards), CODE_VERSION])


def build_index(config: LongSftConfig, folder: Path, progress: Progress = silent) -> InputIndex:
    """One streaming pass over all files of `config.path`, relative to `folder`; progress in bytes.

    Raises GateauError if a file cannot be reached, or if no sample is usable (naming the most frequent reasons).
    """
    return _build(config, resolve_files(config.path, folder), progress)


def cached_index(config: LongSftConfig, folder: Path, cache_dir: Path, progress: Progress = silent) -> InputIndex:
    """The index, from `cache_dir` if it was saved there for the same files, number of shards and code version.

    "The same" means equal addresses, sizes and modification stamps. Raises as `build_index` does.
    """
    files = resolve_files(config.path, folder)
    signature = index_signature(files, config.shards)
    path = cache_dir / f"input-index-{text_digest([str(folder.absolute()), str(config.path)])[:16]}.parquet"
    saved = load_index(path)
    if saved is not None and saved.signature == signature:
        return saved
    index = _build(config, files, progress)
    save_index(index, path)
    return index


def _build(config: LongSftConfig, files: list[SourceFile], progress: Progress) -> InputIndex:
    found = scan(files, to_sample, progress)
    if found.accepted.is_empty():
        raise GateauError(no_usable_sample("long_sft.path", config.path, found.rejected))
    return InputIndex(
        signature=index_signature(files, config.shards),
        shards=config.shards,
        files=tuple(files),
        accepted=_with_shard(found.accepted, config.shards),
        rejected=_with_shard(found.rejected, config.shards),
        records=found.records,
        duplicates_dropped=found.duplicates_dropped,
    )


def _with_shard(frame: pl.DataFrame, shards: int) -> pl.DataFrame:
    numbers = [shard_of(sample_id, shards) for sample_id in frame["sample_id"]]
    return frame.with_columns(pl.Series("shard", numbers, dtype=pl.Int32))


def no_usable_sample(key: str, path: str | list[str], rejected: pl.DataFrame) -> str:
    """The message for an input without a single usable sample: the three most frequent reasons, with counts."""
    kinds = rejected.with_columns(kind=pl.col("reason").str.split(":").list.first())
    top = kinds.group_by("kind").agg(pl.len(), pl.col("reason").first(), pl.col("location").first())
    lines = [
        f"  {count} x {reason} (first at {place})"
        for _, count, reason, place in top.sort(["len", "kind"], descending=[True, False]).head(3).iter_rows()
    ]
    return "\n".join([f"{key}: no usable sample in {path}; correct the data or the path. Rejected:", *lines])
