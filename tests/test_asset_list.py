"""The README lists the assets as they are declared."""

import subprocess
import sys

from gateau_dagster.pipeline.pipeline import pipeline_of
from tests.pipeline.by_method import maximal
from tests.project import ROOT, command_environment


def test_the_readme_lists_what_is_declared() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "asset_list.py"), "--check"]
    done = subprocess.run(command, env=command_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python scripts/asset_list.py\n{done.stderr}"


def test_whatever_a_method_asks_for_is_in_the_list() -> None:
    listed = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- end of assets -->")[0]
    assert not {asset.pattern for asset in pipeline_of(maximal()).assets if f"`{asset.pattern}`" not in listed}
