"""Define the base of all sections: frozen, closed to unknown keys, and strict about types."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from gateau_dagster.errors import GateauError


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


S = TypeVar("S", bound=Section)
Verify = Literal["signature", "content"]
"""The test that a local file is unchanged: its size and modification time, or all its bytes."""


@dataclass(frozen=True, kw_only=True)
class FeatureSection(Generic[S]):
    """A section that a feature adds to the configuration, as SECTION in its module `config`.

    is_shown: whether the report prints it, so that a change makes the report again.
    """

    key: str
    kind: type[S]
    description: str
    is_shown: bool = True

    @property
    def field(self) -> Any:
        """Return the field of the whole configuration: null, and left out of dumps, where the file has no section."""
        without = Field(default=None, exclude_if=lambda value: value is None, description=self.description)
        return (self.kind | None, without)

    def of(self, config: BaseModel) -> S | None:
        """Return the section of a configuration; None if the file has none."""
        return getattr(config, self.key)


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
