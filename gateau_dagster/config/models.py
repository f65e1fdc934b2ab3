"""Sections about the homologous models and how they score."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.model_stages import HomologousOptions, PreExperienceOptions, base_of, homologous_base_of

Context = Literal["full", "window"]
Dtype = Literal["float32", "bfloat16", "float16"]
Template = Literal["gateau", "chat"]
Task = Literal["causal", "reward", "embedding"]


class Demonstration(Section):
    """An instruction and how an aligned assistant answers it."""

    instruction: str
    response: str


class ModelConfig(Section):
    """One language model that scores responses; or, by its task, rates or embeds instruction and response."""

    path: str = Field(
        description="Hugging Face folder or hub name; or pre_experienced:<model> or homologous:<model>, models that "
        "the pipeline makes."
    )
    revision: str | None = Field(default=None, description="Hub revision; enters the fingerprint.")
    rope_theta: float | None = Field(default=None, gt=0, description="Replaces the base of the rotary embedding.")
    context: Context = Field(
        default="full", description="'window' lets the model see no more than its own window of the prompt's end."
    )
    window: int | None = Field(default=None, ge=8, description="Tokens; default: the model's max_position_embeddings.")
    trust_remote_code: bool = False
    task: Task = Field(
        default="causal", description="reward: a sequence classification head; embedding: an encoder, mean-pooled."
    )
    preamble: str = Field(default="", description="Text before the demonstrations.")
    demonstrations: list[Demonstration] = Field(
        default=[],
        description="Shown before every scoring prompt, as URIAL aligns a base model in context (three of them).",
    )
    pre_experience: PreExperienceOptions | None = Field(
        default=None, description="How a pre_experienced: model is made; without the section, by its defaults."
    )
    homologous: HomologousOptions | None = Field(default=None, description="How a homologous: model is made.")

    @model_validator(mode="before")
    @classmethod
    def _stage_by_default(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("path"), str):
            return data
        if base_of(data["path"]) is not None:
            return {**data, "pre_experience": data.get("pre_experience") or {}}
        if homologous_base_of(data["path"]) is not None:
            return {**data, "homologous": data.get("homologous") or {}}
        return data

    @property
    def base(self) -> str | None:
        """The model that the pipeline makes this one from; None for a model that is there already."""
        pre_experienced = base_of(self.path)
        return homologous_base_of(self.path) if pre_experienced is None else pre_experienced

    @property
    def is_homologous(self) -> bool:
        """Whether the pipeline makes it by training another model on with long texts."""
        return homologous_base_of(self.path) is not None

    @property
    def opening(self) -> str:
        """The text before a scoring prompt: the preamble and the demonstrations, framed as the prompt is."""
        turns = [f"### Instruction: {one.instruction}\n\n### Response: {one.response}" for one in self.demonstrations]
        return "".join(f"{part}\n\n" for part in [self.preamble, *turns] if part)


class ScoringConfig(Section):
    """How samples are scored. dtype changes results; device, device_map, workers, compile and batch_tokens do not."""

    max_length: int = Field(default=65_536, ge=16, description="Tokens of the prompt; the context loses its left end.")
    segment_length: int = Field(default=128, ge=1, description="L of the paper's section 2.2, in tokens.")
    template: Template = Field(default="gateau", description="'chat' uses the tokenizer's chat template.")
    dtype: Dtype = "bfloat16"
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    device_map: Literal["auto"] | None = Field(
        default=None, description="'auto' spreads one model over all GPUs, for a model larger than one of them."
    )
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="Processes that score side by side, each with its own model; auto: one a GPU."
    )
    compile: bool = Field(default=False, description="torch.compile the model: worth its minutes on a long GPU run.")
    batch_tokens: int = Field(
        default=16_384,
        ge=1,
        description="Tokens of a pass over several prompts; halved where they do not fit.",
    )

    @model_validator(mode="after")
    def _one_way_to_spread(self) -> "ScoringConfig":
        if self.device_map is not None and self.device != "auto":
            raise ValueError(f"device_map: auto takes all GPUs, but device is {self.device}: leave one of them out")
        if self.device_map is not None and self.workers not in {1, "auto"}:
            raise ValueError(
                f"device_map: auto gives all GPUs to one model, but workers is {self.workers}: leave one of them out"
            )
        return self
