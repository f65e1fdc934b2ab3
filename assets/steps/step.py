"""What surrounds the work of every asset: the process on record, readable failures, retries, the store, progress."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.steps.dead_runs import tag_with_process
from assets.steps.failures import readable_failure
from assets.steps.progress import shown_progress, step_title
from gateau_dagster.progress import TimedProgress
from resources.configuration import ConfigurationResource
from resources.locks.lease import store_lease


@contextmanager
def asset_step(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[TimedProgress]:
    """Yields the progress to hand to the method.

    Raises:
        dagster.RetryRequested, dagster.Failure: see `readable_failure`.
    """
    tag_with_process(context)
    title = step_title(context)
    with readable_failure(context, title=title):
        config = configuration.config
    retries = config.execution.retries
    with (
        readable_failure(context, retries, title=title),
        store_lease(config, configuration.config_file, exclusive=False, say=context.log.info),
        shown_progress(context, config) as progress,
    ):
        yield progress
