"""`README.md` of a trained model: what it began as, what it learned from, how, and with which versions."""

import html
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from gateau_dagster.training.batch_plan import BatchPlan
from gateau_dagster.training.metrics import Metrics
from gateau_dagster.training.spec import TrainingSpec

CARD_NAME = "README.md"
# Not of the recipe, or said in other words.
_ELSEWHERE = {"enabled", "model", "deepspeed", "launcher", "hostfile", "gradient_accumulation"}
_PACKAGES = ("gateau-dagster", "torch", "transformers", "accelerate", "deepspeed", "peft")


def model_card(spec: TrainingSpec, plan: BatchPlan, steps: Sequence[Metrics]) -> str:
    """The card, Markdown with the front matter that the Hugging Face hub reads.

    Args:
        spec: of the training.
        plan: its batches.
        steps: its log.
    """
    front = {
        "base_model": None if Path(spec.base_model).is_absolute() else spec.base_model,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gateau-dagster", "long-context"],
    }
    matter = yaml.safe_dump({key: value for key, value in front.items() if value is not None}, sort_keys=False)
    sections = [
        f"---\n{matter}---\n\n# {_plain(Path(spec.base_model).name)}, trained for long contexts",
        _section("Data", {"Base model": _base(spec), **spec.provenance}),
        _section("Outcome", _outcome(plan, steps)),
        _section("Recipe", _recipe(spec)),
        _section("Versions", _versions()),
    ]
    return "\n\n".join(sections) + "\n"


def _base(spec: TrainingSpec) -> str:
    name = Path(spec.base_model).name if Path(spec.base_model).is_absolute() else spec.base_model
    return name if spec.revision is None else f"{name}, revision {spec.revision}"


def _outcome(plan: BatchPlan, steps: Sequence[Metrics]) -> dict[str, str]:
    documents = sum(len(row) for row in plan.rows)
    found = {"Optimiser steps": f"{plan.steps:,}", "Sequences, all epochs": f"{documents:,}"}
    if steps:
        found |= {
            "Tokens, all epochs": f"{steps[-1]['tokens']:,}",
            "Loss, first and last step": f"{steps[0]['loss']:.4f}, {steps[-1]['loss']:.4f}",
        }
    return found


def _recipe(spec: TrainingSpec) -> dict[str, str]:
    """Every setting of `training` that is not off, and what DeepSpeed was told."""
    training = spec.training
    settings = training.model_dump(mode="json", exclude=_ELSEWHERE)
    found = {"Template": spec.template, "Passes per step": str(training.passes_per_step)}
    if spec.rope_theta is not None:
        found["rope_theta"] = f"{spec.rope_theta:g}"
    found |= {name: _shown(value) for name, value in settings.items() if not _is_off(value)}
    if spec.deepspeed is not None:
        found["deepspeed, zero_optimization"] = _shown(spec.deepspeed["zero_optimization"])
    return found


def _is_off(value: Any) -> bool:
    """A rate or a seed of 0 is a setting."""
    return value is None or value is False or value in ([], {})


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # peft is there for LoRA only
    return found


def _section(title: str, lines: Mapping[str, str]) -> str:
    rows = [f"| {_plain(name)} | {_plain(text)} |" for name, text in lines.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Markdown that shows the text as it is: names and settings bring neither HTML, links and cells nor new lines."""
    marks = {"|": "&#124;", "`": "&#96;", "](": "]&#40;", "*": "&#42;"}
    shown = html.escape(" ".join(text.split()), quote=False)
    for mark, written in marks.items():
        shown = shown.replace(mark, written)
    return shown
