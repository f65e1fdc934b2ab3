"""`gateau validate`: which records of the input can be used, and about how much of them the models will see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import polars as pl
from rich.console import Console

from gateau_dagster.cli.display import as_line, console
from gateau_dagster.cli.plan import show_warnings
from gateau_dagster.config import Config, ShortChatConfig
from gateau_dagster.data.index import read_samples
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.record_fields import FieldCounts, field_lines
from gateau_dagster.data.rejects import RejectKind, Rejects, rejects_among_chats
from gateau_dagster.data.short_chat import short_chat_mix
from gateau_dagster.errors import GateauError, together
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.expected_truncation import expected_truncation
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.losses import prompted_models
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural

_SOURCES = 10


@dataclass(frozen=True, kw_only=True)
class ValidationSummary:
    """Counts of records: read = usable_records + rejected + duplicates_dropped. `kinds`: most frequent first.

    accepted: the samples of the usable records.
    """

    files: tuple[str, ...]
    read: int
    accepted: int
    rejected: int
    duplicates_dropped: int
    usable_records: int
    sources: tuple[tuple[str, int], ...]
    kinds: tuple[RejectKind, ...]
    fields: FieldCounts
    contexts: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the summary as plain text."""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        several = f", which are {self.accepted} samples" if self.usable_records < self.accepted else ""
        text = [f"{self.read} records in {files}: {self.usable_records} usable{several}, {self.rejected} rejected"]
        if len(self.sources) > 1:
            named = ", ".join(f"{source} {count}" for source, count in self.sources[:_SOURCES])
            more = f" and {len(self.sources) - _SOURCES} more" if len(self.sources) > _SOURCES else ""
            text.append(f"usable by source: {named}{more}")
        if self.duplicates_dropped:
            text.append(f"{self.duplicates_dropped} repeat an earlier record (same id, same content) and count once")
        text += self.contexts
        for kind in self.kinds:
            text.append(f"{kind.count} x {kind.kind}")
            text += [f"    {place}  {reason}" for place, reason in kind.examples]
            if kind.count > len(kind.examples):
                text.append(f"    and {kind.count - len(kind.examples)} more")
        return text + field_lines(self.fields, "long_sft")


def validation_summary(index: InputIndex) -> ValidationSummary:
    """Summarise an index; no file is read."""
    sources = index.accepted.group_by("source").len().sort(["len", "source"], descending=[True, False])
    return ValidationSummary(
        files=tuple(file.label for file in index.files),
        read=index.records - len(index.accepted) + index.usable_records,
        accepted=len(index.accepted),
        rejected=len(index.rejected),
        duplicates_dropped=index.duplicates_dropped,
        usable_records=index.usable_records,
        sources=tuple(sources.iter_rows()),
        kinds=index.rejects.kinds,
        fields=index.fields,
        contexts=tuple(index.contexts.lines),
    )


_SHOWN = 60  # characters of each end of a text


def print_validation(config: Config) -> None:
    """Print how the whole input is read, what is rejected and truncated, and then every reason that would end a run.

    Raises:
        GateauError: there is such a reason: from the input, the models, the device, the store or a server's key.
    """
    out, state = console(), state_of(config=config)
    looks = (
        partial(_show_input, out, state),
        partial(show_warnings, out, state),
        *(partial(check, state) for name in ("check_start", "check_plan") for check in hooks("forecast", name)),
    )
    findings: dict[str, GateauError] = {}
    for look in looks:
        try:
            look()
        except GateauError as error:
            findings.setdefault(str(error), error)
    findings = {**{str(error): error for error in checks_of(state).findings()}, **findings}
    if len(findings) == 1:
        raise next(iter(findings.values()))
    if findings:
        numbered = [error.reworded(f"{number}. {error}") for number, error in enumerate(findings.values(), start=1)]
        raise together(f"a run would end for {len(findings)} reasons:", numbered)


def _show_input(out: Console, state: State) -> None:
    with out.status("Reading the long samples"):
        index = state.index
    out.print("[bold]long_sft[/bold]")
    for line in validation_summary(index).lines():
        out.print(f"  {as_line(line)}")
    _show_amount(out, index.rejects, "record")
    _show_sample(out, state)
    chat = state.config.located_short_chat
    if chat is not None:
        _show_short_chat(out, state.config, chat)
    models = prompted_models(map(state.asset, sorted(state.pipeline.required)))
    if models:
        with out.status("Estimating: reading some of the texts"):
            lines = list(_truncation_lines(state, models))
        out.print("[bold]scoring[/bold] (estimated from the lengths of all texts)")
        for line in lines:
            out.print(f"  {line}")


def _show_sample(out: Console, state: State) -> None:
    """Show how a sample of the most frequent border is read, and the first without a context or a certain border."""
    accepted = state.index.accepted.drop("shard")
    usual = accepted.filter(pl.col("border").is_in([*state.index.contexts.borders][:1])).head(1)
    unclear = accepted.filter(pl.col("border").is_in(["uncertain", "none"])).head(1)
    shown = pl.concat([usual, unclear]).unique("sample_id", maintain_order=True)
    for sample in read_samples(state.config.located_long_sft, state.index, shown):
        border = "" if sample.border == "given" else f" (border: {sample.border})"
        out.print(f"  how {_escaped(sample.sample_id)} is read{border}:", markup=False)
        for name in ("context", "instruction", "response"):
            text = getattr(sample, name)
            out.print(f"    {name}, {plural(len(text), 'character')}: {text_ends(text) or '(empty)'}", markup=False)


def text_ends(text: str) -> str:
    """Return a text on one line, without its middle if it is long."""
    cut = len(text) > 2 * _SHOWN
    return f"{_escaped(text[:_SHOWN])} … {_escaped(text[-_SHOWN:])}" if cut else _escaped(text)


def _escaped(text: str) -> str:
    # A terminal would act on control characters of the data.
    return repr(text)[1:-1]


def _show_short_chat(out: Console, config: Config, chat: ShortChatConfig) -> None:
    with out.status("Reading the short conversations"):
        counts: FieldCounts = {}
        table, rejected = short_chat_mix(chat, config.folder, counts=counts)
    found = rejects_among_chats(table.height, rejected, chat)
    out.print("[bold]short_chat[/bold]")
    out.print(f"  {table.height} usable, {rejected.height} rejected (fraction {chat.fraction:g} taken)")
    for line in field_lines(counts, "short_chat"):
        out.print(f"  {line}", markup=False)
    for kind in found.kinds[:10]:
        out.print(f"  {kind.count} x {as_line(kind.examples[0][1])}")
    _show_amount(out, found, "conversation")


def _show_amount(out: Console, found: Rejects, noun: str) -> None:
    if found.count:
        out.print(f"  {'[yellow]![/yellow] ' if found.notable else ''}{found.amount(noun)}")


def _truncation_lines(state: State, models: list[str]) -> Iterator[str]:
    """Yield for each model what it will not see or cannot read; `findings` report why a model cannot be read."""
    for model in models:
        try:
            found = expected_truncation(state, model)
        except GateauError:
            yield f"models.{model}: not estimated, since it cannot be read (see the end)"
            continue
        yield from (
            f"{'[yellow]![/yellow] ' if notable else ''}{as_line(sentence)}" for sentence, notable in found.lines
        )
        if not found.sentences:
            yield f"models.{model}: about all samples are seen whole: {found.truncation.limit}"
        if not found.counted:
            missing = local_facts(state.config, model).tokenizer is None
            bare = state.index.contexts.share == 1
            why = (
                "its tokenizer is not on this machine"
                if missing
                else "its tokenizer cannot build prompts from these samples"
            )
            why = "no sample has a context to count tokens of" if bare and not missing else why
            yield f"models.{model}: {why}, so a typical number of characters per token is assumed"
