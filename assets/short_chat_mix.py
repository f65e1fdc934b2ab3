"""Asset `short_chat_mix`: the short conversations of the training data."""

import dagster as dg

from assets.definition import global_asset
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.data.short_chat import short_chat_mix as read_short_chat
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


def short_chat_mix_asset() -> dg.AssetsDefinition:
    """ShareGPT and UltraChat conversations."""

    @global_asset(
        "short_chat_mix",
        columns=tables.SHORT_CHAT_MIX,
        deps=[],
        kinds={"parquet", "polars"},
        description="Short conversations (ShareGPT, UltraChat) without empty responses; `short_chat.fraction` is taken "
        "from the start of the data, as in the papers.",
    )
    def short_chat_mix(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        return materialise(context, configuration, "short_chat_mix", _make)

    return short_chat_mix


def _make(state: State, stamp: Stamp, progress: Progress) -> Made:
    chat = state.config.located_short_chat
    assert chat is not None, "the asset exists only with short_chat"
    table, rejected = read_short_chat(chat, state.config.folder, progress)
    return write_global(state, "short_chat_mix", stamp, table, rejected)
