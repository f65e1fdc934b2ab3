"""`gateau validate`: what of the input can be used, and about how much of it the models will see."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from gateau_dagster.cli.display import console
from gateau_dagster.cli.plan import show_warnings
from gateau_dagster.config import Config, ShortChatConfig
from gateau_dagster.data.rejects import Rejects, rejects_among_chats
from gateau_dagster.data.short_chat import short_chat_mix
from gateau_dagster.data.validate import validation_summary
from gateau_dagster.errors import GateauError
from gateau_dagster.estimate.questions import check_questions
from gateau_dagster.estimate.truncation import expected_truncation
from gateau_dagster.models.known_model import known_tokenizer
from gateau_dagster.pipeline.losses import prompted_models
from gateau_dagster.pipeline.state import State


def print_validation(config: Config) -> None:
    """Reads the whole input, prints counts and rejects with their reasons, and what is expected to be cut off.

    Raises:
        GateauError: the configuration or the input is wrong, no sample is usable, more are rejected than is allowed,
            or there are too few for what the configuration asks for.
    """
    out = console()
    with out.status("Reading the long samples"):
        state = State(config=config)
        index = state.index
    out.print("[bold]long_sft[/bold]")
    for line in validation_summary(index).lines():
        out.print(f"  {line}", markup=False)
    _show_amount(out, index.rejects, "record")
    chat = config.located_short_chat
    if chat is not None:
        _show_short_chat(out, config, chat)
    models = prompted_models(map(state.asset, sorted(state.pipeline.required)))
    if models:
        with out.status("Estimating: reading some of the texts"):
            lines = list(_truncation_lines(state, models))
        out.print("[bold]scoring[/bold] (estimated from the lengths of all texts)")
        for line in lines:
            out.print(f"  {line}")
    state.check_data()
    show_warnings(out, state)
    _show_models(out, state)
    check_questions(state)


def _show_models(out: Console, state: State) -> None:
    """The input can be looked at where the models are not; `gateau run` ends with this."""
    try:
        state.check_models()
    except GateauError as error:
        out.print(f"[yellow]![/yellow] {escape(str(error))}")


def _show_short_chat(out: Console, config: Config, chat: ShortChatConfig) -> None:
    with out.status("Reading the short conversations"):
        table, rejected = short_chat_mix(chat, config.folder)
    found = rejects_among_chats(table.height, rejected, chat)
    out.print("[bold]short_chat[/bold]")
    out.print(f"  {table.height} usable, {rejected.height} rejected (fraction {chat.fraction:g} taken)")
    for kind in found.kinds[:10]:
        out.print(f"  {kind.count} x {kind.examples[0][1]}", markup=False)
    _show_amount(out, found, "conversation")


def _show_amount(out: Console, found: Rejects, noun: str) -> None:
    if found.count:
        out.print(f"  {'[yellow]![/yellow] ' if found.notable else ''}{found.amount(noun)}")


def _truncation_lines(state: State, models: list[str]) -> Iterator[str]:
    """For each model what it will not see; the run itself says why a model cannot be had."""
    for model in models:
        try:
            found = expected_truncation(state, model)
        except GateauError as error:
            yield f"models.{model}: not estimated, for the model is not here: {escape(str(error))}"
            continue
        mark = "[yellow]![/yellow] " if found.truncation.notable else ""
        yield from (f"{mark}{escape(sentence)}" for sentence in found.sentences)
        if not found.sentences:
            yield f"models.{model}: about all samples are seen whole: {found.truncation.limit}"
        if not found.counted:
            missing = known_tokenizer(state.config, model) is None
            why = "is not here" if missing else "does not make prompts of these samples"
            yield f"models.{model}: its tokenizer {why}, so a usual number of characters a token is assumed"
