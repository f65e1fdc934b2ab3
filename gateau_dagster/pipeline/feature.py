"""Define what a feature adds to the pipeline, and find the features."""

from collections.abc import Callable, Iterator
from functools import cache

from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.registry import feature_parts


class Feature:
    """A feature's additions to the pipeline, as FEATURE in its module `feature`; none of them is required.

    Its other modules: `config` (SECTION), `assets` (functions that make its assets), `commands` (COMMANDS).
    """

    scratch: tuple[str, ...] = ()
    """Folders in the work folder that nothing needs after a run."""

    def check(self, config: Config) -> None:
        """Check the feature's section against the others. Raise GateauError for the first mistake."""

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield checks that this machine has what the feature needs. They raise GateauError."""
        del config
        yield from ()

    def warnings(self, config: Config) -> Iterator[str]:
        """Yield a sentence for each setting that is valid but may be unintended."""
        del config
        yield from ()

    def beside(self, config: Config) -> Iterator[Asset]:
        """Yield the assets that a run keeps up to date, and that the report does not show."""
        del config
        yield from ()

    def no_secrets(self, config: Config) -> frozenset[str]:
        """Return the hashes of findings of the scanner that users call no secrets."""
        del config
        return frozenset()


@cache
def features() -> tuple[Feature, ...]:
    """Return all features, in the alphabetical order of their folders."""
    return tuple(feature_parts("feature", "FEATURE", Feature))
