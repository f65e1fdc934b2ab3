"""Write the card of a published data set: its README.md on the hub, from stored tables and the configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import PurePosixPath
from typing import Any

import polars as pl
import yaml

from gateau_dagster.config import Config
from gateau_dagster.config.base import without_effect
from gateau_dagster.features.publish.config import PublishConfig
from gateau_dagster.pipeline.choice import ResponseShare
from gateau_dagster.pipeline.selection_reads import scored_by
from gateau_dagster.readable import percentage, plural
from gateau_dagster.selection.wording import chosen_by, ranked_by

CARD, LENGTHS_CHART = "README.md", "charts/lengths.png"
# Every card holds this text. A README that a person writes hardly does.
CARD_MARK = "| made with | gateau-dagster "
# Where the hub's categories of sizes begin.
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
_LARGEST = "1M<n<10M"
# Keys of the configuration with paths: the card shows nobody's folders.
_PATHS = frozenset({"path", "texts", "short_texts", "plugins", "deepspeed"})
_QUANTILES = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "longest": 1.0}
_CONTENTS = {
    "selected": "the chosen samples, best first: `messages`, `sample_id`, `source`, `score`, `rank`",
    "scores": "the scores of every sample, chosen or not",
    "evidence": "the parts of its context that each response depends on, and how far it depends on them",
}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The facts of a data card.

    sizes: rows of each configuration by its name. lengths: a row per sample, with `source` str, `selected` bool, and
    the lengths `context_<unit>` and `response_<unit>`. losses: sentences on rejected and truncated data. checks:
    sentences on the checks before the upload. fingerprint: the chosen samples' fingerprint. is_whole: whether the
    shown configuration alone decides it. rule: the rule that chose them. responses: the chosen samples' tokens. trust:
    the panel of explanation.trust. far: the share of them that depend on far text; None if it is not known.
    """

    config: Config
    options: PublishConfig
    sizes: Mapping[str, int]
    lengths: pl.DataFrame
    unit: str
    losses: Sequence[str]
    checks: Sequence[str]
    fingerprint: str
    is_whole: bool
    rule: str = ""
    responses: ResponseShare | None = None
    trust: Sequence[tuple[str, str]] = ()
    far: float | None = None

    @property
    def chosen(self) -> pl.DataFrame:
        """Return the rows of `lengths` that are selected."""
        return self.lengths.filter("selected")


def published_configuration(config: Config) -> dict[str, Any]:
    """Return the sections that give the same selection from the same files, as the data card shows them."""
    return config.model_dump(
        mode="json",
        include={"long_sft", "models", "scoring", "selection"},
        exclude=without_effect(config, "published"),
        exclude_defaults=True,
    )


def data_card(facts: CardFacts) -> str:
    """Return the card as Markdown, with the front matter that the hub and `datasets` read.

    It holds no time and no folder of this machine, so equal facts give the same text.
    """
    options, selection = facts.options, facts.config.selection
    selection = selection.model_copy(update={"options": _shown(selection.options)})
    name = options.repository.rpartition("/")[2]
    chosen, given = facts.chosen.height, facts.lengths.height
    header = yaml.safe_dump(_front_matter(facts, name), sort_keys=False, allow_unicode=True)
    models = [f"`{key}`: {_cell(_shown(path, is_path=True))}" for key, path in scored_by(facts.config)]
    method = [
        ("ranked by", _cell(ranked_by(selection))),
        ("rule", _cell(chosen_by(selection, facts.rule, far=facts.far))),
        *([("models", "; ".join(models))] if models else []),
        ("fingerprint", f"`{facts.fingerprint}`"),
        ("made with", f"gateau-dagster {version('gateau-dagster')}"),
    ]
    # Without the training, whose benchmarks may need more of the data or of the models than the selection does.
    reproduced = {**_shown(published_configuration(facts.config)), "training": {"enabled": False}}
    shown = yaml.safe_dump(reproduced, sort_keys=False, allow_unicode=True)
    loading = [f'load_dataset("{options.repository}", "{key}", split="train")' for key in facts.sizes]
    sections = [
        f"# {name}",
        f"{chosen:,} of {plural(given, 'long instruction sample')} ({percentage(chosen / max(1, given))}), chosen for "
        "training with long contexts.",
        _table(
            ("configuration", "rows", "content"), [(f"`{k}`", f"{n:,}", _CONTENTS[k]) for k, n in facts.sizes.items()]
        ),
        _block("python", "\n".join(["from datasets import load_dataset", "", *loading])),
        *(["## Trust", _table(("", "on this data"), [(a, _cell(b)) for a, b in facts.trust])] if facts.trust else []),
        "## Method",
        _table(("setting", "value"), method),
        "## Sources",
        _table(("source", "given", "chosen", "share chosen"), _sources(facts)),
        "## Lengths",
        _table((f"lengths ({facts.unit})", *_QUANTILES), _quantiles(facts)),
        *([f"{facts.responses.sentence}."] if facts.responses is not None else []),
        f"![Lengths of all and of chosen samples]({LENGTHS_CHART})",
        "## Left out",
        "\n".join(f"- {_cell(each)}" for each in facts.losses) or "Nothing was rejected or cut.",
        "## Checks",
        "\n".join(f"- {_cell(each)}" for each in facts.checks),
        "## Reproduce",
        f"Write these sections into `gateau.yaml`, correct the paths, and run `gateau run --until selected_subset` of "
        f"gateau-dagster {version('gateau-dagster')}.{' The same files give the fingerprint above.' * facts.is_whole}",
        _block("yaml", shown),
    ]
    return f"---\n{header}---\n\n" + "\n\n".join(sections) + "\n"


def _shown(value: Any, *, is_path: bool = False) -> Any:
    """Return a part of the configuration with the names of local files in place of their absolute paths."""
    if isinstance(value, dict):
        return {key: _shown(each, is_path=is_path or key in _PATHS) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each, is_path=is_path) for each in value]
    return PurePosixPath(value).name if is_path and isinstance(value, str) and value.startswith(("/", "~")) else value


def _front_matter(facts: CardFacts, name: str) -> dict[str, Any]:
    size = next((text for limit, text in _SIZES.items() if facts.sizes["selected"] < limit), _LARGEST)
    configs = [
        {
            "config_name": key,
            "data_files": [{"split": "train", "path": data_file(key)}],
            **({} if at else {"default": True}),
        }
        for at, key in enumerate(facts.sizes)
    ]
    return {
        "license": facts.options.license,
        "pretty_name": name,
        "tags": ["gateau", "long-context", "sft"],
        "task_categories": ["text-generation"],
        "size_categories": [size],
        "configs": configs,
    }


def data_file(config: str) -> str:
    """Return the path of a configuration's file in the data set."""
    return f"data/{config}.parquet"


OWN_FILES = frozenset({*map(data_file, _CONTENTS), LENGTHS_CHART})
"""Files that a revision may hold besides the card."""


def lengths_chart(facts: CardFacts) -> bytes:
    """Return the chart of the lengths as a PNG image."""
    from gateau_dagster.plots.score_plots import text_lengths
    from gateau_dagster.plotting import to_png

    return to_png(text_lengths(facts.lengths, selected=facts.lengths["selected"], unit=facts.unit))


def _sources(facts: CardFacts) -> list[tuple[str, ...]]:
    counts = facts.lengths.group_by("source").agg(given=pl.len(), chosen=pl.col("selected").sum())
    ordered = counts.sort(["chosen", "source"], descending=[True, False], nulls_last=True)
    return [
        (_cell(source or "(unknown)"), f"{given:,}", f"{chosen:,}", percentage(chosen / given))
        for source, given, chosen in ordered.iter_rows()
    ]


def _quantiles(facts: CardFacts) -> list[tuple[str, ...]]:
    found = []
    for part, (name, frame) in product(
        ("context", "response"), (("all samples", facts.lengths), ("chosen", facts.chosen))
    ):
        values = frame[f"{part}_{facts.unit}"].drop_nulls()
        quantiles = [values.quantile(each, "nearest") for each in _QUANTILES.values()]
        found.append((f"{part}, {name}", *("–" if each is None else f"{each:,.0f}" for each in quantiles)))
    return found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return a text of the data or the configuration so that it is not read as Markdown."""
    line = " ".join(text.split()).replace("\\", "\\\\")
    for sign in "|`*_[]<>#":
        line = line.replace(sign, f"\\{sign}")
    return line


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
