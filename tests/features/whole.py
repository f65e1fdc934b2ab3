"""Find what each feature adds to tests of the whole product: the module `whole` in the folder of its tests.

Each name in such a module is optional:

- NAME, SECTION: its section of the configuration, as in `maximal`.
- CODE_VERSIONS: the assets that each constant of its code is the version of.
- CHANGES: changed configurations; NOT_SHOWN: keys without effect on the report, as `exclude` of pydantic.
"""

import importlib
from pathlib import Path
from typing import Any

NAMES = sorted(file.parent.name for file in Path(__file__).parent.glob("*/whole.py"))


def of_features(name: str) -> dict[str, Any]:
    """The value of this name of each feature that has one, by the name of its section."""
    modules = [importlib.import_module(f"tests.features.{each}.whole") for each in NAMES]
    return {module.NAME: getattr(module, name) for module in modules if hasattr(module, name)}
