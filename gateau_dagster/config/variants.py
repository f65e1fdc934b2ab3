"""Define the section about the experiment: which models are compared, how each is trained, and its name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from gateau_dagster.config.base import Affects, Section, Verify, feature_sections
from gateau_dagster.config.models import HOMOLOGOUS, PRE_EXPERIENCED, ModelConfig
from gateau_dagster.config.selection import Preset, RuleConfig
from gateau_dagster.config.values import MOST_SEEDS, MOST_TOKENS, ModelAddress
from gateau_dagster.errors import GateauError
from gateau_dagster.registry import possible_name

BASE, CHECKPOINT = "base", "checkpoint"
"""Variants that always exist: the model before any training, and that of the single run, `checkpoint`."""
FEATURE_VARIANTS = {name: each for each in feature_sections() for name in each.variants}
"""The sections of the features that make the samples of a variant, by its kind."""
if TYPE_CHECKING:
    Also = str
else:
    Also = Literal[("full", "short_only", "base", *FEATURE_VARIANTS)]
Equal = Literal["samples", "tokens", "steps"]
GATEAU = "gateau"
BASELINES = ("random", "length")
"""Methods that a selection should beat: the field's surveys find that many do not."""

Method = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Budget = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Seed = Annotated[int, Field(ge=0, lt=MOST_SEEDS)]


class OtherModel(Section):
    """A model that is not trained here."""

    name: str = Field(description="Name of the variant: letters, digits, _, . and -.", examples=["published"])
    path: ModelAddress = Field(description="Hugging Face folder or hub name.", examples=["models/longalign-7b"])
    revision: str | None = Field(
        default=None, pattern=r"^[^\x00-\x1f]+$", description="Hub revision.", examples=["main"]
    )
    rope_theta: float | None = Field(
        default=None, gt=0, description="Replaces the base of the rotary embedding.", examples=[2000000.0]
    )
    verify: Annotated[Verify, Affects("report")] = Field(default="signature", description="Same as in `models`.")
    trust_remote_code: bool = Field(
        default=False, description="Whether Python code of the model's repository may run here."
    )

    @field_validator("name")
    @classmethod
    def _possible(cls, name: str) -> str:
        return possible_name(name)

    @field_validator("path")
    @classmethod
    def _is_there(cls, path: str) -> str:
        if path.startswith((PRE_EXPERIENCED, HOMOLOGOUS)):
            raise GateauError(
                "models.made_role", f"{path} is a model that the pipeline makes: give a folder or a name on the hub"
            )
        return path

    @property
    def model(self) -> ModelConfig:
        """Return the section as a model of the configuration."""
        return ModelConfig(**self.model_dump(exclude={"name"}))


class ChangedRun(Section):
    """A model that is trained like the single run, apart from some keys of `selection` and `training`."""

    name: str = Field(description="Name of the variant: letters, digits, _, . and -.", examples=["mix"])
    selection: dict[str, Any] = Field(
        default={},
        description="Keys that replace those of `selection`: the method, its preset and options, the rule and its "
        "keys; null removes a key. The seed of a method's options is added to that of the variant.",
        examples=[{"rule": "top"}],
    )
    training: dict[str, Any] = Field(
        default={}, description="Keys that replace those of `training`.", examples=[{"loss": "longce"}]
    )

    @field_validator("name")
    @classmethod
    def _possible(cls, name: str) -> str:
        return possible_name(name)

    @field_validator("selection")
    @classmethod
    def _chooses(cls, given: dict[str, Any]) -> dict[str, Any]:
        allowed = {*RuleConfig.model_fields, "method", "preset", "options"}
        if unknown := [key for key in given if key not in allowed]:
            raise GateauError(
                "config.unknown_key",
                f"{unknown[0]} is not a key that one variant can change: give one of {', '.join(sorted(allowed))}, or "
                "set it in `selection` for all variants",
            )
        return given


def _form(given: Any) -> str:
    if isinstance(given, str):
        return "str"
    keys = given if isinstance(given, dict) else type(given).model_fields
    return "dict[changed]" if {"selection", "training"} & {*keys} else "dict"


Beside = Annotated[
    Annotated[Also, Tag("str")] | Annotated[OtherModel, Tag("dict")] | Annotated[ChangedRun, Tag("dict[changed]")],
    Discriminator(_form),
]


class VariantsConfig(Section):
    """The experiment: a model per method, preset, amount and seed, and other models."""

    methods: list[Method] | None = Field(
        default=None,
        min_length=1,
        description="Methods of selection; default: selection.method, random and length.",
        examples=[["gateau", "random"]],
    )
    presets: list[Preset] | None = Field(
        default=None,
        min_length=1,
        description="Presets of method gateau; default: selection.preset alone.",
        examples=[["robust", "paper"]],
    )
    fractions: list[Fraction] | None = Field(
        default=None,
        min_length=1,
        description="Shares of the samples to choose; default: the amount of `selection`.",
        examples=[[0.1, 0.3]],
    )
    budgets: list[Budget] | None = Field(
        default=None,
        min_length=1,
        description="Greatest numbers of tokens of the chosen samples, instead of fractions.",
        examples=[[10000000, 50000000]],
    )
    seeds: list[Seed] | None = Field(
        default=None,
        min_length=1,
        description="Seeds of the training, and of a method that draws at random; default: training.seed alone.",
        examples=[[0, 1, 2]],
    )
    also: list[Beside] = Field(
        default=[],
        description="full: all samples, only one of identical texts unless selection.duplicates is keep. short_only: "
        "the short conversations alone. base: the model before training, which always exists. "
        + "".join(f"{name}: {section.variants[name]} " for name, section in FEATURE_VARIANTS.items())
        + "A model that is not trained here: {name: …, path: …}. One that is trained with "
        "other keys: {name: …, selection: {…}, training: {…}}.",
    )
    equal: Equal | None = Field(
        default=None,
        description="The amount that is equal for all methods. samples: a fraction of all candidates, scored or not. "
        "tokens: a fraction of the candidates' tokens. steps: training.max_steps. Default: tokens where "
        "methods has its default and models.long counts them; else a fraction of the samples that the method scores, "
        "with training.epochs.",
    )

    def compared(self, method: str) -> list[str]:
        """Return the methods, `method` being `selection.method`: by default it meets chance and a cheap baseline."""
        return self.methods or list(dict.fromkeys([method, *BASELINES]))

    @property
    def further_methods(self) -> list[str]:
        """Return the methods that only a variant of `also` names."""
        changed = [each.selection for each in self.also if isinstance(each, ChangedRun)]
        return [str(keys["method"]) for keys in changed if keys.get("method")]

    def made_equal(self, *, tokens_known: bool) -> Equal | None:
        """Return the amount that is equal for all methods; tokens_known: whether models.long counts them."""
        by_default = self.methods is None and tokens_known
        return self.equal or ("tokens" if by_default else None)

    @field_validator("methods", "presets", "fractions", "budgets", "seeds")
    @classmethod
    def _each_once(cls, given: list[Any] | None) -> list[Any] | None:
        repeated = [value for place, value in enumerate(given or []) if value in (given or [])[:place]]
        if repeated:
            raise GateauError("config.listed_twice", f"{repeated[0]} is listed twice: remove one")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "VariantsConfig":
        if self.fractions is not None and self.budgets is not None:
            raise GateauError("selection.amount", "fractions and budgets are both given: remove one")
        if self.budgets is not None and self.equal == "samples":
            raise GateauError(
                "variants.impossible",
                "budgets count tokens, but equal is samples: give fractions, or equal: tokens",
            )
        return self


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One model of the experiment.

    kind: base, checkpoint, selected, full, short_only, other, or one of FEATURE_VARIANTS.
    cell: its name without the seed; variants of one cell differ in their seed only.
    method, preset, fraction, budget, seed: None if the configuration's own value applies. other: for kind `other`.
    changed: of a variant of kind `selected` that is not of the matrix.
    """

    name: str
    kind: str
    cell: str
    method: str | None = None
    preset: Preset | None = None
    fraction: float | None = None
    budget: int | None = None
    seed: int | None = None
    other: OtherModel | None = None
    changed: ChangedRun | None = None

    @property
    def trained(self) -> bool:
        """Return whether the variant is trained for the experiment."""
        return self.kind in {"selected", "full", "short_only", *FEATURE_VARIANTS}


def variants_of(section: VariantsConfig | None, *, method: str, trains: bool) -> list[Variant]:
    """Return all variants, base and checkpoint first; names may repeat, see pipeline.recipes.

    Args:
        section: `variants` of the configuration, if any.
        method: `selection.method`.
        trains: whether the single run exists, `training.enabled`.
    """
    found = [Variant(name=name, kind=name, cell=name) for name in ((BASE, CHECKPOINT) if trains else (BASE,))]
    if section is None or not trains:
        return found
    return [*found, *_matrix(section, method), *_besides(section)]


def _matrix(section: VariantsConfig, method: str) -> Iterator[Variant]:
    amounts: Sequence[float | int | None] = section.fractions or section.budgets or [None]
    for name, amount in product(section.compared(method), amounts):
        for preset in (section.presets or [None]) if name == GATEAU else [None]:
            parts = [preset or name]
            if amount is not None:
                parts.append(f"{amount:g}" if section.fractions else f"{amount}t")
            yield from _seeded(
                section,
                parts,
                kind="selected",
                method=name,
                preset=preset,
                fraction=amount if section.fractions else None,
                budget=amount if section.budgets else None,
            )


def _besides(section: VariantsConfig) -> Iterator[Variant]:
    for each in section.also:
        if isinstance(each, OtherModel):
            yield Variant(name=each.name, kind="other", cell=each.name, other=each)
        elif isinstance(each, ChangedRun):
            yield from _seeded(section, [each.name], kind="selected", changed=each)
        elif each != BASE:
            yield from _seeded(section, [each], kind=each)


def _seeded(section: VariantsConfig, parts: Sequence[str], **fields: Any) -> Iterator[Variant]:
    cell = "-".join(parts)
    for seed in section.seeds or [None]:
        yield Variant(name=cell if seed is None else f"{cell}-s{seed}", cell=cell, seed=seed, **fields)
