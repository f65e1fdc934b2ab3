"""Reads the YAML file and turns every mistake in it into a line that names the place and the cure."""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateau_dagster.config.embedded import embedded_demo
from gateau_dagster.config.schema import Config
from gateau_dagster.errors import GateauError

ENVIRONMENT_VARIABLE = "GATEAU_CONFIG"


def load_config(path: str | Path | None = None, folder: Path | None = None) -> Config:
    """The configuration in `path`, else in the file that GATEAU_CONFIG names, else the embedded demo in `folder`.

    Raises:
        GateauError: the file cannot be read, or is wrong; the message names each place in it.
    """
    chosen = path or os.environ.get(ENVIRONMENT_VARIABLE)
    if not chosen:
        return embedded_demo((folder or Path()).absolute())
    file = Path(chosen).expanduser().absolute()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise GateauError(
            f"Cannot read the configuration {file}: {reason}. Give an existing YAML file with --config or "
            f"{ENVIRONMENT_VARIABLE}, or neither for the embedded demo."
        ) from error
    return parse_config(text, folder=file.parent, name=file.name)


def parse_config(text: str, *, folder: Path, name: str = "configuration") -> Config:
    """Validates YAML text; `folder` is where its relative paths start, `name` stands in messages.

    Raises:
        GateauError: with one line for each mistake: file, line, path of the key, what is wrong.
    """
    try:
        data = yaml.safe_load(text)
        node = yaml.compose(text)
    except yaml.YAMLError as error:
        raise GateauError(f"{name} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise GateauError(f"{name} must hold sections (long_sft:, models:, ...), found {type(data).__name__}.")
    try:
        return Config.model_validate({**data, "folder": folder})
    except ValidationError as error:
        mistakes = [_mistake(detail, node, name) for detail in error.errors()]
        raise GateauError("The configuration is wrong:\n" + "\n".join(mistakes)) from error


def _mistake(detail: ErrorDetails, node: yaml.Node | None, name: str) -> str:
    """One line about one mistake."""
    place = [part for part in detail["loc"] if not _is_union_branch(part)]
    dotted = ".".join(str(part) for part in place) or "(whole file)"
    if detail["type"] == "extra_forbidden":
        what = f"unknown key{_suggestion(place)}"
    elif detail["type"] == "missing":
        what = "is required"
    else:
        what = detail["msg"].removeprefix("Value error, ")
        if detail["type"] != "value_error":
            what += f" (found {_short(detail['input'])})"
    return f"  {name}:{_line(node, place)}: {dotted}: {what}"


def _is_union_branch(part: int | str) -> bool:
    """Pydantic adds the tried type of a union to the path ('str', 'list[str]', ...); no key of ours looks like it."""
    return isinstance(part, str) and (part in {"str", "int", "float", "dict"} or "[" in part)


def _suggestion(place: list[int | str]) -> str:
    """The nearest known key, when one is near."""
    import difflib

    model: Any = Config
    for part in place[:-1]:
        field = model.model_fields.get(str(part)) if hasattr(model, "model_fields") else None
        model = _section_of(field.annotation) if field else model
    known = list(model.model_fields) if hasattr(model, "model_fields") else []
    near = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(k for k in known if k != 'folder')}"


def _section_of(annotation: Any) -> Any:
    """The section class in an annotation such as `Section | None` or `dict[str, Section]`."""
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), annotation)


def _line(node: yaml.Node | None, place: list[int | str]) -> int:
    """The line of a key, or of the nearest enclosing one that is in the file."""
    line = 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            match = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if match is None:
                break
            line, node = match[0].start_mark.line + 1, match[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item: yaml.Node = node.value[part]
            line, node = item.start_mark.line + 1, item
    return line


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
