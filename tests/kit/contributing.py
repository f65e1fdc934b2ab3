"""The worked examples of CONTRIBUTING.md, which tests run."""

import re

from tests.kit.project import ROOT


def section(heading: str) -> str:
    """The text of the section `## <heading>`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))[heading]


def block(heading: str, index: int = 0) -> str:
    """The Python block number `index` of that section."""
    return re.findall(r"```python\n(.*?)```", section(heading), re.DOTALL)[index]
