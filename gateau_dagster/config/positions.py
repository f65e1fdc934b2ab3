"""Section about positions beyond the window that a model was trained with."""

from typing import Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section

ExtensionMethod = Literal["theta", "ntk", "yarn", "linear"]


class PositionExtension(Section):
    """How the rotary embedding is changed before training, so that positions beyond the model's window are usable."""

    method: ExtensionMethod = Field(
        description="theta: another base; ntk: a base scaled for target_length (NTK-aware); yarn; linear: position "
        "interpolation."
    )
    theta: float | None = Field(default=None, gt=0, description="The base, for method theta.")
    target_length: int | None = Field(
        default=None,
        ge=2,
        description="Positions to reach, for ntk, yarn and linear, which compare it with the model's window; with "
        "theta optional, the window to declare.",
    )

    @model_validator(mode="after")
    def _complete(self) -> "PositionExtension":
        if self.method == "theta" and self.theta is None:
            raise ValueError("method: theta needs the key theta, the base of the rotary embedding, such as 8000000")
        if self.method != "theta" and self.theta is not None:
            raise ValueError(f"theta: method {self.method} finds the base itself: remove theta, or take method: theta")
        if self.method != "theta" and self.target_length is None:
            raise ValueError(f"method: {self.method} needs the key target_length, in tokens, such as 65536")
        return self
