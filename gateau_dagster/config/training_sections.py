"""Define the sections of `training`: the mix, position skips, low-rank adapters, positions beyond the window."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST
from gateau_dagster.errors import GateauError

Weight = Annotated[float, Field(ge=0, le=1000)]


class MixConfig(Section):
    """The composition of the mix, after the selection of samples and conversations.

    GATEAU's 10, 30, 50 and 100 % are parts of the data, `selection.fraction`. Its real-world setting is
    `short_chat.fraction` 1.0, and its limited short instruction data 0.1.
    """

    long_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Part of the selected samples to train on, the best-ranked ones, for a smaller training with the "
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
