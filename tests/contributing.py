"""The worked examples of CONTRIBUTING.md, which tests run."""

import re

from tests.project import ROOT


def block(heading: str, index: int = 0) -> str:
    """The Python block number `index` of the section `## <heading>`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    return re.findall(r"```python\n(.*?)```", sections[heading], re.DOTALL)[index]
