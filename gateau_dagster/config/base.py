"""Define the base of all sections: frozen, closed to unknown keys, strict about types; and the effect of a key."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateau_dagster.errors import GateauError
from gateau_dagster.registry import feature_parts

Result = Literal["rows", "ranking", "mix", "checkpoint", "report", "published"]


# A key without a statement counts. So a statement that is forgotten computes too much, and never leaves a stale table
# current.
class Affects:
    """The effect of a key, as metadata of its field. Without it, a key counts for all that its section decides.

    Args:
        results: the results whose fingerprints hold the key. Where others are named, `report` and `published` are
            among them, since they show these.
        through: the keys or facts that count in the place of this key, in words for the page of keys.
    """

    def __init__(self, *results: Result, through: str = "") -> None:
        self.results, self.through = frozenset(results), through

    def reaches(self, result: Result) -> bool:
        """Return whether the fingerprint of a result holds the key."""
        return result in self.results or (result in _SHOWING and bool(self.results - _SHOWING))


_SHOWING: frozenset[Result] = frozenset(("report", "published"))
NOTHING = Affects()
"""The key decides how the pipeline runs, and changes no stored result."""


class Section(BaseModel):
    """A section of the YAML file. A misspelt key is an error, since a silent default is worse.

    A value of another type is one too: `true` is no number, and neither is '4' in quotes. Pydantic's own message, which
    reaches tracebacks, hides the given value, which may be a secret.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        strict=True,
        hide_input_in_errors=True,
    )
    affects: ClassVar[Affects | None] = None
    """The effect of its keys that state none; None: they count for all that the section decides."""


def effect_of(section: type[BaseModel], field: FieldInfo) -> Affects | None:
    """Return the effect of a key: that of its field, else of the section that it holds, else of its section."""
    stated = [each for each in field.metadata if isinstance(each, Affects)]
    inner = [*sections_in(field.annotation)]
    around = [getattr(each, "affects", None) for each in (*(inner if len(inner) == 1 else ()), section)]
    return next(filter(None, [*stated[::-1], *around]), None)  # of several statements, that beside the key counts


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a value of a type can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


def without_effect(section: BaseModel, *results: Result) -> dict[str, Any]:
    """Return the keys that affect none of the results, as `exclude` of `model_dump`.

    The nearest statement counts: that of the key, of its section, of the section around it. Without any, a key is kept.
    A section of which no key is left is left out as a whole.
    """
    left_out = _without_effect(section, None, results)
    return left_out if isinstance(left_out, dict) else dict.fromkeys(type(section).model_fields, True)


def _without_effect(value: Any, effect: Affects | None, results: tuple[Result, ...]) -> dict[Any, Any] | bool:
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, (list, tuple)) else {}
    if isinstance(value, BaseModel):
        kind = type(value)
        each_effect = {name: effect_of(kind, field) or effect for name, field in kind.model_fields.items()}
        left_out = {name: _without_effect(getattr(value, name), own, results) for name, own in each_effect.items()}
    elif any(isinstance(each, BaseModel) for each in inner.values()):
        left_out = {key: _without_effect(each, effect, results) for key, each in inner.items()}
    else:
        return effect is not None and not any(map(effect.reaches, results))
    kept = [key for key, each in left_out.items() if each is not True]
    return {key: each for key, each in left_out.items() if each} if kept or not left_out else True


S = TypeVar("S", bound=Section)
Verify = Annotated[Literal["signature", "content"], NOTHING]
"""The test that a local file is unchanged: its size and modification time, or all its bytes."""


@dataclass(frozen=True, kw_only=True)
class MadeFiles:
    """Files that a feature with a section makes itself. Their addresses begin with `prefix`.

    Each function takes a configuration with the section, and an address. located: returns the real path. shape: returns
    the folder of a model's config.json, which exists before the model. digest: returns what a model's content follows
    from.
    """

    prefix: str
    located: Callable[[Any, str], str]
    shape: Callable[[Any, str], Path]
    digest: Callable[[Any, str], str]


@dataclass(frozen=True, kw_only=True)
class FeatureSection(Generic[S]):
    """A section that a feature adds to the configuration, as SECTION in its module `config`.

    scheme: an address in `long_sft.path` for the samples that the feature makes, such as `synthetic:`; empty if it
        makes none. makes: the asset that holds them.
    made_files: what else the feature makes itself; None if nothing.
    always: whether a file without the section has it with its defaults.
    variants: by name, the variants of `variants.also` whose samples the feature makes, with their descriptions.
    check: raises GateauError if a whole configuration lacks what the section needs, or the section itself.
    """

    key: str
    kind: type[S]
    description: str
    scheme: str = ""
    makes: str = ""
    made_files: MadeFiles | None = None
    always: bool = False
    variants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check: Callable[[Any], None] = lambda _: None

    @property
    def field(self) -> Any:
        """Return the field of the whole configuration: null, and left out of dumps, where the file has no section."""
        if self.always:
            return (self.kind, Field(default=self.kind(), description=self.description or None))
        without = Field(default=None, exclude_if=lambda value: value is None, description=self.description)
        return (self.kind | None, without)

    def of(self, config: BaseModel) -> S | None:
        """Return the section of a configuration; None if the file has none."""
        return getattr(config, self.key)

    @property
    def files(self) -> str:
        """Return the pattern of the files of `makes`, below the store's root."""
        return f"/{self.makes}/*.parquet"


@cache
def feature_sections() -> tuple[FeatureSection[Any], ...]:
    """Return the sections of all features, in the alphabetical order of their folders."""
    return tuple(feature_parts("config", "SECTION", FeatureSection))


@cache
def made_inputs() -> dict[str, FeatureSection[Any]]:
    """Return the sections whose features make samples that `long_sft` can read, by the address of these."""
    return {each.scheme: each for each in feature_sections() if each.scheme}


def made_files(config: BaseModel, address: str) -> MadeFiles | None:
    """Return the maker of an address; None if no feature has it, or if the configuration lacks the section."""
    made = (each.made_files for each in feature_sections() if each.of(config) is not None)
    return next((each for each in made if each is not None and address.startswith(each.prefix)), None)


def made_prefixes() -> tuple[str, ...]:
    """Return the beginnings of all addresses that features resolve."""
    return (*(each.made_files.prefix for each in feature_sections() if each.made_files), *made_inputs())


class SectionError(GateauError):
    """Mistakes in a section whose fields only a later layer knows.

    Args:
        file: the validated class, of a file that holds this section alone.
        error: the mistakes; their places begin at the top of the file.
    """

    def __init__(self, file: type[BaseModel], error: ValidationError) -> None:
        super().__init__(code_of(error.errors()[0]), str(error))
        self.file, self.error = file, error


def code_of(detail: ErrorDetails) -> str:
    """Return the code of a mistake that Pydantic found: of the check that refused the value, or of its kind."""
    refused = detail.get("ctx", {}).get("error")
    kinds = {"extra_forbidden": "config.unknown_key", "missing": "config.required"}
    return refused.code if isinstance(refused, GateauError) else kinds.get(detail["type"], "config.value")


@cache
def _file_with(place: str, section: type[BaseModel]) -> type[BaseModel]:
    """Return the model of a file that has a section at a place, and nothing else."""
    file = section
    for name in reversed(place.split(".")):
        keys: dict[str, Any] = {name: (file, ...)}
        file = create_model("File", __config__=ConfigDict(hide_input_in_errors=True), **keys)
    return file


def validated(place: str, section: type[S], given: Mapping[str, Any]) -> S:
    """Validate the value at a place in the file, such as `selection.options.ladm`, as a section. Raise SectionError."""
    file, content = _file_with(place, section), given
    for name in reversed(place.split(".")):
        content = {name: content}
    try:
        return attrgetter(place)(file.model_validate(content))
    except ValidationError as error:
        raise SectionError(file, error) from error
