"""Declare the data sets on the hub, and check the section `publish`."""

from collections.abc import Callable, Iterator
from functools import partial

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.contamination import FAMILY as CONTAMINATION
from gateau_dagster.features.evaluation.registry import asking_benchmarks
from gateau_dagster.features.publish.card import published_configuration
from gateau_dagster.features.publish.config import SECTION
from gateau_dagster.features.publish.hub import change_on_hub, has_token, hub_token
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.feature import Feature
from gateau_dagster.pipeline.recipes import Recipe, recipe_of
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE, has_evidence, ranking_asset
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.tables import column

FAMILY = "published"
UPLOADED = "publish"  # the work folder's copy of what is uploaded
ANYWAY = "GATEAU_PUBLISH_ANYWAY"
"""The environment variable by which the command tells the asset to upload in spite of failed checks."""
# Raise it when the same tables give other files on the hub.
CODE_VERSION = "4"
COLUMNS = (
    column("config", pl.String, "A configuration of the data set, such as selected."),
    column("rows", pl.Int64, "Number of its rows."),
    column("bytes", pl.Int64, "Size of its file."),
    column("repository", pl.String, "Name of the data set on the hub."),
    column("revision", pl.String, "SHA of the commit that holds it; the data version of the asset."),
    column("url", pl.String, "Page of this revision."),
)


def published_tables(recipe: Recipe) -> dict[str, str]:
    """Return the tables of a recipe's data set on the hub by the names of its configurations."""
    # A method's table holds no scores of other draws.
    scores = {} if recipe.draws_lots else {"scores": ranking_asset(recipe.config)}
    evidence = {"evidence": EVIDENCE} if has_evidence(recipe.project) else {}
    return {"selected": recipe.asset(CHOSEN), **scores, **evidence}


class Publish(Feature):
    """Data sets on the hub, one for each published selection."""

    scratch = (UPLOADED,)

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield the check of the token. Only an upload needs one, so a missing one is a warning."""
        if SECTION.of(config) is not None and has_token():
            yield hub_token

    def no_secrets(self, config: Config) -> frozenset[str]:
        """Return `publish.accepted_findings`."""
        options = SECTION.of(config)
        return frozenset() if options is None else frozenset(options.accepted_findings)

    def beside(self, config: Config) -> Iterator[Asset]:
        """Declare the data sets on the hub: that of the single run, and those of the named variants."""
        options = SECTION.of(config)
        if options is None:
            return
        contaminations = [f"{CONTAMINATION}/{name}" for name in asking_benchmarks(config)]
        for name, repository in {None: options.repository, **options.variants}.items():
            recipe = recipe_of(config, name)
            reads = ["raw_long_sft", *published_tables(recipe).values(), *contaminations]
            yield Asset(
                key=f"{FAMILY}/{recipe.variant.name}",
                of="recipe",
                maker="published",
                group="selection",
                kinds=("huggingface",),
                summary="the revision of a data set on the Hugging Face hub that holds the selection",
                description="Uploads the chosen samples, their scores and a data card to the hub, in one commit. Its "
                "data version is the commit's SHA. Refuses samples with secrets, or with too many questions of "
                "benchmarks.",
                reads=dict.fromkeys(reads, "fingerprint"),
                settings={
                    "publish.repository": repository,
                    **{f"publish.{key}": getattr(options, key) for key in ("license", "private")},
                    "training.trained_turns": config.trained_turns,
                    "configuration": fingerprint(published_configuration(recipe.config)),
                },
                code_version=CODE_VERSION,
                columns=COLUMNS,
                own_rejects=False,
                variant=recipe.partition or "",
                elsewhere=partial(_changed, repository, options.private),
                needs=hub_token,
            )


def _changed(repository: str, private: bool, stamp: Stamp) -> str:
    return change_on_hub(repository, stamp.content, private=private)


FEATURE = Publish()
