"""What Dagster's catalogue says of an asset: columns, owners, tags, where its code stands, how old it may be."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from assets.steps.metadata import table_schema
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import Asset

_ROOT = Path(__file__).parents[2]


def catalogued(config: Config, asset: Asset, function: Callable[..., Any]) -> dict[str, Any]:
    """Options of its definition. function: what makes it."""
    catalogue = config.execution.catalogue
    hours = catalogue.hours_of(asset.key)
    policy = None if hours is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=hours))
    columns = {"dagster/column_schema": table_schema(asset.columns)} if asset.columns else {}
    return {
        "owners": catalogue.owners_of(asset.key),
        "tags": dict(catalogue.tags),
        "metadata": {**columns, "dagster/code_references": _code(function, catalogue.code)},
        **({} if policy is None else {"freshness_policy": policy}),
    }


def _code(function: Callable[..., Any], url: str | None) -> dg.CodeReferencesMetadataValue:
    """Where the function stands: in a file here, or in a repository."""
    file, line = Path(inspect.getsourcefile(function) or "").absolute(), inspect.getsourcelines(function)[1]
    place = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    if url is not None:
        return dg.CodeReferencesMetadataValue(
            code_references=[dg.UrlCodeReference(url=f"{url.rstrip('/')}/{place}#L{line}", label=place)]
        )
    return dg.CodeReferencesMetadataValue(
        code_references=[dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=place)]
    )
