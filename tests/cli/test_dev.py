"""`gateau dev` and Dagster's own commands serve one code location, by one name: turned on in one, on in the other."""

import tomllib
from typing import Any

import yaml

from gateau_dagster.assets.runs.launching import ATTRIBUTE, LOCATION, MODULE, location_origin
from tests.project import ROOT


def served(workspace: str) -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / workspace).read_text())["load_from"]


def test_one_name_of_the_code_location() -> None:
    target = {"module_name": MODULE, "attribute": ATTRIBUTE, "location_name": LOCATION}
    assert served("workspace.yaml") == served("gateau_dagster/workspace.yaml") == [{"python_module": target}]
    dagster = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dagster"]
    assert (dagster["module_name"], dagster["code_location_name"]) == (MODULE, LOCATION)
    assert location_origin().code_location_origin.location_name == LOCATION
