"""Write the generated pages of docs/; with `--check`, only report whether they are current.

Keys come from the pydantic models, commands from click, assets from their declarations, the Python API from its
docstrings, errors from the files error_codes.yaml.
"""

import inspect
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import polars as pl
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import gateau_dagster
from gateau_dagster.cli.commands import cli, error_codes
from gateau_dagster.config import Config
from gateau_dagster.config.base import Affects, Result, effect_of, sections_in
from gateau_dagster.config.selection import OwnScores
from gateau_dagster.features.evaluation.registry import all_benchmarks
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.project import configuration_model

DOCS = Path(__file__).parents[1] / "docs"
BY = "\nThis page is written by `python scripts/reference.py`.\n"
# Asks for every family of assets.
EVERYTHING: dict[str, Any] = {
    "long_sft": {"path": "long.jsonl"},
    "short_chat": {"path": "short.json"},
    "models": {
        "short": {"path": "a/short"},
        "long": {"path": "homologous:short", "homologous": {"texts": "books/*.txt", "length": 4096}},
        "cherry": {"path": "pre_experienced:short"},
        "reward": {"path": "a/reward", "task": "reward"},
        "encoder": {"path": "a/encoder", "task": "embedding"},
    },
    "selection": {
        "compare": ["ifd", "car", "ladm", "longattn", "delta_perplexity", "judge"],
        "rule": "diverse",
        "encoder": "encoder",
        "segment_lengths": [64],
        "evidence": True,
    },
    "variants": {"methods": ["gateau"], "fractions": [0.1]},
    "evaluation": {
        "benchmarks": ["heldout", "needle", "mt_bench"],
        "mt_bench": {key: f"s3://a/{key}" for key in ("questions", "references", "prompts")},
        "judge": {"base_url": "http://localhost:8000/v1", "model": "judge"},
    },
}
_OF_FEATURES: dict[str, Any] = {
    "publish": {"repository": "a/selection", "license": "other"},
    "synthesis": {
        "documents": "books/*.txt",
        "count": 1000,
        "generator": {"base_url": "http://localhost:8000/v1", "model": "generator"},
    },
}
EVERYTHING |= {name: each for name, each in _OF_FEATURES.items() if name in configuration_model().model_fields}
_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "null",
    Any: "any value",
}
MOST_READS = 12
MOST_VALUES = 12
BENCHMARKS = [[name] for name in all_benchmarks()]
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "length at least"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of the configuration: its place, its field, the section that has it, and the sections that it can hold.

    effect: what it affects, as stated by it or by the sections around it; None: nobody states it.
    """

    place: str
    field: FieldInfo
    section: type[BaseModel]
    inner: list[type[BaseModel]]
    effect: Affects | None

    @property
    def name(self) -> str:
        """Return the last part of its place."""
        return self.place.rpartition(".")[2]


def all_keys() -> Iterator[Key]:
    """Yield every key of the configuration that `gateau schema` describes; one of several forms of a section once."""
    found: dict[str, Key] = {}
    for key in _keys_of(configuration_model(), ""):
        found.setdefault(key.place, key)
    yield from found.values()


def _keys_of(section: type[BaseModel], place: str, around: Affects | None = None) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        if field.exclude:  # not written in a file
            continue
        # The short form of the method `scores` is a value with a key, and no section.
        inner = [each for each in sections_in(field.annotation) if each is not OwnScores]
        effect = effect_of(section, field) or around
        yield Key(place=f"{place}{name}", field=field, section=section, inner=inner, effect=effect)
        part = {dict: "<name>.", list: "<n>."}.get(_container(field.annotation), "")
        for each in inner:
            yield from _keys_of(each, f"{place}{name}.{part}", effect)


def _container(annotation: Any) -> Any:
    """Return dict or list where sections are the values of one, else None."""
    origin = get_origin(annotation)
    if origin in {dict, list, tuple} and [*sections_in(annotation)]:
        return dict if origin is dict else list
    return next(filter(None, map(_container, get_args(annotation))), None) if origin else None


def shown_type(annotation: Any) -> str:
    """Return a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        shown = arguments if len(arguments) <= MOST_VALUES else arguments[:3]
        more = [f"{len(arguments) - 3} other names"] if len(arguments) > MOST_VALUES else []
        return " or ".join([*(f"`{value}`" for value in shown), *more])
    if origin in {Union, types.UnionType}:
        return " or ".join(dict.fromkeys(shown_type(each) for each in arguments))
    words = {Annotated: "", list: "list of ", tuple: "list of ", dict: "map from names to "}
    if origin in words:
        return words[origin] + shown_type(arguments[origin is dict])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _TYPES.get(annotation, "any value")


def bounds(field: FieldInfo) -> str:
    """Return the bounds of a value, such as `at least 1, below 5`; empty without any."""
    found = []
    for each in [*field.metadata, *_metadata(field.annotation)]:
        found += [f"{word} {getattr(each, key):,}" for key, word in _BOUNDS.items() if hasattr(each, key)]
        if pattern := getattr(each, "pattern", None):
            found.append(f"matches `{pattern}`")
    return ", ".join(dict.fromkeys(found))


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    if isinstance(annotation, types.UnionType) or get_origin(annotation) in {Union, Annotated}:
        for each in get_args(annotation):
            yield from _metadata(each)


def default(field: FieldInfo) -> str:
    """Return the default as YAML has it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "the defaults below"
    shown = {None: "null", True: "true", False: "false", "": "empty"}
    if value is None or isinstance(value, bool) or value == "":
        return f"default {shown[value]}"
    if isinstance(value, (tuple, list)) and any(isinstance(each, BaseModel) for each in value):
        return f"default: {len(value)} entries"
    if isinstance(value, (tuple, list)):
        return f"default `[{', '.join(map(str, value))}]`"
    return f"default `{value}`"


def effect(key: Key) -> str:
    """Return the results that a change of a key makes again, such as `affects: mix, checkpoint`."""
    if key.effect is None:
        return ""
    through = [key.effect.through] if key.effect.through else []
    results = [each for each in get_args(Result) if each in key.effect.results]
    return f"affects: {', '.join([*results, *through]) or 'nothing'}"


def described(key: Key) -> str:
    """Return the meaning of a key: its description, else what its section says of itself."""
    if key.field.description:
        return key.field.description
    return " ".join(str(inspect.getdoc(key.inner[0])).split("\n\n", maxsplit=1)[0].split()) if key.inner else ""


def example(key: Key) -> Any:
    """Return a value that shows the form of a key: its `examples`, else another value than the default, else that.

    Raises:
        LookupError: neither type nor default show the form, so that the field needs `examples`.
    """
    if key.field.examples:
        return key.field.examples[0]
    usual = None if key.field.is_required() else key.field.get_default(call_default_factory=True)
    if isinstance(usual, bool):
        return not usual
    others = [each for each in _choices(key.field.annotation) if each != usual]
    if others:
        return others[-1]
    if items := _choices_of_items(key.field.annotation):
        return items[-1:]
    if usual in (None, "", [], {}, ()):
        raise LookupError(f"{key.section.__name__}.{key.name}: add examples=[…] to its Field")
    return [*usual] if isinstance(usual, tuple) else usual


def _choices(annotation: Any) -> list[Any]:
    """Return the values of a type that lists them; empty for another."""
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    if isinstance(annotation, types.UnionType) or get_origin(annotation) in {Union, Annotated}:
        return [value for each in get_args(annotation) for value in _choices(each)]
    return []


def _choices_of_items(annotation: Any) -> list[Any]:
    """Return the values that the items of a list can have."""
    if get_origin(annotation) is list:
        return _choices(get_args(annotation)[0])
    return [value for each in get_args(annotation) for value in _choices_of_items(each)]


def example_line(key: Key) -> str:
    """Return the example as a line of YAML."""
    shown = {"default_flow_style": True, "sort_keys": False, "width": 10_000, "allow_unicode": True}
    return yaml.safe_dump({key.name: example(key)}, **shown).strip().removeprefix("{").removesuffix("}")


def configuration() -> dict[str, str]:
    """Return the pages of all keys by name: one that lists the sections, and one per section with a heading per key."""
    lines = [
        "# Configuration keys\n",
        "Every key of `gateau.yaml`: its type, bounds, default, meaning and an example. Unknown keys are errors.",
        "Placeholders are `<name>`, a name that you choose, and `<n>`, an entry of a list. `gateau schema` prints the",
        "JSON schema, which editors read; `gateau init` writes it into `.gateau/` beside `gateau.yaml`.\n",
        "*affects* names the results that a change makes again. *rows* are those of tables that models compute. The",
        "*ranking* includes the choice of samples, and *published* is the data set on the hub. What reads these",
        "follows if they differ. A key without *affects* counts for all that its section decides.",
        BY,
        "| section | what it is for |",
        "|---|---|",
    ]
    pages: dict[str, list[str]] = {}
    found: dict[str, list[str]] = {}
    for key in all_keys():
        parts = key.place.split(".")
        nested = _parts_of_heading(parts)
        section = found.setdefault(".".join(parts[:nested]), [])
        text = _plain(described(key))
        if len(parts) == nested:
            section.append(f"{text}\n")
            if nested == 1:
                lines.append(f"| [`{key.place}`](configuration/{key.place}.md) | {text} |")
            continue
        facts = [shown_type(key.field.annotation), bounds(key.field), default(key.field), effect(key)]
        section += [
            f"{'###' if nested > 1 else '##'} `{key.place}`\n",
            f"*{'; '.join(each for each in facts if each)}*\n",
            f"{text}\n",
        ]
        if not key.inner:
            section.append(f"Example: `{example_line(key)}`\n")
    for name, section in found.items():
        top, _, nested = name.partition(".")
        pages.setdefault(top, []).extend([f"{'##' if nested else '#'} `{name}`\n", *section])
    index = {"reference/configuration.md": "\n".join([*lines, ""])}
    return index | {f"reference/configuration/{name}.md": "\n".join(page) for name, page in pages.items()}


def _parts_of_heading(parts: list[str]) -> int:
    """Return how many parts of a key's place are its heading: a method's and a benchmark's options have their own."""
    if parts[:2] == ["selection", "options"] and len(parts) > 2:
        return 3
    return 2 if parts[0] == "evaluation" and parts[1:2] in BENCHMARKS else 1


def commands() -> str:
    """Return the page of all commands and their options."""
    lines = ["# Command line\n", "`gateau COMMAND --help` prints the same text.", BY]
    context = click.Context(cli, info_name="gateau", **cli.context_settings)  # commands keep its help options
    for name, command in sorted(cli.commands.items()):
        inner = click.Context(command, info_name=name, parent=context)
        lines += [f"## `gateau {name}`\n", "```text", command.get_usage(inner), "```\n"]
        lines += [_help(command.help or ""), ""]
        for parameter in command.params:
            record = parameter.get_help_record(inner)
            if record is not None and record[1]:
                lines.append(f"- `{record[0]}`: {_plain(record[1])}")
        lines.append("")
    lines += ["## Exit status\n", "| status | meaning |", "|---|---|", "| 0 | done |"]
    lines += ["| 1 | failed; the reason is printed |", "| 2 | wrong usage |", "| 130 | interrupted by Ctrl-C |", ""]
    return "\n".join(lines)


def families() -> dict[str, list[Asset]]:
    """Return all assets by the pattern of their family, in the order of the data's flow."""
    found: dict[str, list[Asset]] = {}
    for asset in pipeline_of(Config.model_validate(EVERYTHING)).assets:
        found.setdefault(asset.pattern, []).append(asset)
    return found


def assets() -> str:
    """Return the page of all assets: a list, then a heading per family with its columns."""
    found = families()
    patterns = {asset.key: pattern for pattern, family in found.items() for asset in family}
    lines = [
        "# Assets and their columns\n",
        "Tables are Parquet files at `<root>/<asset key>/<partition>.parquet`, or `<root>/<asset key>.parquet` without",
        "partitions. Every asset is listed in the order of the data's flow. Placeholders are in angle brackets.",
        BY,
        "| asset | partitions | holds |",
        "|---|---|---|",
    ]
    for pattern, family in found.items():
        partitions = " or ".join(dict.fromkeys(asset.partitions or "–" for asset in family))
        lines.append(f"| [`{pattern}`](#{_anchor(pattern)}) | {partitions} | {_plain(_summary(family))} |")
    lines.append("")
    for pattern, family in found.items():
        lines += [f"## `{pattern}`\n", f"{_sentence(_summary(family))}\n"]
        reads = dict.fromkeys(patterns[read] for asset in family for read in asset.reads)
        if reads:
            few = len(reads) <= MOST_READS
            lines.append(f"Reads: {', '.join(f'`{read}`' for read in reads) if few else 'every table'}.\n")
        columns = {column.name: column for asset in family for column in asset.columns}
        if columns:
            lines += ["| column | type | meaning |", "|---|---|---|"]
            for column in columns.values():
                kind = _polars(column.dtype) + (" or null" if column.nullable else "")
                lines.append(f"| `{column.name}` | {kind} | {_plain(column.description)} |")
            lines.append("")
    return "\n".join(lines)


def python() -> str:
    """Return the page of the Python API, from signatures and docstrings."""
    lines = [
        "# Python API\n",
        "`import gateau_dagster` gives a project to scripts and notebooks. All frames are Polars frames.",
        "`GateauPipeline` is its [component for Dagster](../how-to/dagster.md#into-an-existing-dagster-deployment).",
        BY,
        "```python",
        "import gateau_dagster",
        "",
        'project = gateau_dagster.open("gateau.yaml")',
        "print(project.plan())",
        "print(project.selected().head())",
        "```\n",
    ]
    names = [name for name in gateau_dagster.__all__ if not name.startswith("_")]
    for name in names:
        found = getattr(gateau_dagster, name)
        lines += _callable(f"gateau_dagster.{name}", found, "##")
        if hasattr(found, "model_fields"):  # the component's attributes in defs.yaml
            fields = found.model_fields.items()
            lines += ["| attribute | meaning |", "|---|---|"]
            lines += [f"| `{field}` | {_plain(info.description)} |" for field, info in fields]
            lines.append("")
        elif inspect.isclass(found):
            for method, function in vars(found).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    lines += _callable(f"{name}.{method}", function, "###")
    return "\n".join(lines)


def _callable(name: str, found: Any, level: str) -> Iterator[str]:
    yield f"{level} `{name}`\n"
    if not (inspect.isclass(found) and issubclass(found, Warning)):  # it has no signature
        signature = str(inspect.signature(found)).replace("'", "").replace("self, ", "").replace("(self)", "()")
        yield f"```text\n{name}{signature}\n```\n"
    for paragraph in inspect.cleandoc(found.__doc__ or "").split("\n\n"):
        title, *rest = paragraph.split("\n")
        if not title.endswith(":") or not rest:
            yield f"{_plain(' '.join(paragraph.split()))}\n"
            continue
        yield f"**{title.removesuffix(':')}**\n"
        entries = re.split(r"\n(?=\S)", inspect.cleandoc("\n".join(rest)))
        yield from (f"- {_plain(' '.join(entry.split()))}" for entry in entries)
        yield ""


def errors() -> str:
    """Return the page of all error codes."""
    head = [
        "# Error codes\n",
        "Every error ends with a code in brackets, such as `[config.unknown_key]`. `gateau explain CODE` prints its",
        "entry. `gateau plan --json` and `gateau status --json` contain the codes. Codes are stable; wording is not.",
        BY,
    ]
    entries = (
        f"## `{code}`\n**Cause.** {entry['cause']}\\\n**Cure.** {entry['cure']}\n".replace("<", "&lt;")
        for code, entry in error_codes().items()
    )
    return "\n".join([*head, *entries])


def _summary(family: list[Asset]) -> str:
    return "; ".join(dict.fromkeys(asset.summary for asset in family))


def _anchor(pattern: str) -> str:
    return re.sub(r"[^\w-]", "", pattern.lower())


def _sentence(text: str) -> str:
    return _plain(text[:1].upper() + text[1:]) + "."


def _polars(dtype: pl.DataType) -> str:
    return f"`{dtype}`".replace("|", "\\|")


def _help(text: str) -> str:
    """Return a command's help in Markdown: paragraphs that click does not wrap become code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```text\n{each.strip()}\n```" if each.startswith("\b") else _plain(" ".join(each.split()))
        for each in (paragraph.replace("\b\n", "\b") for paragraph in paragraphs)
    ).replace("\b", "")


def _plain(text: str) -> str:
    """Return text with what Markdown would read as HTML or as a cell's border escaped, outside of code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"[<>]", lambda found: {"<": "&lt;", ">": "&gt;"}[found.group()], each) for each in parts[::2]]
    parts[::2] = [each.replace("|", "\\|").replace("{", "&#123;").replace("*", "\\*") for each in parts[::2]]
    return "`".join(parts)


PAGES = {
    "reference/cli.md": commands,
    "reference/assets.md": assets,
    "reference/python.md": python,
    "errors.md": errors,
}


def main(arguments: list[str]) -> int:
    """Write the pages and return 0; with `--check`, name those that are out of date and return 1 if there are any."""
    stale = []
    for name, text in (configuration() | {name: make() for name, make in PAGES.items()}).items():
        page = DOCS / name
        if "--check" not in arguments:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}: run python scripts/reference.py\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
