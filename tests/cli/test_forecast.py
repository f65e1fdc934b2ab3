"""`gateau forecast` on the store of a finished experiment, and where its tables are missing."""

import json
import tarfile
from pathlib import Path

import pytest
import yaml

from gateau_dagster.selection.forecast import VERDICTS
from tests.cli.command import Command
from tests.project import ROOT


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
