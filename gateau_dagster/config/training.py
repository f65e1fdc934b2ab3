"""Define the section about supervised fine-tuning, and `training.preset`: the hyper-parameters of the papers by name.

Keys that a file sets override the preset. Numbers that a paper does not give are this product's defaults. "Sequences a
step" are counted over all ranks, so that a recipe stays the same on one GPU and on eight.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from gateau_dagster.config.base import NOTHING, Affects, Section
from gateau_dagster.config.models import Dtype, PositionExtension
from gateau_dagster.config.values import LONGEST, MOST_EPOCHS, MOST_ROWS, MOST_SEEDS, MOST_TOKENS, AdamBetas, AnyPath
from gateau_dagster.errors import GateauError

TrainedTurns = Literal["all", "last"]
Recipe = Literal["gateau-7b", "gateau-7b-scripts", "skipalign", "prolong-sft"]

_ADAMW = {"adam_betas": (0.9, 0.95)}

# Si et al. 2024, "Devices and Hyperparameters": 8 GPUs, batch size 8, 12 accumulation steps, 2 epochs, 64k tokens.
_GATEAU_7B = {
    **_ADAMW,
    "learning_rate": 2e-5,
    "epochs": 2.0,
    "sequences_per_step": 96,
    "max_length": 65_536,
    "truncation": "right",
    "dtype": "bfloat16",
    "deepspeed": "zero3_offload",
    "gradient_checkpointing": True,
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "gateau-7b": _GATEAU_7B,
    # Settings that the paper omits are those of the authors' released `train/scripts/*.sh` (S1s-Z/GATEAU): cosine over
    # a warm-up of 3 %, no decay, sequences of similar length side by side. With one sequence per GPU and pass, their
    # mean over passes gives every sequence the same weight.
    "gateau-7b-scripts": {
        **_GATEAU_7B,
        "scheduler": "cosine",
        "warmup_ratio": 0.03,
        "weight_decay": 0.0,
        "batching": "sorted",
        "loss": "sequence",
    },
    # Wu et al. 2024, sections 4 and A: Tülu V2 cut to 4,096 tokens, L 100k, p 0.5, Skip-Outer, no weight decay.
    "skipalign": {
        "learning_rate": 1e-5,
        "epochs": 2.0,
        "weight_decay": 0.0,
        "scheduler": "linear",
        "warmup_ratio": 0.03,
        "max_length": 4_096,
        "truncation": "right",
        "dtype": "bfloat16",
        "deepspeed": "zero3",
        "skip": {"strategy": "outer", "length": 100_000, "probability": 0.5},
    },
    # Gao et al. 2024, section 6 and B.3: 64k-token rows, document masks, mean over tokens, balanced ranks. Rates, betas
    # and decay as in the authors' released `train_sft.sh` (princeton-nlp/ProLong).
    "prolong-sft": {
        **_ADAMW,
        "learning_rate": 2e-5,
        "min_learning_rate_ratio": 0.1,
        "weight_decay": 0.1,
        "scheduler": "cosine",
        "warmup_ratio": 0.05,
        "epochs": 1.0,
        "batching": "packed",
        "pack_length": 65_536,
        "tokens_per_step": 4_194_304,
        "balanced": True,
        "loss": "token",
        "max_length": 65_536,
        "truncation": "right",
        "dtype": "bfloat16",
        "deepspeed": "zero3",
        "gradient_checkpointing": True,
    },
}
assert set(RECIPES) == set(get_args(Recipe))


def with_recipe(given: Any) -> Any:
    """Return the section's keys over those of its preset; other values and presets are left to the validation."""
    name = given.get("preset") if isinstance(given, Mapping) else None
    return {**RECIPES[name], **given} if isinstance(name, str) and name in RECIPES else given


WEIGHING = {"longce": "training.longce", "far_gain": "training.far_gain"}
"""The losses whose weights of tokens come from tables of the models and are in the mix, with their error codes."""

ZeroPreset = Literal["zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"]


Weight = Annotated[float, Field(ge=0, le=1000)]


class MixConfig(Section):
    """The composition of the mix, after the selection of samples and conversations.

    GATEAU's 10, 30, 50 and 100 % are parts of the data, `selection.fraction`. Its real-world setting is
    `short_chat.fraction` 1.0, and its limited short instruction data 0.1.
    """

    affects = Affects("mix")

    long_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Part of the selected samples to train on, the best-ranked ones, for a smaller run with the "
        "same selection. Half a sample counts as one.",
    )
    without_long: bool = Field(
        default=False, description="Short conversations alone: the papers' baseline without long samples."
    )
    weights: dict[str, Weight] = Field(
        default={},
        description="How often a source's samples occur in an epoch: 0.5 takes half of them, 2 each twice, 0 none. "
        "Names are `source` of the long samples and file names of the short ones. Default: 1.",
        examples=[{"sharegpt": 2.0, "ultrachat": 1.0}],
    )


class SkipConfig(Section):
    """SkipAlign (Wu et al. 2024, Eq. 2-4): positions that skip, so that short samples hold long distances."""

    strategy: Literal["all", "inner", "outer"] = Field(
        default="outer",
        description="Possible places of a skip: before every block but the first, before responses, or before the "
        "instructions of later turns.",
    )
    length: int = Field(default=100_000, ge=2, le=LONGEST, description="L: upper bound of every position.")
    probability: float = Field(
        default=0.5, ge=0, le=1, description="p: probability of a skip at each possible place; 0: no skip."
    )


class LoraConfig(Section):
    """Low-rank adapters (peft), merged into the weights when the training is over."""

    rank: int = Field(default=16, ge=1, le=65_536, description="Rank of the two factors of an update.")
    alpha: float = Field(default=32, gt=0, description="The update is scaled by alpha / rank.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout before an adapter.")
    modules: list[str] | Literal["all-linear"] = Field(
        default="all-linear", description="Names of the layers that get an adapter; all-linear leaves out the head."
    )

    @field_validator("modules")
    @classmethod
    def _some(cls, modules: list[str] | str) -> list[str] | str:
        if isinstance(modules, list) and not all(modules):
            raise GateauError("training.lora", "has an empty name: name a layer, such as q_proj")
        if not modules:
            raise GateauError("training.lora", "is an empty list, so nothing is trained: name layers, or all-linear")
        return modules


class TrainingConfig(Section):
    """Hyper-parameters of the checkpoint; defaults are the paper's (appendix A) where it gives them."""

    affects = Affects("checkpoint")

    enabled: Annotated[bool, Affects("report", through="the results that exist")] = Field(
        default=True, description="Whether a checkpoint is trained; false: selection only."
    )
    preset: Annotated[Recipe | None, Affects(through="the keys that it sets")] = Field(
        default=None,
        description="A paper's hyper-parameters; other keys of this section override them.",
        examples=["gateau-7b"],
    )
    model: Annotated[str, Affects("mix", "checkpoint")] = Field(
        default="long", description="The model of `models` that is fine-tuned."
    )
    max_length: Annotated[int, Affects("mix", "checkpoint")] = Field(
        default=65_536,
        ge=16,
        le=LONGEST,
        description="Tokens of a sequence; a longer one is cut, see truncation.",
    )
    truncation: Annotated[Literal["context", "right"], Affects("mix")] = Field(
        default="context",
        description="How a long sample above max_length is truncated. context: at the left end of its context, so "
        "that its answer stays. right: at its end, as in the papers; a sample without any answer left is "
        "rejected. Conversations always lose their end.",
    )
    trained_turns: Annotated[TrainedTurns | None, Affects("mix")] = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="Assistant turns with loss in a long sample of several exchanges, under scoring.template: chat. "
        "all: every turn. last: the response only. Default: all; last with long_sft.turns: each. The samples of `each` "
        "repeat earlier turns without loss, whichever is set.",
        examples=["last"],
    )
    trim: Annotated[bool, Affects("mix")] = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="Whether long samples that clearly need no far text are trained on the end of their contexts only: "
        "the part that models.short was shown. They are those of the lowest scores among near and closed-book samples; "
        "15 % of them stay whole. It needs models.short with context: window. A token budget of `selection` then "
        "counts the tokens that are left, so more samples fit.",
        examples=[True],
    )
    mix: MixConfig = Field(default=MixConfig(), description="What the mix consists of.")
    epochs: float = Field(default=2.0, gt=0, le=MOST_EPOCHS, description="Passes over the mix.")
    max_steps: int | None = Field(
        default=None, ge=1, le=MOST_ROWS, description="Optimiser steps; overrides epochs.", examples=[1000]
    )
    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="Peak of the learning rate.")
    adam_betas: AdamBetas = Field(default=(0.9, 0.95), description="Both decay rates of AdamW.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Norm to which gradients are clipped.")
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        default="linear",
        description="How the learning rate falls after the warm-up: to 0 in a line, as a cosine, or not at all.",
    )
    min_learning_rate_ratio: float = Field(
        default=0.0, ge=0, lt=1, description="Final learning rate of the cosine schedule, as a part of the highest one."
    )
    warmup_ratio: float = Field(
        default=0.03,
        ge=0,
        lt=1,
        description="Share of the steps in which the learning rate rises from 0 to its peak.",
    )
    batching: Literal["padded", "sorted", "packed", "concatenated"] = Field(
        default="padded",
        description="padded: sequences as they come. sorted: sequences of similar length together (LongAlign). packed: "
        "whole sequences side by side in rows of pack_length tokens, without padding and without seeing one another. "
        "concatenated: the same rows, each as one long sequence, over which attention and positions run (LongChat; "
        "SkipAlign's baseline PackedSFT-k, where k is pack_length).",
    )
    batch_size: int = Field(
        default=1, ge=1, le=MOST_ROWS, description="Rows per process and pass: sequences, or packed rows."
    )
    gradient_accumulation: int = Field(
        default=12, ge=1, le=MOST_ROWS, description="Number of passes per optimiser step."
    )
    sequences_per_step: Annotated[int | None, Affects(through="gradient_accumulation")] = Field(
        default=None,
        ge=1,
        le=MOST_ROWS,
        description="Sequences per optimiser step, over all ranks; decides gradient_accumulation. Not for packed rows.",
        examples=[64],
    )
    tokens_per_step: Annotated[int | None, Affects(through="gradient_accumulation")] = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="Capacity of all packed rows of a step; decides gradient_accumulation.",
        examples=[4194304],
    )
    pack_length: int | None = Field(
        default=None,
        ge=16,
        le=LONGEST,
        description="Tokens of a packed row; max_length unless given, and not below it.",
        examples=[65536],
    )
    balanced: bool = Field(
        default=True,
        description="Processes that work at the same time get rows of similar cost (sum of squared lengths, ProLong). "
        "Which sequences make up a step is not changed.",
    )
    loss: Annotated[Literal["token", "sequence", "longce", "far_gain", "exact"], Affects("mix", "checkpoint")] = Field(
        default="token",
        description="token: the mean over all trained tokens of a step. sequence: every sequence counts the same "
        "(LongAlign's loss weighting). longce: as token, but response tokens of long samples count more if models."
        "long finds them likelier than models.short does (LongCE, see longce_gamma). far_gain: response tokens of long "
        "samples count more if a far segment makes them likelier than near text does, with a mean weight of 1 in each "
        "step. exact: as token, but a token counts more if at least a quarter of a row's tokens precede it in its own "
        "sequence. Rare lengths count most (EXACT).",
    )
    longce_gamma: Annotated[float, Affects("mix")] = Field(
        default=5.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="Greatest weight of a token. With loss: longce, the weight is min(p_long / p_short, this). With "
        "loss: far_gain, it is 1 + (this - 1) x (p_far - p_near), before weights are divided by their mean; at least "
        "1 then.",
    )
    positions: PositionExtension | None = Field(
        default=None, description="Extends the rotary embedding before the training, beyond the model's window."
    )
    skip: SkipConfig | None = Field(default=None, description="Skipped positions (SkipAlign).")
    chunked_loss: bool = Field(
        default=True,
        description="The loss without the logits of a whole row. False: the model's own loss, for models whose "
        "logits are computed differently.",
    )
    lora: LoraConfig | None = Field(default=None, description="Train low-rank adapters instead of all weights.")
    sequence_parallel: int = Field(
        default=1,
        ge=1,
        description="Processes that share each row (Ulysses). The number divides `processes` and the model's attention "
        "heads. It needs DeepSpeed.",
    )
    liger: bool = Field(
        default=False,
        description="Liger's kernels for norms, rotary embedding and feed-forward layers, on a GPU, where the package "
        "liger-kernel is installed; the loss stays this product's own.",
    )
    report_to: Annotated[list[Literal["wandb", "mlflow", "tensorboard"]], NOTHING] = Field(
        default_factory=list,
        description="Other destinations of the curves; their packages must be installed.",
        examples=[["wandb"]],
    )
    report_data: Annotated[bool, NOTHING] = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="Whether W&B and MLflow of report_to also receive the training's data: the chosen samples and the "
        "training mix, as the input of the training's run. They are not scanned for secrets.",
        examples=[True],
    )
    dtype: Dtype = Field(default="bfloat16", description="Precision of the forward and backward passes.")
    gradient_checkpointing: Annotated[bool, NOTHING] = Field(
        default=False, description="Recompute activations in the backward pass: less memory, about a third more time."
    )
    every_n_layers: Annotated[int, NOTHING] = Field(
        default=1,
        ge=1,
        le=1000,
        exclude_if=lambda value: value == 1,
        description="With gradient_checkpointing, only every n-th layer is recomputed. The others keep their "
        "activations: more memory, less time. It changes no result.",
        examples=[4],
    )
    offload_activations: Annotated[Literal["auto", "on", "off"], NOTHING] = Field(
        default="auto",
        exclude_if=lambda value: value == "auto",
        description="Where each layer's input waits for the backward pass, with gradient_checkpointing. on: in the "
        "host's memory, layers x tokens x hidden size numbers. off: on the GPU. auto: in the host's memory only if a "
        "pass would not fit otherwise. It changes no result.",
        examples=["on"],
    )
    tiled_mlp: Annotated[Literal["auto", "off"] | Annotated[int, Field(ge=1, le=LONGEST)], NOTHING] = Field(
        default="auto",
        exclude_if=lambda value: value == "auto",
        description="Tokens that a feed-forward layer computes at a time, instead of a whole row: less memory, but the "
        "layer is computed once more. auto: tiles of 32,768 tokens if a pass would not fit otherwise. off: never. "
        "Losses and gradients change by rounding only.",
        examples=[32768],
    )
    gpu_memory: Annotated[float | None, NOTHING] = Field(
        default=None,
        gt=0,
        le=100_000,
        exclude_if=lambda value: value is None,
        description="GiB of each GPU that trains, for `gateau plan` on another machine. Training that does not fit "
        "is refused. Default: the GPU of this machine, if the training runs here.",
        examples=[80],
    )
    attention: Annotated[Literal["auto", "fa3"], NOTHING] = Field(
        default="auto",
        exclude_if="auto".__eq__,
        description="fa3: FlashAttention 3 in place of torch's own kernel, on a Hopper GPU where flash-attn-3 is "
        "installed. Losses and gradients change by rounding only.",
        examples=["fa3"],
    )
    seed: Annotated[int, Affects("mix", "checkpoint")] = Field(
        default=42, ge=0, lt=MOST_SEEDS, description="Seeds the order of the data and dropout."
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="Number of ranks on all machines; several on this machine are started by torchrun.",
    )
    launcher: Annotated[list[str] | None, NOTHING] = Field(
        default=None,
        description="Command that starts the ranks, on several machines or by another launcher (torchrun, accelerate, "
        "srun). It is followed by -m, module and specification, or has {module} and {spec} where it wants them; see "
        "examples/multi_node. The folder beside the configuration has to be on a disk that all machines see.",
        examples=[["srun", "torchrun", "--nproc-per-node", "8"]],
    )
    hostfile: Annotated[AnyPath | None, NOTHING] = Field(
        default=None,
        description="DeepSpeed's hostfile: machines and their slots, whose sum is `processes`.",
        examples=["hostfile"],
    )
    deepspeed: ZeroPreset | AnyPath | dict[str, Any] | None = Field(
        default=None,
        description="zero1, zero2, zero3, zero2_offload, zero3_offload, a path to a DeepSpeed JSON file, or its "
        "content. Settings that `training` decides must be absent, auto or equal in it. AdamW and the "
        "schedule are the Trainer's.",
        examples=["zero3"],
    )
    save_steps: Annotated[int, NOTHING] = Field(
        default=50, ge=1, description="Number of steps between resumable checkpoints."
    )

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        return with_recipe(given)

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        if self.pack_length is not None and self.pack_length < self.max_length:
            raise GateauError(
                "training.pack_length",
                f"pack_length: {self.pack_length} is below max_length ({self.max_length}), so the longest sequences "
                "do not fit into a row: raise pack_length, or lower max_length",
            )
        if self.min_learning_rate_ratio > 0 and self.scheduler != "cosine":
            raise GateauError(
                "training.conflict",
                f"min_learning_rate_ratio: applies to scheduler: cosine, not {self.scheduler}: remove it, or change "
                "the scheduler",
            )
        if self.loss != "token" and not self.chunked_loss:
            raise GateauError(
                "training.conflict",
                f"chunked_loss: the model's own loss has no weights: set chunked_loss: true with loss: {self.loss}",
            )
        if self.loss == "far_gain" and self.longce_gamma < 1:
            raise GateauError(
                "training.conflict",
                f"longce_gamma: {self.longce_gamma:g} is below 1, so loss: far_gain would weigh tokens that need far "
                "text less than others: set at least 1",
            )
        if self.batching == "concatenated" and self.loss == "exact":
            raise GateauError(
                "training.conflict",
                "loss: exact counts the tokens before a token in its own sequence, but batching: concatenated shows "
                "it those of others, too: set another batching, or loss: token",
            )
        if self.batching == "concatenated" and self.skip is not None:
            raise GateauError(
                "training.conflict",
                "skip: spreads the positions of one conversation, but batching: concatenated numbers a row's "
                "positions without gaps: set another batching, or skip: null",
            )
        if self.launcher is not None and self.hostfile is not None:
            raise GateauError("training.conflict", "launcher: a command and hostfile are both given: remove one")
        if self.processes % self.sequence_parallel:
            raise GateauError(
                "training.sequence_parallel",
                f"sequence_parallel: {self.sequence_parallel} is not a divisor of processes ({self.processes}): "
                "choose one",
            )
        check_sequence_parallel(self)
        check_levers(self)
        rows = (self.max_steps or 1) * self.passes_per_step * self.batch_size * self.data_processes
        if rows > MOST_ROWS:
            raise GateauError(
                "training.too_many_rows",
                f"{'batch_size' if self.max_steps is None else 'max_steps'}: {self.max_steps or 1:,} x "
                f"{self.passes_per_step:,} x {self.batch_size:,} x {self.data_processes:,} rows (steps, passes per "
                f"step, batch_size, processes) exceed {MOST_ROWS:,}, the most that can be planned: lower one of them",
            )
        return self

    @field_validator("offload_activations", "tiled_mlp", mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        # YAML reads on and off as true and false.
        return ("on" if given else "off") if isinstance(given, bool) else given

    @field_validator("skip")
    @classmethod
    def _no_skip_at_zero(cls, given: SkipConfig | None) -> SkipConfig | None:
        # Skips of probability 0 are plain training to the bit, so they must not change its batches or its attention.
        return None if given is not None and given.probability == 0 else given

    @property
    def packs(self) -> bool:
        """Return whether rows of `row_tokens` hold several sequences."""
        return self.batching in {"packed", "concatenated"}

    @property
    def weighs_in_mix(self) -> bool:
        """Return whether the mix has a weight for each token."""
        return self.loss in WEIGHING

    @property
    def divides_by_weights(self) -> bool:
        """Return whether a step's loss is divided by the sum of its weights, not by its number of trained tokens."""
        return self.loss in {"sequence", "far_gain"}

    @property
    def side_by_side(self) -> bool:
        """Return whether a batch is one row of documents without padding.

        Skipped positions need it, too: transformers' own attention takes a skip for the border of a document. So do
        processes that share a row: only our own attention keeps its documents and windows apart there.
        """
        return self.batching == "packed" or self.skip is not None or self.sequence_parallel > 1

    @property
    def row_tokens(self) -> int:
        """Return the tokens of a packed row."""
        return self.pack_length or self.max_length

    @property
    def data_processes(self) -> int:
        """Return the number of processes that read different rows: sequence-parallel ones read the same."""
        return self.processes // self.sequence_parallel

    @property
    def passes_per_step(self) -> int:
        """Return the accumulation steps: as given, or as sequences_per_step or tokens_per_step requires.

        Raises:
            ValueError: these do not divide evenly, or do not fit the batching.
        """
        packed = self.packs
        if packed and self.sequences_per_step is not None:
            raise GateauError(
                "training.step_size", "sequences_per_step: does not apply to packed rows: give tokens_per_step instead"
            )
        if not packed and self.tokens_per_step is not None:
            raise GateauError(
                "training.step_size",
                f"tokens_per_step: applies to batching: packed or concatenated. With {self.batching}, give "
                "sequences_per_step",
            )
        wanted = self.tokens_per_step if packed else self.sequences_per_step
        if wanted is None:
            return self.gradient_accumulation
        unit = self.batch_size * self.data_processes * (self.row_tokens if packed else 1)
        if wanted % unit:
            raise GateauError(
                "training.indivisible",
                f"{'tokens' if packed else 'sequences'}_per_step: {wanted} is not a multiple of {unit}, one pass over "
                f"all processes (batch_size x processes{' x pack_length' if packed else ''}): choose a multiple",
            )
        return wanted // unit


def check_levers(training: TrainingConfig) -> None:
    """Check that the settings that save memory apply, and change no result.

    Raises:
        ValueError: a setting does not apply; the message says why, and what to change.
    """
    if training.every_n_layers > 1 and not training.gradient_checkpointing:
        raise GateauError(
            "training.conflict",
            f"every_n_layers: {training.every_n_layers} chooses the layers of gradient checkpointing, but "
            "gradient_checkpointing is false: set gradient_checkpointing: true, or every_n_layers: 1",
        )
    if training.offload_activations == "on" and not training.gradient_checkpointing:
        raise GateauError(
            "training.conflict",
            "offload_activations: on moves what gradient checkpointing keeps, but gradient_checkpointing is false: "
            "set gradient_checkpointing: true, or offload_activations: auto",
        )
    if isinstance(training.tiled_mlp, int) and training.lora is not None and training.lora.dropout > 0:
        raise GateauError(
            "training.conflict",
            f"tiled_mlp: {training.tiled_mlp} would drop other numbers in the backward pass than in the forward pass "
            f"with lora.dropout: {training.lora.dropout:g}: set lora.dropout: 0, or tiled_mlp: auto",
        )


def check_sequence_parallel(training: TrainingConfig) -> None:
    """Check that `training.sequence_parallel` computes what one process would.

    Raises:
        ValueError: the result would differ, or is not known to be equal; the message says why, and what to change.
    """
    if training.sequence_parallel == 1:
        return
    if training.deepspeed is None:
        raise GateauError(
            "training.sequence_parallel",
            "sequence_parallel: needs DeepSpeed: set deepspeed, for example to zero3",
        )
    if not training.chunked_loss:
        raise GateauError(
            "training.sequence_parallel",
            "sequence_parallel: is wrong with the model's own loss, which shifts labels within each part of a "
            "sequence: set chunked_loss: true",
        )
    if training.liger:
        raise GateauError(
            "training.sequence_parallel", "sequence_parallel: is not known to be exact with liger: remove it"
        )
