"""The card says what the model began as, what it learned from, how, and with which versions."""

from dataclasses import replace
from pathlib import Path

import torch
import transformers
import yaml

from gateau_dagster.training.batch_plan import read_plan
from gateau_dagster.training.model import model_card
from gateau_dagster.training.train import plan_of, read_mix, train
from tests.training.builders import make_spec


def test_the_card_of_a_training(tmp_path: Path) -> None:
    spec = replace(
        make_spec(tmp_path, max_steps=3, skip={"length": 500}, preset="skipalign", deepspeed=None),
        provenance={"Selection": "preset robust | alpha 0.5"},
    )
    train(spec, lambda metrics: None)
    card = (spec.output / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "transformers"
    assert "base_model" not in front  # a folder of this machine is no name for others
    assert str(tmp_path) not in card
    lines = card.splitlines()
    for line in (
        "| Base model | base |",
        "| Selection | preset robust &#124; alpha 0.5 |",
        "| Optimiser steps | 3 |",
        "| Sequences, all epochs | 12 |",
        '| skip | {"strategy": "outer", "length": 500, "probability": 0.5} |',
        "| preset | skipalign |",
        "| weight_decay | 0.0 |",  # as the preset says, and not off
        "| learning_rate | 0.005 |",
        f"| torch | {torch.__version__} |",
        f"| transformers | {transformers.__version__} |",
    ):
        assert line in lines
    assert read_plan(spec.output / "batch_plan.parquet") == plan_of(spec, read_mix(spec.mix))


def test_a_name_of_the_hub_is_linked(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path), base_model="meta-llama/Llama-2-7b-hf", revision="main", rope_theta=2e6)
    card = model_card(spec, plan_of(spec, read_mix(spec.mix)), [])
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "meta-llama/Llama-2-7b-hf"
    assert "| Base model | meta-llama/Llama-2-7b-hf, revision main |" in card
    assert "| rope_theta | 2e+06 |" in card


def test_names_bring_no_markup_into_the_card(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> | `code` [link](http://x) **bold**\n\n# heading"
    spec = replace(make_spec(tmp_path), base_model="<b>evil</b>", revision=evil, provenance={"Selection <i>": evil})
    card = model_card(spec, plan_of(spec, read_mix(spec.mix)), [])
    front, body = card.split("---\n", 2)[1:]
    assert yaml.safe_load(front)["base_model"] == "<b>evil</b>", "data there, not text"
    assert not any(mark in body for mark in ("<", "](", "`", "**", "\n# heading"))
    (row,) = [line for line in body.splitlines() if line.startswith("| Selection")]
    assert row.count("|") == 3 and "&lt;img src=x onerror=alert(1)&gt;" in row
