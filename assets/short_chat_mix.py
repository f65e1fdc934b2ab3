"""Make the asset `short_chat_mix`: the short conversations of the training data."""

import dagster as dg

from assets.steps.definition import makes_asset
from assets.steps.metadata import fields_metadata
from assets.steps.unpartitioned_step import unpartitioned_step
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.short_chat import short_chat_mix as read_short_chat
from resources.configuration import ConfigurationResource


@makes_asset
def short_chat_mix(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
    """Read, filter and sample the conversations."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            chat = step.state.config.located_short_chat
            assert chat is not None, "the asset exists only with short_chat"
            counts: FieldCounts = {}
            step.write(*read_short_chat(chat, step.state.config.folder, step.progress, counts))
            step.metadata["input_fields"] = fields_metadata(counts)
    return step.result
