"""Define the sections about data: inputs, or what the embedded demo builds; the store."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from gateau_dagster.config.base import NOTHING, Affects, Section, Verify
from gateau_dagster.config.values import MOST_SEEDS, InputAddresses, StoreAddress
from gateau_dagster.errors import GateauError

# Paths with this prefix are data of the demo; `demo_path` resolves them.
DEMO_SCHEME = "demo:"
PAIR_FOLDER = "pair"
# Configurations of the pair, which exist before it is built.
SHAPES_FOLDER = "shapes"
# Identifies the pair in fingerprints: raise it when the same seed gives other weights.
RECIPE_VERSION = "3"
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


class DemoConfig(Section):
    """The data that the embedded demo builds before the pipeline starts."""

    affects = Affects(through="the data that the demo builds")

    seed: int = Field(
        default=0, ge=0, lt=MOST_SEEDS, description="Seed of the pair's initialisation and of the samples."
    )
    samples: int = Field(
        default=200, ge=10, le=1_000_000, description="Number of long samples, of five kinds with known dependencies."
    )
    conversations: int = Field(default=60, ge=1, le=1_000_000, description="Short conversations.")


def demo_folder(work_folder: Path, demo: DemoConfig) -> Path:
    """Return the folder of this demo's pair and data; each seed and size has its own."""
    return work_folder / "demo" / f"seed{demo.seed}-{demo.samples}-{demo.conversations}"


def demo_shape(address: str, work_folder: Path, demo: DemoConfig) -> Path:
    """Return the folder of the config.json of `demo:short` or `demo:long`, which exists before the model is built."""
    return demo_folder(work_folder, demo) / SHAPES_FOLDER / address.removeprefix(DEMO_SCHEME)


def demo_path(address: str, work_folder: Path, demo: DemoConfig) -> str:
    """Return the real path behind `demo:short`, `demo:long`, `demo:samples` or `demo:conversations`.

    Raises:
        ValueError: the name after `demo:` is none of these.
    """
    names = {
        "short": f"{PAIR_FOLDER}/short",
        "long": f"{PAIR_FOLDER}/long",
        "samples": "samples.jsonl",
        "conversations": "conversations.jsonl",
    }
    name = address.removeprefix(DEMO_SCHEME)
    if name not in names:
        raise GateauError(
            "demo.address",
            f"{address}: the demo has no such part: write one of {', '.join(DEMO_SCHEME + known for known in names)}",
        )
    return str(demo_folder(work_folder, demo) / names[name])
