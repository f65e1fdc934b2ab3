"""Sections that say where data come from and go to."""

from pydantic import Field

from gateau_dagster.config.base import Section


class StorageConfig(Section):
    """Where the tables live."""

    root: str = Field(default="./gateau_store", min_length=1, description="Local folder or s3://bucket/prefix.")


class LongSftConfig(Section):
    """The long instruction samples to choose from."""

    path: str | list[str] = Field(
        description="Path, glob, s3:// or hf:// address, or Hugging Face data-set name; jsonl, json or parquet, also "
        ".gz/.zst."
    )
    shards: int = Field(default=16, ge=1, le=10_000, description="Partitions; a sample's shard is a hash of its id.")


class ShortChatConfig(Section):
    """Short conversations (ShareGPT, UltraChat) mixed into the training data."""

    path: str | list[str] = Field(description="As for long_sft.path.")
    fraction: float = Field(
        default=1.0, gt=0, le=1, description="Taken from the start of the data; 0.1 is the papers' limited setting."
    )
