"""`gateau validate`: what of the input can be used."""

from gateau_dagster.cli.display import console
from gateau_dagster.cli.plan import show_warnings
from gateau_dagster.config import Config
from gateau_dagster.data.short_chat import short_chat_mix
from gateau_dagster.data.validate import validation_summary
from gateau_dagster.pipeline.state import State


def print_validation(config: Config) -> None:
    """Reads the whole input, prints counts and rejects with their reasons.

    Raises:
        GateauError: the configuration or the input is wrong, no sample is usable, or there are too few for what the
            configuration asks for.
    """
    out = console()
    with out.status("Reading the long samples"):
        state = State(config=config)
        index = state.index
    out.print("[bold]long_sft[/bold]")
    for line in validation_summary(index).lines():
        out.print(f"  {line}", markup=False)
    chat = config.located_short_chat
    if chat is not None:
        with out.status("Reading the short conversations"):
            table, rejected = short_chat_mix(chat, config.folder)
        out.print("[bold]short_chat[/bold]")
        out.print(f"  {table.height} usable, {rejected.height} rejected (fraction {chat.fraction:g} taken)")
        for reason, count in rejected.group_by("reason").len().sort("len", descending=True).head(10).iter_rows():
            out.print(f"  {count} x {reason}", markup=False)
    state.check_data()
    show_warnings(out, state)
