"""Define the section about synthetic long samples: their documents, their generator and their checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, Field, model_validator

from gateau_dagster.config.base import FeatureSection, Section, Verify
from gateau_dagster.config.values import LONGEST, MOST_SEEDS, InputAddresses
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.servers import AskedConfig

if TYPE_CHECKING:
    from gateau_dagster.config.schema import KernelConfig

SYNTHETIC_SAMPLES = "synthetic_long_sft"
"""The asset with the accepted samples."""
VERIFIED, UNVERIFIED = "synthetic_verified", "synthetic_unverified"
Kind = Literal["two_passages", "compare", "count", "order", "summary", "self"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SynthesisPreset = Literal["verified", "prolong"]
Agreement = Literal["exact", "judge"]
Key = TypeVar("Key", int, Kind)


def _shares(found: dict[Key, float]) -> dict[Key, float]:
    """Return shares divided by their sum. Raises GateauError without a positive one."""
    total = math.fsum(found.values())  # whatever their order
    if not total:
        raise GateauError("synthesis.shares", "names no share above 0: give one, such as 1.0")
    return {name: share / total for name, share in found.items()}


Share = Annotated[float, Field(ge=0)]
Length = Annotated[int, Field(ge=64, le=LONGEST)]


class GeneratorConfig(AskedConfig):
    """`synthesis.generator`: the model behind an OpenAI-compatible server that writes the questions.

    Every reply is kept. The model's name alone identifies the generator, as for the judge.
    """

    place = "synthesis.generator"
    replies_folder = "_generator_replies"
    doing = "generating"
    less = "generate less: lower synthesis.count"
    limit_key = "max_tokens"

    max_tokens: int = Field(default=1024, ge=16, le=1_000_000, description="Greatest length of a reply, in tokens.")
    window: int = Field(
        default=32_768,
        ge=256,
        le=LONGEST,
        description="Tokens of a prompt and its reply together. Kind self shows at most so much of a document, less "
        "max_tokens.",
    )
    opening: str = Field(
        default="\n\nUser:",
        description="The opening of a user turn, which kind self puts after the document. The server continues this "
        "text at /completions.",
    )

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.max_tokens >= self.window:
            raise GateauError(
                "evaluation.judge",
                f"max_tokens ({self.max_tokens:,}) leaves a prompt no room in window "
                f"({self.window:,}): lower max_tokens, or raise window if the generator reads more",
            )
        return self


class SynthesisChecksConfig(Section):
    """The thresholds of the checks; null leaves a check out.

    A stricter threshold asks no server. A looser one asks only about candidates that newly come to a check.
    A gain is the rise of the answer's token probabilities under theta_B, from 0 to 1.
    """

    closed_book: float | None = Field(
        default=0.2, ge=0, le=1, description="Least gain of the passages over the question alone."
    )
    near_only: float | None = Field(
        default=0.2, ge=0, le=1, description="Least gain of the passages over the end of the context."
    )
    near_tokens: int | None = Field(
        default=None,
        ge=1,
        le=LONGEST,
        description="Tokens of that end; null: the window of models.short, else 4096. It is at most a quarter of the "
        "context.",
        examples=[2048],
    )
    needed: float | None = Field(
        default=0.2, ge=0, le=1, description="Least gain of all passages over all but one, for each passage."
    )
    robust: float | None = Field(
        default=0.5, ge=0, le=1, description="Greatest gain of the passages over the whole context."
    )
    agreement: Agreement | None = Field(
        default="exact",
        description="The comparison with a second answer from the passages. exact: equal words, of no summary. judge: "
        "`evaluation.judge` compares the two.",
    )
    ask_without_context: bool = Field(
        default=False,
        description="Whether the generator, too, must fail twice to answer the question without the passages.",
    )


class SynthesisConfig(Section):
    """Long samples that a generator writes about documents, and that are checked to need their context."""

    documents: InputAddresses = Field(
        description="Paths of the documents, in the forms of `long_sft.path`; a .txt file is one document.",
        examples=["books/*.txt"],
    )
    text_field: str = Field(default="text", min_length=1, description="The field of a record that holds the text.")
    verify: Verify = Field(default="signature", description="As for long_sft.verify.")
    shards: int = Field(
        default=16,
        ge=1,
        le=10_000,
        description="Partitions of the documents. A document's shard is a hash of its text, so a new one changes one.",
    )
    preset: SynthesisPreset = Field(
        default="verified",
        description="verified: the kinds and checks below. prolong: ProLong's recipe, one chunk per question, 40 % "
        "question answering, 30 % retrieval-augmented, 30 % recursive summaries, and no check.",
    )
    count: int = Field(
        ge=1,
        le=10_000_000,
        description="Candidates, spread evenly over the shards. The checks refuse some of them.",
        examples=[10_000],
    )
    lengths: Annotated[dict[Length, Share], AfterValidator(_shares)] = Field(
        default={16_384: 1.0},
        min_length=1,
        description="Shares of the candidates by the greatest length of their context, in tokens of models.long.",
        examples=[{4096: 0.25, 16_384: 0.5, 65_536: 0.25}],
    )
    kinds: Annotated[dict[Kind, Share], AfterValidator(_shares)] = Field(
        default={"two_passages": 0.4, "compare": 0.2, "count": 0.1, "order": 0.1, "summary": 0.1, "self": 0.1},
        min_length=1,
        description="Shares of the candidates by the kind of question, for preset verified.",
        examples=[{"two_passages": 0.5, "compare": 0.5}],
    )
    passage_words: int = Field(default=100, ge=8, le=10_000, description="Words of a passage, about.")
    generator: GeneratorConfig
    checks: SynthesisChecksConfig = SynthesisChecksConfig()
    seed: int = Field(default=0, ge=0, lt=MOST_SEEDS, description="Seed of the passages and contexts.")

    @model_validator(mode="after")
    def _no_checks(self) -> Self:
        given = {"checks", "kinds"} & self.model_fields_set
        if self.preset == "prolong" and given:
            raise GateauError(
                "synthesis.preset",
                f"{min(given)}: preset prolong has its own kinds and no checks: remove the key, or the preset",
            )
        return self

    @property
    def is_verified(self) -> bool:
        """Return whether the candidates are checked."""
        return self.preset == "verified"

    @property
    def compares_by_judge(self) -> bool:
        """Return whether `evaluation.judge` compares second answers."""
        return self.is_verified and self.checks.agreement == "judge"


def _check(config: KernelConfig) -> None:
    """Check that `synthesis` has theta_B and, where asked for, a judge; and that its samples can be read."""
    options, reads = SECTION.of(config), SECTION.makes in config.made_inputs
    if options is None:
        if reads:
            raise GateauError(
                "synthesis.missing",
                f"long_sft.path: {SECTION.scheme} needs the section synthesis: add it, or change the path",
            )
        return
    long = config.models.get("long")
    if long is None or long.task != "causal":
        raise GateauError(
            "models.missing",
            "synthesis: counts tokens with models.long, and checks the samples with it: add this model",
        )
    if reads and config.pre_experienced_models:
        raise GateauError(
            "synthesis.circle",
            f"long_sft.path: {SECTION.scheme} holds samples that models.long checks, but "
            f"models.{config.pre_experienced_models[0]} is trained on the samples: name a model that exists, or "
            "remove the address",
        )
    if options.compares_by_judge and evaluation_of(config).judge is None:
        raise GateauError(
            "synthesis.judge", "synthesis.checks.agreement: judge needs evaluation.judge: add it, or set exact"
        )


SECTION = FeatureSection(
    key="synthesis",
    kind=SynthesisConfig,
    description="Synthetic long samples, `synthetic_long_sft`. long_sft.path reads the accepted ones as `synthetic:`. "
    "null: none.",
    scheme="synthetic:",
    makes=SYNTHETIC_SAMPLES,
    check=_check,
    variants={
        VERIFIED: "the accepted samples of `synthesis`.",
        UNVERIFIED: "the same number of candidates, accepted or not.",
    },
)


def section_of(config: BaseModel) -> SynthesisConfig:
    """Return the section; the assets of synthesis exist only with it."""
    options = SECTION.of(config)
    assert options is not None
    return options
