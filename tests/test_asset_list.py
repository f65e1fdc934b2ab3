"""The README lists the assets as they are declared."""

import subprocess
import sys

from tests.project import ROOT, command_environment


def test_the_readme_lists_what_is_declared() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "asset_list.py"), "--check"]
    done = subprocess.run(command, env=command_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python scripts/asset_list.py\n{done.stderr}"
