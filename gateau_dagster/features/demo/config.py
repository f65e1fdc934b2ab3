"""Define the section `demo`, and the addresses of what the demo builds."""

from pathlib import Path
from typing import Any

from pydantic import Field

from gateau_dagster.config.base import Affects, FeatureSection, MadeFiles, Section
from gateau_dagster.config.values import MOST_SEEDS
from gateau_dagster.errors import GateauError

# Paths with this prefix are data of the demo; `demo_path` resolves them.
DEMO_SCHEME = "demo:"
PAIR_FOLDER = "pair"
# Configurations of the pair, which exist before it is built.
SHAPES_FOLDER = "shapes"
# Identifies the pair in fingerprints: raise it when the same seed gives other weights.
RECIPE_VERSION = "3"


class DemoConfig(Section):
    """The data that the embedded demo builds before the pipeline starts."""

    affects = Affects(through="the data that the demo builds")

    seed: int = Field(
        default=0, ge=0, lt=MOST_SEEDS, description="Seed of the pair's initialisation and of the samples."
    )
    samples: int = Field(
        default=200, ge=10, le=1_000_000, description="Number of long samples, of five kinds with known dependencies."
    )
    conversations: int = Field(default=60, ge=1, le=1_000_000, description="Short conversations.")


def demo_folder(work_folder: Path, demo: DemoConfig) -> Path:
    """Return the folder of this demo's pair and data; each seed and size has its own."""
    return work_folder / "demo" / f"seed{demo.seed}-{demo.samples}-{demo.conversations}"


def demo_shape(address: str, work_folder: Path, demo: DemoConfig) -> Path:
    """Return the folder of the config.json of `demo:short` or `demo:long`, which exists before the model is built."""
    return demo_folder(work_folder, demo) / SHAPES_FOLDER / address.removeprefix(DEMO_SCHEME)


def demo_path(address: str, work_folder: Path, demo: DemoConfig) -> str:
    """Return the real path behind `demo:short`, `demo:long`, `demo:samples` or `demo:conversations`.

    Raises:
        ValueError: the name after `demo:` is none of these.
    """
    names = {
        "short": f"{PAIR_FOLDER}/short",
        "long": f"{PAIR_FOLDER}/long",
        "samples": "samples.jsonl",
        "conversations": "conversations.jsonl",
    }
    name = address.removeprefix(DEMO_SCHEME)
    if name not in names:
        raise GateauError(
            "demo.address",
            f"{address}: the demo has no such part: write one of {', '.join(DEMO_SCHEME + known for known in names)}",
        )
    return str(demo_folder(work_folder, demo) / names[name])


def _check(config: Any) -> None:
    """Raise GateauError if an address of the demo's data needs the section, and the file lacks it."""
    for name, path in config.addresses() if SECTION.of(config) is None else ():
        if path.startswith(DEMO_SCHEME):
            raise GateauError("demo.address", f"{name}: {path} needs the section demo: add it, or change the path")


SECTION = FeatureSection(
    key="demo",
    kind=DemoConfig,
    description="Settings of the data and models behind paths that begin with demo:.",
    made_files=MadeFiles(
        prefix=DEMO_SCHEME,
        located=lambda config, address: demo_path(address, config.work_folder, config.demo),
        shape=lambda config, address: demo_shape(address, config.work_folder, config.demo),
        digest=lambda config, address: f"{address}:{RECIPE_VERSION}:seed{config.demo.seed}",
    ),
    check=_check,
)
