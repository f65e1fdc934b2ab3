"""Make the demo's data and models for configurations that name them."""

from pathlib import Path

from gateau_dagster.config import Config
from gateau_dagster.features.demo.config import SECTION
from gateau_dagster.features.demo.language import planted_values
from gateau_dagster.features.demo.prepare import (
    embedded_demo,
    ensure_demo_data,
    ensure_demo_pair,
    ensure_demo_tokenizer,
    is_demo_store,
)
from gateau_dagster.pipeline.feature import Feature, Inputs, Planted
from gateau_dagster.progress import Progress


class Demo(Feature):
    """The embedded demo."""

    def prepare(self, config: Config, inputs: Inputs, progress: Progress) -> None:
        """Write samples and conversations, the pair's tokenizers, or the pair."""
        if inputs == "models":
            ensure_demo_pair(config, progress)
        elif inputs == "tokenizers":
            ensure_demo_tokenizer(config)
        else:
            ensure_demo_data(config)

    def configuration(self, folder: Path) -> Config:
        """Return the demo's configuration."""
        return embedded_demo(folder)

    def planted(self, config: Config) -> Planted | None:
        """Return `planted_values` for a configuration of the demo."""
        return None if SECTION.of(config) is None else planted_values

    def is_built_in(self, store: Path) -> bool:
        """Return whether the samples of a local store are those of the demo."""
        return is_demo_store(store)


FEATURE = Demo()
