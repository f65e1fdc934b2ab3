"""Define the section about how the checkpoint, and every variant of an experiment, is measured."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateau_dagster.config.base import NOTHING, FeatureSection, Section
from gateau_dagster.config.values import LONGEST, KeyVariable
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.servers import AsAsked, JudgeConfig, ServerConfig

PROMPT, VARIANT = "{prompt}", "{variant}"
_WEB = re.compile(r"^https?://[^/\s?#@]+(/[^\s?#@]*)?$")


def _web_address(text: str) -> str:
    """Return a server's address; raise ValueError for others and for credentials, which are not shown."""
    if not _WEB.match(text):
        raise GateauError(
            "config.server_address",
            "is not the address of a server: give http://host:port/v1, without user, password or query. Name the "
            "environment variable of a key in `key`",
        )
    return text


def _template(text: str) -> str:
    if text not in {"chat", "gateau"} and text.count(PROMPT) != 1:
        raise GateauError(
            "evaluation.prompt",
            f"must be chat, gateau, or a text that contains {PROMPT} once, such as '[INST]{PROMPT}[/INST]'",
        )
    return text


class EngineConfig(ServerConfig):
    """A server that answers instead of this process: any with OpenAI's interface, such as vLLM's."""

    base_url: Annotated[str, AfterValidator(_web_address), NOTHING] = Field(
        description=f"Address of the server; {VARIANT} stands for the variant's name.",
        examples=["http://localhost:8000/v1"],
    )
    model: str = Field(
        default=VARIANT,
        min_length=1,
        description=f"The server's name of the model; {VARIANT} stands for the variant's name.",
    )
    key: Annotated[KeyVariable | None, NOTHING] = Field(
        default=None,
        description="Environment variable that holds the server's key; null: the server needs no key.",
        examples=["VLLM_API_KEY"],
    )
    timeout: Annotated[float, NOTHING] = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds from the first attempt of an answer to its end, retries included.",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | AsAsked | None = Field(
        default="benchmark",
        exclude_if=lambda value: value == "benchmark",
        description="As for temperature.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] | AsAsked | None = Field(
        default="benchmark",
        exclude_if=lambda value: value == "benchmark",
        description="As for temperature.",
    )


class Gate(Section):
    """The limit of an acceptable loss against the reference."""

    benchmark: str = Field(
        description="A benchmark of evaluation.benchmarks that gives each question a value.", examples=["my_benchmark"]
    )
    margin: float = Field(ge=0, description="The largest loss that passes, in the benchmark's unit.", examples=[0.01])
    variant: str | None = Field(
        default=None,
        description="Variants to check; default: all that are compared with the reference.",
        examples=["robust-0.1"],
    )


class EvaluationConfig(Section):
    """The benchmarks that run after training.

    Each benchmark has its own section, by its name, beside these keys; evaluation.registry validates them.
    """

    model_config = ConfigDict(extra="allow")

    enabled: bool = Field(default=True, description="Whether benchmarks run after the training.")
    benchmarks: Annotated[tuple[str, ...], Field(strict=False)] | None = Field(
        default=None, description="Names of benchmarks; default: those that run by default."
    )
    engine: EngineConfig | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The server that answers questions; null: this process answers them.",
    )
    template: Annotated[str, AfterValidator(_template)] | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description=f"The form in which questions are asked: chat, the tokenizer's own where it has one; gateau, as "
        f"conversations are trained on; or a text with {PROMPT}. Default: scoring.template.",
        examples=["[INST]{prompt}[/INST]"],
    )
    input_length: int | None = Field(
        default=None,
        ge=2,
        le=LONGEST,
        exclude_if=lambda value: value is None,
        description="Tokens of a turn, before the template, above which its middle is cut out. Default: "
        "scoring.max_length, less what the longest answer may take. GATEAU's is 64000.",
        examples=[32768],
    )
    thoughts: Literal["drop", "keep"] = Field(
        default="drop",
        exclude_if=lambda value: value == "drop",
        description="How thoughts at the start of an answer, such as <think>…</think>, are treated. drop: metric and "
        "judge do not see them, and thoughts without an end count as an empty answer. keep: answers are "
        "graded whole. Stored answers are always whole.",
    )
    reference: str | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The variant with which others are compared; default: the model before training.",
        examples=["full"],
    )
    gate: Gate | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The check of losses against the reference; default: no loss fails a check.",
    )
    judge: JudgeConfig | None = Field(
        default=None,
        exclude_if=lambda judge: judge is None,
        description="The judge that rates answers, for benchmarks that need one.",
    )

    @property
    def sections(self) -> dict[str, Any]:
        """Return the benchmarks' own sections by name, as given in the file."""
        return self.model_extra or {}


SECTION = FeatureSection(key="evaluation", kind=EvaluationConfig, description="", always=True)


def evaluation_of(config: BaseModel) -> EvaluationConfig:
    """Return the section, which each configuration has."""
    options = SECTION.of(config)
    assert options is not None
    return options
