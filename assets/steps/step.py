"""Surround the work of every asset: the process on record, readable failures, retries, the store, progress."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.steps.dead_runs import has_own_process, tag_with_process
from assets.steps.failures import readable_failure
from assets.steps.progress import shown_progress, step_title
from assets.steps.termination import heed_termination, heeding
from gateau_dagster.execution.interruption import step_ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.progress import TimedProgress
from resources.configuration import ConfigurationResource
from resources.locks.lease import store_lease


@contextmanager
def asset_step(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[TimedProgress]:
    """Yield the progress callback for the method.

    Raises:
        dagster.RetryRequested, dagster.Failure: for the reasons of `readable_failure`.
    """
    tag_with_process(context)
    with _ended_in_order(context), _readable_step(context, configuration) as progress:
        yield progress


@contextmanager
def _ended_in_order(context: dg.AssetExecutionContext) -> Iterator[None]:
    """Keep what a step in its own process has computed when it is told to end."""
    if has_own_process(context):
        with step_ends_in_order(save_all_rows):
            yield
    else:
        yield


@contextmanager
def _readable_step(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[TimedProgress]:
    title = step_title(context)
    with readable_failure(context, title=title):
        config = configuration.config
    retries = config.execution.retries
    with (
        readable_failure(context, retries, title=title),
        store_lease(config, configuration.config_file, exclusive=False, say=context.log.info),
        shown_progress(context, config) as progress,
    ):
        heed_termination(context)
        yield heeding(context, progress)
