"""Define the sections about models, existing ones and those that the pipeline makes, and about scoring."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import NOTHING, Affects, Section, Verify
from gateau_dagster.config.values import (
    LONGEST,
    MOST_EPOCHS,
    MOST_SEEDS,
    MOST_TOKENS,
    AdamBetas,
    InputAddresses,
    ModelAddress,
)
from gateau_dagster.errors import GateauError

PRE_EXPERIENCED = "pre_experienced:"
"""The beginning of a model's path that names another model, from which the pipeline makes this one."""
HOMOLOGOUS = "homologous:"
"""The beginning of a model's path that names another model, whose training on long texts gives this one."""
Context = Literal["full", "window"]
Dtype = Literal["float32", "bfloat16", "float16"]
Template = Literal["gateau", "chat"]
SegmentChoice = Literal["all", "screened"]
Task = Literal["causal", "reward", "embedding"]


def base_of(path: str) -> str | None:
    """Return the model that `pre_experienced:<model>` names; None for any other path."""
    return path.removeprefix(PRE_EXPERIENCED) if path.startswith(PRE_EXPERIENCED) else None


def homologous_base_of(path: str) -> str | None:
    """Return the model that `homologous:<model>` names; None for any other path."""
    return path.removeprefix(HOMOLOGOUS) if path.startswith(HOMOLOGOUS) else None


ExtensionMethod = Literal["theta", "ntk", "yarn", "linear"]


class PositionExtension(Section):
    """The change of the rotary embedding before training that makes positions beyond the model's window usable."""

    method: ExtensionMethod = Field(
        description="theta: another base; ntk: a base scaled for target_length (NTK-aware); yarn; linear: position "
        "interpolation."
    )
    theta: float | None = Field(default=None, gt=0, description="The base, for method theta.", examples=[10000000.0])
    target_length: int | None = Field(
        default=None,
        ge=2,
        le=LONGEST,
        description="Positions to reach, for ntk, yarn and linear, which compare it with the model's window; with "
        "theta optional, the window to declare.",
        examples=[65536],
    )

    @model_validator(mode="after")
    def _complete(self) -> "PositionExtension":
        if self.method == "theta" and self.theta is None:
            raise GateauError(
                "training.positions",
                "method: theta needs the key theta, the base of the rotary embedding: add it, for example theta: "
                "8000000",
            )
        if self.method != "theta" and self.theta is not None:
            raise GateauError(
                "training.positions",
                f"theta: method {self.method} computes the base itself: remove theta, or set method: theta",
            )
        if self.method != "theta" and self.target_length is None:
            raise GateauError(
                "training.positions",
                f"method: {self.method} needs the key target_length, in tokens: add it, for example "
                "target_length: 65536",
            )
        return self


class PreExperienceOptions(Section):
    """The sample of the data that the model is trained on, and how; defaults are Cherry Selection's.

    Settings that adapt training to this machine are only in `training`: max_length, dtype, batch_size, processes,
    sequence_parallel, deepspeed, liger, gradient_checkpointing, every_n_layers, offload_activations, tiled_mlp,
    attention, save_steps; and report_to.
    """

    affects = Affects("checkpoint")

    clusters: Annotated[int, Affects("mix")] = Field(
        default=100, ge=1, le=1_000_000, description="Number of clusters of the prompts' embeddings."
    )
    per_cluster: Annotated[int, Affects("mix")] = Field(
        default=10, ge=1, le=1_000_000, description="Samples of each cluster, at most."
    )
    pick: Annotated[Literal["middle", "random", "nearest"], Affects("mix")] = Field(
        default="middle",
        description="How samples of a cluster are chosen. middle: evenly spread over the middle half of its "
        "perplexities, as in the authors' program. random: a random draw. nearest: those nearest to the "
        "centre.",
    )
    seed: Annotated[int, Affects("mix", "checkpoint")] = Field(
        default=0, ge=0, lt=MOST_SEEDS, description="Seeds k-means, the draw of samples and the order of training."
    )
    epochs: float = Field(default=1.0, gt=0, le=MOST_EPOCHS, description="Passes over these samples.")
    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="Peak of the learning rate.")
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        default="cosine",
        description="How the learning rate falls after the warm-up: to 0 in a line, as a cosine, or not at all.",
    )
    warmup_ratio: float = Field(
        default=0.03, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0 to its peak."
    )
    batch: int = Field(
        default=128,
        ge=1,
        le=1_000_000,
        description=(
            "Sequences of an optimiser step over all processes: a multiple of training.batch_size x training.processes."
        ),
    )


class HomologousOptions(Section):
    """The texts that the model is trained on, every token of them, and how; defaults are ProLong's.

    Source: section 6, and for the optimiser the authors' released `train_64K.sh` in princeton-nlp/ProLong.

    Settings that adapt training to this machine are only in `training`: dtype, batch_size (rows of `length` tokens),
    processes, sequence_parallel, deepspeed, liger, gradient_checkpointing, every_n_layers, offload_activations,
    tiled_mlp, attention, save_steps; and report_to.
    """

    affects = Affects("checkpoint")

    texts: Annotated[InputAddresses, Affects("mix")] = Field(
        description="Long texts (books, code): path, folder, glob, s3:// or hf:// address, or Hugging Face data-set "
        "name. jsonl, json and parquet have a text field; anything else is plain text; .gz and .zst are unpacked. Of a "
        "folder the data files and *.txt are taken.",
        examples=["books/*.txt"],
    )
    short_texts: Annotated[InputAddresses | None, Affects("mix")] = Field(
        default=None,
        description="Short texts that the model should not forget, in the forms of `texts`; null: only long texts.",
        examples=["short/*.jsonl"],
    )
    text_field: Annotated[str, Affects("mix")] = Field(
        default="text",
        min_length=1,
        description="Field of records with the text; `meta.text` is the field `text` of the object `meta`.",
    )
    join_by: Annotated[str | None, Affects("mix")] = Field(
        default=None,
        min_length=1,
        exclude_if=lambda value: value is None,
        description="Field of the records of `texts` that names the whole that a text is a part of. The parts are "
        "joined into one text, as ProLong does with the files of a code repository; null: each record is a text.",
        examples=["repo_name"],
    )
    long_share: Annotated[float, Affects("mix")] = Field(
        default=0.6,
        gt=0,
        le=1,
        description="Share of long texts in all tokens, if there are short texts (ProLong: 60 %).",
    )
    length: Annotated[int, Affects("mix", "checkpoint")] = Field(
        default=65_536,
        ge=16,
        le=LONGEST,
        description="Tokens of a row; a longer text is cut into sequences of this length.",
    )
    least_tokens: Annotated[int, Affects("mix")] = Field(
        default=0,
        ge=0,
        le=LONGEST,
        description="Long texts with fewer tokens are excluded; ProLong excludes those below `length`.",
    )
    tokens: Annotated[int | None, Affects("mix")] = Field(
        default=None,
        ge=16,
        le=MOST_TOKENS,
        description="Number of training tokens. More texts than this are sampled at random, fewer are repeated. "
        "Default: all tokens that the texts have in these shares, without repetition.",
        examples=[1000000000],
    )
    positions: PositionExtension | None = Field(
        default=None,
        description="Extends the model's own rotary embedding (its rope_theta in `models` does not count); default: "
        "method ntk, which raises the base, for `length` positions.",
    )
    tokens_per_step: int = Field(
        default=4_194_304,
        ge=16,
        le=MOST_TOKENS,
        description="Capacity of all rows of an optimiser step: a multiple of length x training.batch_size x "
        "training.processes.",
    )
    learning_rate: float = Field(default=1e-5, gt=0, le=1, description="Peak of the learning rate.")
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        default="cosine",
        description="How the learning rate falls after the warm-up: to 0 in a line, as a cosine, or not at all.",
    )
    min_learning_rate_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="Final learning rate of the cosine schedule, as a part of the highest one."
    )
    warmup_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0 to its peak."
    )
    adam_betas: AdamBetas = Field(default=(0.9, 0.95), description="Both decay rates of AdamW.")
    weight_decay: float = Field(default=0.1, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Norm to which gradients are clipped.")
    loss: Literal["token", "exact"] = Field(
        default="token",
        description="token: all tokens count the same. exact: as training.loss, with a quarter of `length` as the long "
        "prefix (EXACT).",
        exclude_if="token".__eq__,  # a configuration without it keeps its earlier dump
    )
    seed: Annotated[int, Affects("mix", "checkpoint")] = Field(
        default=0, ge=0, lt=MOST_SEEDS, description="Seeds the draw of texts and the order of training."
    )

    @property
    def extension(self) -> PositionExtension:
        """Return the extension of the rotary embedding; the window that the model then declares is `length` or more."""
        if self.positions is None:
            return PositionExtension(method="ntk", target_length=self.length)
        if self.positions.target_length is None:
            return self.positions.model_copy(update={"target_length": self.length})
        return self.positions


class Demonstration(Section):
    """An instruction and the answer of an aligned assistant."""

    instruction: str = Field(description="What the demonstration asks.", examples=["Name the capital of France."])
    response: str = Field(description="The answer that it shows.", examples=["Paris."])


class ModelConfig(Section):
    """A language model that scores responses; or, by its task, rates or embeds instruction and response."""

    affects = Affects("rows")

    path: ModelAddress = Field(
        description="Hugging Face folder or hub name; or pre_experienced:<model> or homologous:<model>, models that "
        "the pipeline makes.",
        examples=["HuggingFaceTB/SmolLM2-360M"],
    )
    revision: str | None = Field(
        default=None, pattern=r"^[^\x00-\x1f]+$", description="Hub revision; enters the fingerprint.", examples=["main"]
    )
    rope_theta: float | None = Field(
        default=None, gt=0, description="Replaces the base of the rotary embedding.", examples=[2000000.0]
    )
    context: Context = Field(
        default="full",
        description="window: the model sees at most the tokens of its window. The context of a longer prompt "
        "loses its start; frame, instruction and response stay.",
    )
    window: int | None = Field(
        default=None,
        ge=8,
        le=LONGEST,
        description="Tokens; default: the model's max_position_embeddings.",
        examples=[1024],
    )
    verify: Verify = Field(
        default="signature",
        description="Same as long_sft.verify, for the folder's files, or for the texts of a homologous: model.",
    )
    trust_remote_code: Annotated[bool, Affects("report", "published")] = Field(
        default=False, description="Whether Python code of the model's repository may run here."
    )
    task: Task = Field(
        default="causal", description="reward: a sequence classification head; embedding: an encoder, mean-pooled."
    )
    preamble: str = Field(
        default="", description="Text before the demonstrations.", examples=["You are a helpful assistant."]
    )
    demonstrations: list[Demonstration] = Field(
        default=[],
        description="Demonstrations before every scoring prompt: URIAL aligns a base model with three of them.",
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
        """Return the model that the pipeline makes this one from; None for an existing model."""
        pre_experienced = base_of(self.path)
        return homologous_base_of(self.path) if pre_experienced is None else pre_experienced

    @property
    def is_homologous(self) -> bool:
        """Return whether the pipeline makes the model by continued training of another one on long texts."""
        return homologous_base_of(self.path) is not None

    @property
    def opening(self) -> str:
        """Return the text before a scoring prompt: the preamble and the demonstrations, framed as the prompt is."""
        turns = [f"### Instruction: {one.instruction}\n\n### Response: {one.response}" for one in self.demonstrations]
        return "".join(f"{part}\n\n" for part in [self.preamble, *turns] if part)


class ScoringConfig(Section):
    """The scoring of samples."""

    affects = Affects("rows")

    max_length: int = Field(
        default=65_536, ge=16, le=LONGEST, description="Tokens of the prompt; the context loses its left end."
    )
    segment_length: int = Field(
        default=128, ge=1, le=LONGEST, description="Tokens of a segment: L of the paper's section 2.2."
    )
    segments: SegmentChoice = Field(
        default="all",
        description="all: theta_B reads each segment alone. screened: only promising ones, for the cost of one pass "
        "over the prompt. This suffices for preset robust and far_gain; `cam` then has no CAS.",
        exclude_if="all".__eq__,  # a configuration without it keeps its earlier dump
    )
    template: Template = Field(
        default="gateau",
        description="Form in which models see samples. gateau: plain text, the form of the paper, for base models. "
        "chat: the tokenizer's chat template, for instruct models; a checkpoint is trained in the same form. Both rank "
        "equally well, as far as measured.",
    )
    dtype: Dtype = Field(default="bfloat16", description="Precision of the weights; it changes scores.")
    device: Annotated[str, NOTHING] = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    device_map: Annotated[Literal["auto"] | None, NOTHING] = Field(
        default=None,
        description="'auto' spreads one model over all GPUs, for a model larger than one of them.",
        examples=["auto"],
    )
    workers: Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], NOTHING] = Field(
        default="auto", description="Number of parallel scoring processes, each with its own model; auto: one per GPU."
    )
    compile: Annotated[bool, NOTHING] = Field(
        default=False,
        description="Compile the model with torch.compile, which takes minutes and pays off in long GPU runs.",
    )
    attention: Annotated[Literal["auto", "fa3"], NOTHING] = Field(
        default="auto",
        exclude_if="auto".__eq__,
        description="fa3: FlashAttention 3 in place of torch's own kernel, on a Hopper GPU where flash-attn-3 is "
        "installed. Scores change by rounding only.",
        examples=["fa3"],
    )
    batch_tokens: Annotated[int, NOTHING] = Field(
        default=16_384,
        ge=1,
        le=LONGEST,
        description="Tokens of a pass over several prompts; halved if they do not fit into memory.",
    )

    @model_validator(mode="after")
    def _one_way_to_spread(self) -> "ScoringConfig":
        if self.device_map is not None and self.device != "auto":
            raise GateauError(
                "scoring.device_map",
                f"device_map: auto uses all GPUs, but device is {self.device}: remove one of the two keys",
            )
        if self.device_map is not None and self.workers not in {1, "auto"}:
            raise GateauError(
                "scoring.device_map",
                f"device_map: auto gives all GPUs to one model, but workers is {self.workers}: remove one of the "
                "two keys",
            )
        return self
