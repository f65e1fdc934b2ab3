"""Declare the asset `report`: the page, and the viewer of all samples beside it."""

from collections.abc import Iterator, Sequence

from gateau_dagster.config import Config
from gateau_dagster.config.base import without_effect
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.feature import Feature, completed
from gateau_dagster.storage.stamp import fingerprint

REPORT_FILE, EXPLORER_FILE = "report.html", "explore.html"
# Versions of the page and of the viewer beside it: raise one when the same tables give a different file.
REPORT_CODE_VERSION, EXPLORER_CODE_VERSION = "17", "3"


class Report(Feature):
    """The page and the viewer."""

    def declare_last(self, config: Config, shown: Sequence[str]) -> Iterator[Asset]:
        """Declare the report, which shows every required asset."""
        yield Asset(
            key="report",
            maker="report",
            group="evaluation",
            kinds=("html", "matplotlib"),
            summary="one self-contained page",
            description="One self-contained page with score distributions, presets, best and worst samples, rejects, "
            "training curve, evaluation and provenance. Its companion explore.html shows every sample.",
            reads=dict.fromkeys(shown, "fingerprint"),
            settings={"configuration": _shown_configuration(config)},
            code_version=f"{REPORT_CODE_VERSION}.{EXPLORER_CODE_VERSION}",
            file=REPORT_FILE,
            further_files={EXPLORER_FILE: "Every sample"},
            goal=True,
            own_rejects=False,
        )


def _shown_configuration(config: Config) -> str:
    # Without the settings of how the pipeline runs: another device must not make the page again.
    shown = completed(config)
    without = without_effect(shown, "report") | ({"variants": True} if config.variants is None else {})
    return fingerprint(shown.model_dump(mode="json", exclude=without))


FEATURE = Report()
