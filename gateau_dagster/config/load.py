"""Read the YAML file, and report each mistake as a line that names the place and the remedy."""

# Why the file is read twice, as nodes and as values: Pydantic knows keys but no lines, and a user looks for a line. The
# nodes also show what values hide, such as a key that is given twice or a number that YAML reads as another one.
#
# What a file may do: hold a secret where the name of a variable belongs, or expand aliases to billions of values. It
# may also be a device without an end. So secrets are masked before the first message, values are counted before they
# are constructed, and reading has a limit.

import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from gateau_dagster.config.base import SectionError, code_of
from gateau_dagster.config.schema import Config
from gateau_dagster.config.values import is_variable_name
from gateau_dagster.errors import DEMO, ENVIRONMENT_VARIABLE, GateauError, redacted, secret_found, together
from gateau_dagster.readable import nearest_name


class YamlLoader(yaml.SafeLoader):
    """YAML 1.1, except that numbers such as 2e-5 are numbers, as in YAML 1.2."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the node's value; raise ConstructorError for invalid ones (`!!int ''`, 2024-02-30), as PyYAML does
        not.
        """
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"the value is not a valid {kind}", node.start_mark) from error


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def line_of(node: yaml.Node | None, place: Sequence[int | str]) -> int:
    """Return the line of a key, or of the nearest enclosing one in the file; lines count from 1."""
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


def repeated_keys(node: yaml.Node | None, name: str, place: tuple[str, ...] = ()) -> Iterator[GateauError]:
    """Yield a mistake for each key that is listed twice in a section: YAML would silently take the last one."""
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        path, line = (*place, str(key.value)), key.start_mark.line + 1
        if key.value in first:
            yield GateauError(
                "config.duplicate_key",
                f"  {name}:{line}: {'.'.join(path)}: is given twice, first in line {first[key.value]}: remove one",
            )
        first.setdefault(key.value, line)
        if value.start_mark.index >= key.start_mark.index:  # an alias refers to its anchor, which was checked already
            yield from repeated_keys(value, name, path)


def values_of(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return the number of values of a node, with its aliases expanded; `known`: counts of nodes, by identity.

    Raises:
        yaml.MarkedYAMLError: a section or list contains itself, so that its values have no end.
    """
    if node is not None and known.get(id(node)) == _UNCOUNTED:
        problem = "the value contains itself through an alias: write out the value of the alias"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if id(node) not in known:
        known[id(node)] = _UNCOUNTED
        inner = []
        if isinstance(node, yaml.MappingNode):
            inner = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(values_of(each, known) for each in inner)
    return known[id(node)]


def misread_numbers(node: yaml.Node | None, name: str, place: tuple[str, ...] = ()) -> Iterator[GateauError]:
    """Yield a mistake for each number that YAML 1.1 reads differently than it looks: 010 is 8, and 1:30 is 90."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if value.start_mark.index >= key.start_mark.index:  # see repeated_keys
                yield from misread_numbers(value, name, (*place, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            if value.start_mark.index >= node.start_mark.index:
                yield from misread_numbers(value, name, (*place, str(number)))
    elif isinstance(node, yaml.ScalarNode) and node.tag in _NUMBER_TAGS and _MISREAD.fullmatch(node.value):
        yield GateauError(
            "config.misread_number",
            f"  {name}:{node.start_mark.line + 1}: {'.'.join(place)}: YAML reads {node.value} as another number: "
            "write it without leading zeros and colons, or as text in quotes",
        )


def half_characters(node: yaml.Node | None, name: str, place: tuple[str, ...] = ()) -> Iterator[GateauError]:
    """Yield a mistake for each text with half of a character, "\\ud83d", which no file can hold."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from half_characters(key, name, place)
            if value.start_mark.index >= key.start_mark.index:  # see repeated_keys
                yield from half_characters(value, name, (*place, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            if value.start_mark.index >= node.start_mark.index:
                yield from half_characters(value, name, (*place, str(number)))
    elif isinstance(node, yaml.ScalarNode) and (half := _HALF.search(node.value)):
        yield GateauError(
            "config.value",
            f"  {name}:{node.start_mark.line + 1}: {'.'.join(place)}: contains half of a character "
            f"({half.group()!a}): write the character itself, or with eight digits, such as \\U0001F600",
        )


_HALF = re.compile(r"[\ud800-\udfff]")
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_MISREAD = re.compile(r"[-+]?(0[0-7_]*[0-7]|.*:.*)")
_MOST_BYTES = 16 << 20
_MOST_VALUES = 1_000_000
_UNCOUNTED = 0  # a value whose count is in progress
_MOST_SHOWN = 50  # mistakes: a file with more of them is another kind of file
Check: TypeAlias = Callable[[Config], None]
_OWN = ("folder", "name")
_BRANCHES = {"str", "int", "constrained-int", "float", "constrained-float", "dict"}  # Pydantic's names of types

# A rule about several sections names the key itself: `training.model: ...`.
_NAMED_PLACE = re.compile(r"^([A-Za-z_]+(?:\.[^\s:.]+)*): (.*)$", re.DOTALL)
_QUOTED = re.compile(r"'([^']*)'")
_NUMBER = re.compile(r"[-+]?[\d_.]+([eE][-+]?\d+)?")
# A section in the wrong place may be shown, but not the secrets in it.
_SECRET_VALUE = re.compile(r"(?i)('[^']*(?:secret|token|password|passwd|key|credential)': )(?:'[^']*'|[^,}\]]+)")
_SECRET_KEY = re.compile(r"(?i)(.*[_-])?(api_?key|key|web_?hook|postgres|token|password|passwd|secret|credentials?)")
_SECRET_LINE = re.compile(r"(?i)(key|webhook|postgres|token|password|passwd|secret|credentials?)['\"]?\s*:")
_YAML_WORDS = {
    "should be strings": "should be text, so put it in quotes",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "a valid number": "a number",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
}


def read_config(file: Path, checks: Sequence[Check] = ()) -> Config:
    """Return the configuration in a file; `checks`: see parse_config.

    Raises:
        GateauError: the file cannot be read, or is wrong; the message names each place in it.
    """
    if file.is_fifo():  # opening it would block, and every process of a run reads the file again
        raise GateauError(
            "config.unreadable",
            f"{file} is a pipe, not a file, but a run reads its configuration several times. Write it to a file, "
            f"and name the file with --config or {ENVIRONMENT_VARIABLE}.",
        )
    try:
        with file.open("rb") as stream:  # bounded, since it may be a device
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise GateauError(
            "config.unreadable",
            f"Cannot read the configuration {file}: {reason}. Give an existing YAML file with --config or "
            f"{ENVIRONMENT_VARIABLE}, or the embedded demo with --config {DEMO}.",
        ) from error
    if len(data) > _MOST_BYTES:
        raise GateauError(
            "config.unreadable",
            f"{file} is not a configuration: it has more than {_MOST_BYTES >> 20} MiB. Correct --config.",
        )
    return parse_config(text, folder=file.parent, name=file.name, checks=checks)


def parse_config(text: str, *, folder: Path, name: str = "gateau.yaml", checks: Sequence[Check] = ()) -> Config:
    """Validate YAML text; `folder` is the base of its relative paths, `name` is for messages.

    `checks` test the validated configuration in order, until one raises a GateauError. They cover what the sections
    alone cannot know, such as the models of the chosen methods. A SectionError may contain several mistakes.

    Raises:
        GateauError: with one line for each mistake: file, line, path of the key, what is wrong.
    """
    try:
        node = yaml.compose(text, Loader=YamlLoader)
        _remember_pasted_secrets(node)
        values = values_of(node, {})
        data: Any = None if node is None else {}
        # Counted before construction: merged keys (`<<`) are copied, alias by alias, into the nodes.
        if node is not None and values <= _MOST_VALUES:
            apart = yaml.compose(text, Loader=YamlLoader) if "<<" in text else node
            data = YamlLoader("").construct_document(apart)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # The parser's own error is hidden: it quotes the line, which may contain a secret.
        raise GateauError("config.not_yaml", f"{name}:{_yaml_mistake(error, text)}") from None
    if not isinstance(data, dict):
        found = "an empty file" if data is None else type(data).__name__
        raise GateauError(
            "config.no_sections",
            f"{name}:1: expected sections (long_sft:, models:, ...), found {found}. Write `key: value` lines.",
        )
    if values > _MOST_VALUES:
        raise GateauError(
            "config.too_many_values",
            f"{name}:1: its aliases expand to more than {_MOST_VALUES:,} values. Use fewer aliases.",
        )
    mistakes = [*repeated_keys(node, name), *misread_numbers(node, name), *_own_keys(data, node, name)]
    try:
        config = Config.model_validate({**data, "folder": folder, "name": Path(name).stem})
    except ValidationError as error:
        mistakes += _mistakes(error.errors(), node, name)
    else:
        mistakes += [*half_characters(node, name)] or _failed_check(config, checks, node, name)
        if not mistakes:
            return config
    raise together("The configuration is wrong:", mistakes)


def _remember_pasted_secrets(node: yaml.Node | None) -> None:
    """Make all messages mask values given where the name of a secret's variable belongs."""
    waiting: list[tuple[yaml.Node | None, bool]] = [(node, False)]
    seen: set[tuple[int, bool]] = set()
    while waiting:
        node, secret = waiting.pop()
        if node is None or (id(node), secret) in seen:
            continue
        seen.add((id(node), secret))
        if isinstance(node, yaml.MappingNode):
            waiting += [(value, secret or _is_secret_key(key)) for key, value in node.value]
            waiting += [(key, True) for key, _ in node.value if secret]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(value, secret) for value in node.value]
        elif secret and not is_variable_name(node.value):
            secret_found(node.value)


def _is_secret_key(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and _SECRET_KEY.fullmatch(key.value) is not None


def _failed_check(config: Config, checks: Sequence[Check], node: yaml.Node | None, name: str) -> list[GateauError]:
    """Return the mistakes of the first failing check; empty if all pass."""
    # Up to the first that fails: a later check may rely on what an earlier one has made sure.
    for check in checks:
        try:
            check(config)
        except SectionError as error:
            return _mistakes(error.error.errors(), node, name, error.file)
        except GateauError as error:
            refused = {"error": error}
            found: ErrorDetails = {"type": "value_error", "loc": (), "msg": str(error), "input": None, "ctx": refused}
            return [_mistake([], [found], node, name)]
    return []


def _yaml_mistake(error: Exception, text: str) -> str:
    """Return line, column and cause of invalid YAML."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        place = f"{before.count(chr(10)) + 1}: not valid YAML, at column {len(before) - before.rfind(chr(10))}"
        return f"{place}: the character {text[error.position]!a}, which is not allowed"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        if _SECRET_LINE.search(line):  # the problem may quote it, such as an undefined alias
            return f"{mark.line + 1}: not valid YAML, at column {mark.column + 1}"
        return f"{mark.line + 1}: not valid YAML, at column {mark.column + 1}: {error.problem}"
    return f"1: not valid YAML: {error}"


def _own_keys(data: dict[str, Any], node: yaml.Node | None, name: str) -> list[GateauError]:
    # They are fields of Config, but follow from the place of the file.
    return [
        GateauError(
            "config.unknown_key",
            f"  {name}:{line_of(node, [key])}: {key}: unknown key; it follows from the path of this file: remove it",
        )
        for key in _OWN
        if key in data
    ]


def _mistakes(details: list[ErrorDetails], node: yaml.Node | None, name: str, file: Any = Config) -> list[GateauError]:
    """Return the mistakes with their lines, a failed union as one. `file`: the validated class."""
    kept = _by_place(details)
    shown = sorted(islice(kept.items(), _MOST_SHOWN), key=lambda item: line_of(node, list(item[0])))
    lines = [_mistake(list(place), found, node, name, file) for place, found in shown]
    if len(kept) > _MOST_SHOWN:
        lines[-1] = lines[-1].reworded(f"{lines[-1]}\n  {name}: and {len(kept) - _MOST_SHOWN:,} more")
    return lines


def first_mistake(error: ValidationError, section: type[BaseModel]) -> str:
    """Return the key and the cause of the first mistake in YAML terms: `use.far: should be a number (found 'half')`.

    `section`: the validated class.
    """
    place, details = next(iter(_by_place(error.errors()).items()))
    keys, what = _described(list(place), details, section)
    return ": ".join(filter(None, [".".join(map(str, keys)), what]))


def _by_place(details: list[ErrorDetails]) -> dict[tuple[int | str, ...], list[ErrorDetails]]:
    """Return the details by the keys that they are about."""
    places: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in details:
        places.setdefault(tuple(part for part in detail["loc"] if not _is_union_branch(part)), []).append(detail)
    # For `path: [a, 3]`, a message that the list is no string is redundant once its element is named.
    outer = {place[:size] for place in places for size in range(len(place))}
    return {
        place: found
        for place, found in places.items()
        if place not in outer or not all(_in_union(detail) for detail in found)
    }


def _mistake(
    place: list[int | str], found: list[ErrorDetails], node: yaml.Node | None, name: str, file: Any = Config
) -> GateauError:
    place, what = _described(place, found, file)
    dotted = ".".join(str(part) for part in place) or "(whole file)"
    return GateauError(code_of(_telling(found)[0]), f"  {name}:{line_of(node, place)}: {dotted}: {what}")


def _telling(details: list[ErrorDetails]) -> list[ErrorDetails]:
    # In a union, the branch that checked the value itself is more informative than those of other types.
    return [each for each in details if each["type"] == "value_error"][:1] or details


def _described(place: list[int | str], found: list[ErrorDetails], file: Any) -> tuple[list[int | str], str]:
    """Return the keys of a mistake, and what is wrong with them."""
    found = _telling(found)
    detail = found[0]
    if detail["type"] == "extra_forbidden":
        what = f"unknown key; {_suggestion(place, file)}"
    elif detail["type"] == "missing":
        what = "is required"
    else:
        first, *others = dict.fromkeys(_words(each) for each in found)
        what = " or ".join([first, *(other.removeprefix("should be ") for other in others)])
        named = _NAMED_PLACE.match(what) if not place else None
        if named is not None:
            place, what = [*named[1].split(".")], named[2]
        if detail["type"] != "value_error":
            what = f"{what} (found {_short(detail['input'])}){_nearest_value(found)}"
    return place, what


def _words(detail: ErrorDetails) -> str:
    """Return Pydantic's message in YAML terms."""
    text = detail["msg"].removeprefix("Value error, ")
    text = re.sub(r"^(Input|List|String|Tuple|Keys) should", "should", text)
    text = re.sub(r" a valid dictionary( or instance of \w+)?", " a section of `key: value` lines", text)
    text = re.sub(r"( items?) after validation, not \d+", r"\1", text)
    for theirs, ours in _YAML_WORDS.items():
        text = text.replace(theirs, ours)
    if detail["type"] in {"int_type", "float_type"} and isinstance(detail["input"], str):
        text += ", so leave out the quotes" if _NUMBER.fullmatch(detail["input"]) else ", but it is not one"
    return text


def _nearest_value(found: list[ErrorDetails]) -> str:
    """Return the nearest value of a key that accepts some words only; empty if none is near."""
    known = [each for detail in found for each in _QUOTED.findall(detail.get("ctx", {}).get("expected", ""))]
    value = found[0]["input"]
    meant = nearest_name(value, known) if known and isinstance(value, str) else ""
    return f"; {meant}" if meant.endswith("?") else ""


def _in_union(detail: ErrorDetails) -> bool:
    return any(_is_union_branch(part) for part in detail["loc"])


def _is_union_branch(part: int | str) -> bool:
    # Such as 'str' or 'list[str]': Pydantic puts the type that it tried into the path, which is no key of ours.
    return isinstance(part, str) and (part in _BRANCHES or "[" in part)


def _suggestion(place: list[int | str], model: Any) -> str:
    """Return the nearest known key, or all of them; `model`: the class in which `place` begins."""
    for part in place[:-1]:
        # A key of `models` or a number in a list is no field: the section of its values is known already.
        field = model.model_fields.get(str(part)) if hasattr(model, "model_fields") else None
        model = _section_of(field.annotation) if field else model
    known = list(model.model_fields) if hasattr(model, "model_fields") else []
    known = [key for key in known if key not in _OWN or len(place) > 1]
    return nearest_name(str(place[-1]), known, "known here:")


def _section_of(annotation: Any) -> Any:
    """Return the section class in an annotation such as `Section | None` or `dict[str, Section]`."""
    if hasattr(annotation, "model_fields"):
        return annotation
    found = (_section_of(argument) for argument in getattr(annotation, "__args__", ()))
    return next((section for section in found if hasattr(section, "model_fields")), annotation)


def _short(value: object) -> str:
    # The text is bounded, since aliases may expand to any size.
    shown = repr(value) if isinstance(value, str | int | float) else reprlib.repr(value)
    text = _SECRET_VALUE.sub(r"\1'***'", redacted(shown))
    return text if len(text) <= 60 else text[:57] + "..."
