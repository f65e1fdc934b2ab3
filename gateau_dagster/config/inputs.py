"""Define the sections about data: inputs, or what the embedded demo builds; the store; the published data set."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from gateau_dagster.config.base import Section, Verify
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
    max_rejected: float | None = Field(
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
    allow_empty_context: bool = Field(
        default=False,
        description="Whether more than half of the samples may lack a context. By default nothing runs then, because "
        "the input's form was probably misread.",
    )


class ShortChatConfig(Section):
    """Short conversations (ShareGPT, UltraChat) mixed into the training data."""

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


# The hub's rules: 96 characters, no -- or .., and no name that ends in .git.
_REPOSITORY = re.compile(
    r"(?!.*(?:--|\.\.)|.*\.git$)(?=.{1,96}$)[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*(?<![.-])", re.ASCII
)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]+")


def _repository(name: str) -> str:
    if not _REPOSITORY.fullmatch(name):
        raise GateauError(
            "publish.repository",
            "is not the name of a data set on the hub: give owner/name, such as my-team/my-selection",
        )
    return name


def _license(name: str) -> str:
    if not _LICENSE.fullmatch(name):
        raise GateauError(
            "publish.license",
            "is not a licence as the hub names it: give an identifier such as cc-by-4.0, apache-2.0 or other",
        )
    return name


Repository = Annotated[str, AfterValidator(_repository)]


class PublishConfig(Section):
    """The data set on the Hugging Face hub that holds the chosen samples, their scores and a data card."""

    repository: Repository = Field(
        description="Owner and name of the data set on the hub; it is created where it does not exist.",
        examples=["my-team/my-selection"],
    )
    variants: dict[str, Repository] = Field(
        default={},
        exclude_if=lambda value: not value,
        description="The data set of each variant whose samples are published, too, by the variant's name. The other "
        "keys apply to all data sets.",
        examples=[{"random": "my-team/random-samples"}],
    )
    license: Annotated[str, AfterValidator(_license)] = Field(
        description="Licence of the data, by the hub's identifier. There is no default: the data's sources decide.",
        examples=["cc-by-4.0"],
    )
    private: bool = Field(
        default=True,
        description="Whether a new data set is private. While this is true, a data set that is already public "
        "is not overwritten.",
    )
    accepted_findings: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]] = Field(
        default=[],
        exclude_if=lambda value: not value,
        description="Hashes of the scanner's findings that are no secrets, from the file that the refusal names. "
        "Samples without another finding are uploaded.",
        examples=[["9f86d081884c7d65"]],
    )
    max_contaminated: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Largest share of the chosen samples that may contain a question of a configured benchmark. Above "
        "it, nothing is uploaded.",
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [name.lower() for name in (self.repository, *self.variants.values())]
        if repeated := next((name for name in names if names.count(name) > 1), ""):
            raise GateauError(
                "config.listed_twice",
                f"variants: two selections have the data set {repeated}: give each its own",
            )
        return self
