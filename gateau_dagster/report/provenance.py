"""Collect the origin of the figures: configuration, fingerprints, and how the samples were chosen."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import yaml

from gateau_dagster.config import Config, SelectionConfig
from gateau_dagster.config.selection import DEFAULT_FRACTION, SCORES, Rule
from gateau_dagster.evaluation.registry import with_benchmarks
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.pipeline.selection_reads import tables_read
from gateau_dagster.readable import number, percentage


def ranked_by(selection: SelectionConfig) -> str:
    """Return the method: for GATEAU with preset and alpha, for a file of scores with its path."""
    if selection.method == SCORES:
        return f"Method {SCORES}: {selection.options[SCORES]['path']}"
    if selection.method != "gateau":
        return f"Method {selection.method}"
    return f"Method gateau, preset {selection.preset}, α = {selection.alphas[selection.preset]}"


def scored_by(config: Config) -> list[tuple[str, str]]:
    """Return name and path of every model whose tables the selection or a compared method reads."""
    read = {table.model for table in sample_tables(config).values()}
    for asset in tables_read(config):
        family, _, model = asset.partition("/")
        read |= {"short", "long"} if asset == "cam" else {model} if family == "perplexity" else set()
    return [(name, model.path) for name, model in config.models.items() if name in read]


def chosen_by(selection: SelectionConfig, taken: str = "", *, far: float | None = None) -> str:
    """Return the selection rule and its amount (`config.selection.RuleConfig`).

    Args:
        selection: the configured selection.
        taken: the rule that `auto` took.
        far: the share of the chosen samples that depend on far text, in [0, 1], from selection.evidence.far_share.
    """
    tokens = f"{number(selection.budget or 0)} tokens"
    amount = _amount(selection) if selection.budget is None else f"a budget of {tokens}"
    auto = ""
    if selection.rule == "auto" and taken:
        selection, auto = selection.under(cast(Rule, taken)), f" (rule {taken}, which auto took)"
    quota = f"{100 * selection.use['far']:g} % of it" if isinstance(selection.use, dict) else "a quota"
    phrases = {
        "top": amount,
        "token_budget": amount,
        "per_source": f"{amount}, each source its share",
        "per_source_tokens": f"{amount}, the same percentage of every source",
        "diverse": f"{amount}, and the {selection.per_cluster} best of every cluster besides",
        "mix": f"{amount}, {quota} from samples that depend on far text, and others drawn at random",
        "clean": f"{amount}, drawn at random",
        "auto": f"{amount}, as the forecast decides",
        "ccs": f"{amount}, evenly over the range of scores",
    }
    limit = selection.per_document
    by_document = "" if limit is None else f", at most {limit} of a document"
    share = "" if far is None else f"; {percentage(far)} of the chosen samples depend on far text"
    return phrases[selection.rule] + auto + by_document + share


def _amount(selection: SelectionConfig) -> str:
    if selection.count is not None:
        return f"count ({number(selection.count)})"
    return f"fraction ({100 * (selection.fraction or DEFAULT_FRACTION):g} %)"


PACKAGES = (
    "gateau-dagster", "torch", "transformers", "tokenizers", "safetensors", "accelerate", "deepspeed", "dagster",
    "polars", "pyarrow", "numpy", "scipy", "pydantic", "matplotlib",
)  # fmt: skip
_CREDENTIALS = re.compile(r"(://)[^/@\s'\"]*@")


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes a list of plain values on one line: a benchmark's word lists would fill screens."""

    def represent_list(self, data: list[Any]) -> yaml.Node:
        plain = not any(isinstance(value, dict | list) for value in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _Dumper.represent_list)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The record of a run as text, ready to show."""

    generated_at: str
    command: str | None
    python: str
    system: str
    packages: list[tuple[str, str]]
    fingerprints: list[tuple[str, str]]
    configuration: str


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a result, without importing them."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def configuration_text(config: Config) -> str:
    """Return the configuration with all defaults filled in, as YAML that gives the same configuration when loaded.

    No key of it holds a secret. A `user:password@` in an address is removed.
    """
    filled = with_benchmarks(config).model_dump(mode="json")
    text = yaml.dump(filled, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return _CREDENTIALS.sub(r"\1", text)


def provenance(
    config: Config, *, fingerprints: Mapping[str, str], generated_at: datetime, command: str | None = None
) -> Provenance:
    """Return the record of a run. `generated_at` should have a time zone; `fingerprints` is by asset key."""
    return Provenance(
        generated_at=generated_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
        command=None if command is None else _CREDENTIALS.sub(r"\1", command),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        packages=list(package_versions().items()),
        fingerprints=sorted(fingerprints.items()),
        configuration=configuration_text(config),
    )
