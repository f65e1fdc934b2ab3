"""`python scripts/lock.py`: writes requirements.lock and requirements-dev.lock from what is installed here."""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_HEADER = """\
# Exact versions of all that is installed; remade by scripts/lock.py.
# torch: any other version, or a range, brings gigabytes of CUDA packages on a machine without a GPU.
"""
# Without `evaluation`, whose lm-eval brings 25 packages for one benchmark: its tests are left out where it is missing.
_FOR_TESTS = ("dev", "datasets", "judge", "postgres", "publish", "ray")
_DEV_HEADER = "# What tests and checks need beyond requirements.lock.\n-r requirements.lock\n"


def closure(requirements: list[str]) -> dict[str, str]:
    """Installed version of each package that the requirements need, directly or not."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        package = importlib.metadata.distribution(requirement.name)
        found[key[0]] = package.version.split("+")[0]  # a local label such as +cpu names a build, not a version
        waiting += [needed for text in package.requires or [] if _applies(needed := Requirement(text), requirement)]
    return found


def _applies(needed: Requirement, by: Requirement) -> bool:
    extras = by.extras or {""}
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)


def main() -> None:
    """Writes both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = closure(project["dependencies"])
    dev = closure([each for extra in _FOR_TESTS for each in project["optional-dependencies"][extra]])
    lines = [f"{name}=={version}\n" for name, version in sorted(run.items())]
    (ROOT / "requirements.lock").write_text(_HEADER + "".join(lines))
    lines = [f"{name}=={version}\n" for name, version in sorted(dev.items()) if name not in run]
    (ROOT / "requirements-dev.lock").write_text(_DEV_HEADER + "".join(lines))


if __name__ == "__main__":
    main()
