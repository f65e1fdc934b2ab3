"""Writes the README's list of assets from their declarations; with `--check`, only says whether it is current."""

import sys
from pathlib import Path
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.pipeline.pipeline import pipeline_of

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- assets: scripts/asset_list.py -->\n", "<!-- end of assets -->\n"
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
    },
    "variants": {"methods": ["gateau"], "fractions": [0.1]},
    "evaluation": {
        "benchmarks": ["heldout", "needle", "mt_bench"],
        "mt_bench": {key: f"s3://a/{key}" for key in ("questions", "references", "prompts")},
        "judge": {"base_url": "http://localhost:8000/v1", "model": "judge"},
    },
}


def asset_list() -> str:
    """A table in Markdown: a row for assets that hold the same, in the order of the data's flow."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for asset in pipeline_of(Config.model_validate(EVERYTHING)).assets:
        partitions, summaries = found.setdefault(asset.pattern, ([], []))
        partitions += [name for name in [asset.partitions or "–"] if name not in partitions]
        summaries += [text for text in [asset.summary] if text not in summaries]
    rows: dict[tuple[str, str], list[str]] = {}
    for pattern, (partitions, summaries) in found.items():
        rows.setdefault((" or ".join(partitions), "; ".join(summaries)), []).append(f"`{pattern}`")
    lines = ["| asset | partitions | holds |", "|---|---|---|"]
    lines += [f"| {', '.join(patterns)} | {partitions} | {holds} |" for (partitions, holds), patterns in rows.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Returns the exit status: with `--check`, 1 where the README says something else."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = before + BEGIN + asset_list() + END + after
    if "--check" in arguments:
        return int(wanted != text)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
