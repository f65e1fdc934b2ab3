"""Make the asset `short_chat_mix`: the short conversations of the training data."""

from gateau_dagster.assets.steps.metadata import fields_metadata
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.short_chat import short_chat_mix as read_short_chat


@makes_asset
def short_chat_mix(step: Step) -> None:
    """Read, filter and sample the conversations."""
    for output in step.in_turn():
        chat = output.state.config.located_short_chat
        assert chat is not None, "the asset exists only with short_chat"
        counts: FieldCounts = {}
        output.write(*read_short_chat(chat, output.state.config.folder, output.progress, counts))
        output.metadata["input_fields"] = fields_metadata(counts)
