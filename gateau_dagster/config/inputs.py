"""Define the sections about data: the inputs and the store."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from gateau_dagster.config.base import NOTHING, Affects, Section, Verify
from gateau_dagster.config.values import InputAddresses, StoreAddress

# The share of rejected samples above which a check warns: a tenth of the data exceeds stray bad lines.
NOTABLE_REJECTS = 0.1
# The share of samples without a context above which nothing runs, unless `allow_empty_context` is set.
MOST_EMPTY_CONTEXTS = 0.5
Turns: TypeAlias = Literal["last", "each", "observations"]
NonText: TypeAlias = Literal["reject", "drop"]


class StorageConfig(Section):
    """The place of the tables."""

    affects = NOTHING

    root: StoreAddress = Field(default="./gateau_store", description="Local folder or s3://bucket/prefix.")


class LongSftConfig(Section):
    """The long instruction samples to choose from."""

    path: InputAddresses = Field(
        description="Path, glob, s3:// or hf:// address, or Hugging Face data-set name; jsonl, json or parquet, also "
        ".gz/.zst.",
        examples=["data/long*.jsonl"],
    )
    verify: Verify = Field(
        default="signature",
        description="How a changed file is noticed. signature: by its size and modification time; content: by reading "
        "all of it, each time. Files on S3 and the hub are known by a hash of their content anyway.",
    )
    shards: int = Field(default=16, ge=1, le=10_000, description="Partitions; a sample's shard is a hash of its id.")
    max_rejected: Annotated[float | None, Affects("published")] = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of the records that may be rejected; above it nothing runs. Unset, a check warns above 0.1.",
        examples=[0.05],
    )
    ignore: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Fields of records and turns that are left out and counted, where they would reject their record, "
        "such as tools or turn.reasoning_content; none by default.",
        examples=[["reward", "notes"]],
    )
    turns: Turns = Field(
        default="last",
        description="The samples of a conversation with several turns. last: its final answer, after the other turns. "
        "each: every assistant turn, after those before it. observations: its final answer to its first request, with "
        "the tools' results as context.",
        exclude_if="last".__eq__,  # a configuration without it keeps its earlier dump
    )
    parts: NonText = Field(
        default="reject",
        description="Parts of a turn that are not text, such as images and reasoning. reject: the record is rejected. "
        "drop: they are left out and counted; the record's text is kept.",
        exclude_if="reject".__eq__,
    )
    allow_empty_context: Annotated[bool, Affects("report", "published")] = Field(
        default=False,
        description="Whether more than half of the samples may lack a context. By default nothing runs then, because "
        "the input's form was probably misread.",
    )


class ShortChatConfig(Section):
    """Short conversations (ShareGPT, UltraChat) mixed into the training data."""

    affects = Affects("mix")

    path: InputAddresses = Field(description="Same forms as long_sft.path.", examples=["data/sharegpt.json"])
    fraction: float = Field(
        default=1.0, gt=0, le=1, description="Taken from the start of the data; 0.1 is the papers' limited setting."
    )
    verify: Verify = Field(default="signature", description="As for long_sft.verify.")
    ignore: tuple[str, ...] = Field(
        default=(), strict=False, description="As for long_sft.ignore.", examples=[["reward", "notes"]]
    )
