"""`gateau forecast` on the store of a finished experiment, and where its tables are missing."""

import json
import tarfile
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest
import yaml

from gateau_dagster import tables
from gateau_dagster.readable import fixed
from gateau_dagster.selection.forecast import VERDICTS
from gateau_dagster.storage.store import Store
from tests.cli.command import Command
from tests.kit.project import ROOT


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The configuration of a store with scores and an experiment."""
    with tarfile.open(ROOT / "tests" / "golden" / "20d4756.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "golden" / "gateau.yaml"


def configure(file: Path, **selection: object) -> None:
    config = yaml.safe_load(file.read_text())
    config["selection"] |= selection
    file.write_text(yaml.safe_dump(config))


def test_the_forecast_is_made_from_the_tables_of_a_store(command: Command, golden: Path) -> None:
    status, out, err = command("forecast", "--config", str(golden))
    assert (status, err) == (0, "")
    assert all(label in out for label in ("Far text", "Use", "Far deficit", "Coverage", "Expected", "Verdict"))
    # Another rule is simulated, and no choice has to exist.
    (golden.parent / "store" / "selected_subset.parquet").unlink()
    configure(golden, fraction=0.5)
    status, out, _ = command("forecast", "--config", str(golden), "--json")
    record = json.loads(out)
    assert status == 0 and record["chosen"] == 7 and record["verdict"] in VERDICTS
    assert record["samples"] == 14 and record["outcomes"] == [] and len(record["warnings"]) == 1
    # `gateau plan` has it where the table `evidence` is asked for.
    plans = []
    for evidence in (False, True):
        configure(golden, evidence=evidence)
        plans.append(json.loads(command("plan", "--config", str(golden), "--json")[1])["forecast"])
    assert plans[0] is None and plans[1]["verdict"] == record["verdict"]


def test_a_finished_experiment_sets_its_outcome_beside_the_forecast(command: Command, golden: Path) -> None:
    """A far segment makes every token of one of the two held-out responses likelier: it is the one of far text."""
    store, far = Store(str(golden.parent / "store")), "s00002"
    for shard in ("0", "1"):
        stamp, rows = store.stamp("cam", shard), store.read("cam", shard).to_dicts()
        assert stamp is not None
        for row in (row for row in rows if row["sample_id"] == far):
            count = len(row["far_probability"])
            row |= {"near_segments": 1, "far_probability": [0.9] * count, "far_segment": [0] * count}
        store.write(pl.DataFrame(rows, schema=tables.schema(tables.CAM)), "cam", shard, stamp)
    for name in ("gateau-s0", "gateau-s1"):
        stamp, scores = store.stamp("scores/heldout", name), store.read("scores/heldout", name)
        assert stamp is not None
        better = pl.col("value") - 0.3 * (pl.col("question_id") == far)
        store.write(scores.with_columns(better), "scores/heldout", name, stamp)
    losses = {
        (model, name): fmean(
            store.read("scores/heldout", f"{model}-s{seed}").filter(question_id=name)["value"].item() for seed in (0, 1)
        )
        for model in ("gateau", "random")
        for name in (far, "s00004")
    }
    record = json.loads(command("forecast", "--config", str(golden), "--json")[1])
    parts = {"far text": (far,), "the rest": ("s00004",), "the use": (far, "s00004")}  # half of the use is far text
    for sentence, (part, names) in zip(record["outcomes"], parts.items(), strict=True):
        change = fmean(losses["gateau", name] - losses["random", name] for name in names)
        assert sentence.startswith(f"gateau against random on {part} (")
        assert f"outcome {fixed(change)}" in sentence.replace("+", "") and "forecast " in sentence
    assert record["use"] == 0.5
    printed = " ".join(command("forecast", "--config", str(golden))[1].split())
    assert all(sentence in printed for sentence in record["outcomes"])
    store.files.remove("experiment.parquet")
    assert json.loads(command("forecast", "--config", str(golden), "--json")[1])["outcomes"] == []


def test_missing_tables_are_named_with_what_makes_them(command: Command, project: Path) -> None:
    status, _, err = command("forecast", "--config", str(project))
    assert status == 1 and "[forecast.tables]" in err and "gateau run --until selected_subset" in " ".join(err.split())
    configure_only(project)
    status, _, err = command("forecast", "--config", str(project))
    assert status == 1 and "[forecast.tables]" in err and "selection.compare" in " ".join(err.split())


def configure_only(file: Path) -> None:
    """A method that reads neither `cam` nor theta_B's perplexities."""
    config = yaml.safe_load(file.read_text())
    config["selection"] = {"method": "length"}
    file.write_text(yaml.safe_dump(config))
