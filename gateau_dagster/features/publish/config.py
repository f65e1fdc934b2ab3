"""Define the section `publish`."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from gateau_dagster.config.base import NOTHING, Affects, FeatureSection, Section
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name

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

    affects = Affects("published")

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
    accepted_findings: Annotated[list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]], NOTHING] = Field(
        default=[],
        exclude_if=lambda value: not value,
        description="Hashes of the scanner's findings that are no secrets, from the file that the refusal names. "
        "Samples without another finding are uploaded.",
        examples=[["9f86d081884c7d65"]],
    )
    max_contaminated: Annotated[float, NOTHING] = Field(
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


def _check(config: Any) -> None:
    """Raise GateauError if `publish.variants` names a variant that chooses no samples by their scores."""
    options = SECTION.of(config)
    known = [each.name for each in config.variant_set.values() if each.kind == "selected"] if options else []
    for name in () if options is None else options.variants:
        if name not in known:
            raise GateauError(
                "publish.variants",
                f"publish.variants: no variant {name!r} selects samples by their scores; {nearest_name(name, known)}",
            )


SECTION = FeatureSection(
    key="publish",
    kind=PublishConfig,
    check=_check,
    description="The data set on the Hugging Face hub that `gateau run` keeps up to date; null: no upload.",
)
