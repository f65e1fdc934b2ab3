"""Section about what the training mix is made of: how many of the selected samples, and how often each source."""

from typing import Annotated

from pydantic import Field

from gateau_dagster.config.base import Section

Weight = Annotated[float, Field(ge=0)]


class MixConfig(Section):
    """What the mix is made of, once the samples are selected and the conversations sampled.

    GATEAU's 10, 30, 50 and 100 % are parts of the data, `selection.fraction`; its real-world setting is
    `short_chat.fraction` 1.0, and its limited short instruction data 0.1.
    """

    long_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Part of the selected samples to train on, those ranked best: a smaller training without another "
        "selection.",
    )
    without_long: bool = Field(
        default=False, description="Short conversations alone: the papers' baseline without long samples."
    )
    weights: dict[str, Weight] = Field(
        default={},
        description="How often a source's samples occur in an epoch, by `source` of the long samples and by file name "
        "of the short ones: 0.5 takes half of them, 2 each twice, 0 none. Default: 1.",
    )
