"""On the demo, one command takes every method x fraction x seed, and all samples, from training to the report's table,
and trains nothing twice.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateau_dagster.features.demo.config import PAIR_FOLDER, SECTION, demo_folder
from gateau_dagster.features.demo.prepare import demo_samples, embedded_demo, write_jsonl
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import change_config, gateau

METHODS, FRACTIONS, SEEDS = ["gateau", "random", "length"], [0.1, 0.3], [1, 2]
BENCHMARKS = ["heldout", "needle", "text_perplexity"]


def written(folder: Path, pair: Path) -> Path:
    """The demo as a file, with an experiment and fewer steps."""
    content: dict[str, Any] = {
        "demo": {},
        "long_sft": {"path": "demo:samples", "shards": 4},
        "short_chat": {"path": "demo:conversations"},
        "models": {"short": {"path": "demo:short", "context": "window"}, "long": {"path": "demo:long"}},
        "scoring": {"max_length": 2048, "segment_length": 128, "dtype": "float32"},
        "training": {"max_length": 2048, "max_steps": 3, "gradient_accumulation": 2, "dtype": "float32", "seed": 1},
        "selection": {"fraction": 0.3},
        "variants": {"methods": METHODS, "fractions": FRACTIONS, "seeds": SEEDS, "also": ["full"]},
        "evaluation": {
            "benchmarks": BENCHMARKS,
            "heldout": {"samples": 8, "buckets": [1024]},
            "needle": {**evaluation_of(embedded_demo(folder)).sections["needle"], "lengths": [512], "repeats": 4},
            "text_perplexity": {"texts": "texts.jsonl", "lengths": [128, 256]},
        },
    }
    write_jsonl(folder / "texts.jsonl", [{"text": sample["context"]} for sample in demo_samples(12, 99)])
    file = folder / "gateau.yaml"
    file.write_text(yaml.safe_dump(content))
    config = load_project(file)
    section = SECTION.of(config)
    assert section is not None
    shutil.copytree(pair, demo_folder(config.work_folder, section) / PAIR_FOLDER)  # built once for this folder
    return file


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_experiment_on_the_demo(trained_pair: Path, tmp_path: Path) -> None:
    file = written(tmp_path, trained_pair)
    gateau("run", "--config", str(file), folder=tmp_path)
    state = state_of(config=load_project(file))
    trained = [name for name, variant in state.config.variant_set.items() if variant.trained]
    assert len(trained) == len(METHODS) * len(FRACTIONS) * len(SEEDS) + len(SEEDS)
    rows = {name: state.store.read("variant/checkpoint", name).row(0, named=True) for name in trained}
    assert len({row["model"] for row in rows.values()}) == len(trained)
    stamps = {name: state.stamp("variant/checkpoint", name) for name in (*trained, "checkpoint")}
    contents = {name: stamp.content for name, stamp in stamps.items() if stamp is not None}
    assert contents["checkpoint"] == contents["gateau-0.3-s1"], "the single run is one of them, and trained once"
    assert len({*contents.values()}) == len(trained)
    assert all(row["samples"] and row["tokens"] and row["seconds"] > 0 for row in rows.values())

    table, cells = state.store.read("experiment"), len(METHODS) * len(FRACTIONS) + len(["full", "base", "checkpoint"])
    assert dict(table["benchmark"].value_counts().iter_rows()) == dict.fromkeys(BENCHMARKS, cells)
    assert table.select("low", "high").null_count().row(0) == (0, 0) and table["best"].any()
    page = (tmp_path / "gateau_store" / "report.html").read_text()
    assert all(name in page for name in ("gateau-0.1", "random-0.3", "length-0.1", "full"))

    again = gateau("run", "--config", str(file), folder=tmp_path)
    assert "Everything is up to date" in again.stdout
    change_config(file, variants={"methods": [*METHODS, "response_length"]})
    plan = json.loads(gateau("plan", "--json", "--config", str(file), folder=tmp_path).stdout)
    new = {f"response_length-{fraction}-s{seed}" for fraction in FRACTIONS for seed in SEEDS}
    found = {name for work in plan["work"] for name in work.get("variants", [])}
    assert found == new, "a method more is its own trainings alone"
