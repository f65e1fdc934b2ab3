"""Summarise what the input lacks: rejected samples with the commonest reasons, and samples without a context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from gateau_dagster.config import LongSftConfig, ShortChatConfig
from gateau_dagster.config.inputs import MOST_EMPTY_CONTEXTS, NOTABLE_REJECTS
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.readable import percentage, plural

_EXAMPLES = 3
_NAMED = 3  # kinds named in a sentence
# Reasons that concern a whole file, or the rest of it. A list without elements is complete; a file without content was
# emptied, or never written.
_LOST_FILES = (
    r"(?s)^(truncated |damaged |wrong file type|repeated column:|empty file: .* has no content|too long: .*: unpack it"
    r"|malformed JSON: (the list is not closed|text after the end of the list)|.*; nothing after it was read)"
)
# Parts that differ from sample to sample: quoted text and numbers.
_DETAILS = r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+(?:[.,]\d+)*"
_PIECES = re.compile(f"({_DETAILS})")
_AMOUNT = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_IN_A_NAME = re.compile(r"[\w./#:@-]\0|\0[\w/@-]")  # a number (\0) of a place, an id or a version, not an amount


@dataclass(frozen=True, kw_only=True)
class RejectKind:
    """Rejects of one kind; `examples` are (place, full reason).

    kind: the reason. Where reasons differ, it has the range of the amounts (`260 to 344`), or `…`.
    """

    kind: str
    count: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """A summary: `count` of `given` samples were rejected; `kinds`: most frequent first.

    unread: the number of rejects for a file that could not be read to its end; its other content is unknown.
    about: whether `given` is an estimate.
    """

    given: int
    count: int
    kinds: tuple[RejectKind, ...]
    unread: int = 0
    about: bool = False

    @property
    def share(self) -> float:
        """Return the share of the given samples that was rejected."""
        return self.count / self.given if self.given else 0.0

    @property
    def notable(self) -> bool:
        """Return whether the rejects deserve a warning."""
        return self.share > NOTABLE_REJECTS or self.unread > 0

    def amount(self, noun: str = "sample") -> str:
        """Return a text such as `53 of 56 records rejected (94.6 %)`."""
        unread = f", {self.unread:,} of them for a file that could not be read to its end" if self.unread else ""
        given = f"{'about ' if self.about else ''}{plural(self.given, noun)}"
        return f"{self.count:,} of {given} rejected ({percentage(self.share)}){unread}"

    def sentence(self, noun: str = "sample") -> str:
        """Return a text such as `53 of 56 records rejected (94.6 %): 50 x empty response; 3 x malformed JSON`."""
        named = [f"{kind.count:,} x {kind.kind}" for kind in self.kinds[:_NAMED]]
        if rest := self.kinds[_NAMED:]:
            named.append(f"{sum(kind.count for kind in rest):,} for other reasons")
        return f"{self.amount(noun)}{': ' if named else ''}{'; '.join(named)}"

    def lines(self) -> list[str]:
        """Return a line for each of the commonest kinds, with its first reason in full and its place."""
        return [
            f"  {kind.count} x {reason} (first at {place})"
            for kind in self.kinds[:_NAMED]
            for place, reason in kind.examples[:1]
        ]


def rejects_among(rejected: pl.DataFrame, given: int, *, named: bool = False) -> Rejects:
    """Summarise a table of rejects.

    Args:
        rejected: `sample_id` and `reason`; with `location`, that is the place of an example.
        given: samples before any was rejected.
        named: whether the reason's kind precedes its colon, as in the rejects of the input's readers. Otherwise reasons
            that differ only in numbers or quoted text are of one kind.
    """
    place = "location" if "location" in rejected.columns else "sample_id"
    reason = pl.col("reason").fill_null("no reason given")
    kind = reason.str.split(":").list.first() if named else reason.str.replace_all(_DETAILS, "\0")
    kinds = (
        rejected.select(kind=kind, place=pl.col(place), reason=reason)
        .group_by("kind", maintain_order=True)
        .agg(pl.len().alias("count"), pl.col("place", "reason").head(_EXAMPLES), pl.col("reason").unique().alias("all"))
        .sort(["count", "kind"], descending=[True, False])
    )
    found = [
        RejectKind(
            kind=name if named else _merged(every), count=count, examples=tuple(zip(places, reasons, strict=True))
        )
        for name, count, places, reasons, every in kinds.iter_rows()
    ]
    unread = rejected.filter(reason.str.contains(_LOST_FILES)).height if named else 0
    return Rejects(given=given, count=rejected.height, kinds=tuple(found), unread=unread)


def _merged(reasons: Sequence[str]) -> str:
    """Return reasons that differ in _DETAILS only as one text."""
    pieces = [*zip(*map(_PIECES.split, reasons), strict=False)]
    return "".join(
        _range(texts, pieces[place - 1][0][-1:] + "\0" + pieces[place + 1][0][:1]) if place % 2 else texts[0]
        for place, texts in enumerate(pieces)
    )


def _range(texts: Sequence[str], around: str) -> str:
    """Return texts as one: the text if all are equal, the range of amounts, else `…`. around: see _IN_A_NAME."""
    if len({*texts}) == 1:
        return texts[0]
    if _IN_A_NAME.search(around) or not all(map(_AMOUNT.fullmatch, texts)):
        return "…"
    amounts = sorted(texts, key=lambda text: float(text.replace(",", "")))
    return f"{amounts[0]} to {amounts[-1]}"


def rejects_among_chats(taken: int, rejected: pl.DataFrame, chat: ShortChatConfig) -> Rejects:
    """Summarise the rejects among all short conversations; `chat.fraction` of the usable ones are `taken`."""
    found = rejects_among(rejected, round(taken / chat.fraction) + rejected.height, named=True)
    return replace(found, about=chat.fraction < 1)


def check_rejected(rejects: Rejects, config: LongSftConfig) -> None:
    """Raise GateauError if more of the long input is rejected than the configuration allows."""
    if config.max_rejected is None or rejects.share <= config.max_rejected:
        return
    what = f"long_sft.max_rejected: {rejects.amount('record')}, more than {config.max_rejected:g} of them. Mostly:"
    cure = f"Correct the data (`{gateau_command('validate')}` shows more of them), or raise long_sft.max_rejected."
    raise GateauError("long_sft.max_rejected", "\n".join([what, *rejects.lines(), cure]))


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The separation of contexts from instructions in `given` samples; `borders`: counts by user_turns.Border."""

    given: int
    borders: dict[str, int]
    first_uncertain: str = ""

    @property
    def empty(self) -> int:
        """Return the number of samples whose context is empty, or holds a system text only."""
        return self.borders.get("none", 0)

    @property
    def share(self) -> float:
        """Return the share of the samples that have no context."""
        return self.empty / self.given if self.given else 0.0

    @property
    def amount(self) -> str:
        """Return a text such as `8 of 8 samples have no context (100 %)`."""
        return f"{self.empty:,} of {plural(self.given, 'sample')} have no context ({percentage(self.share)})"

    @property
    def lines(self) -> list[str]:
        """Return the lines of `gateau validate`: the rules that found the borders, and how many are uncertain."""
        rules = {border: count for border, count in self.borders.items() if border != "given"}
        found = ", ".join(f"{border} {count:,}" for border, count in rules.items())
        text = [f"border of context and instruction: {found}"] if rules.keys() - {"none"} else []
        if self.empty:
            text.append(self.amount)
        if uncertain := self.borders.get("uncertain", 0):
            text.append(
                f"{plural(uncertain, 'sample')} split at the last blank line, though the text looks as if the border "
                f"were elsewhere (first: {self.first_uncertain}); to be sure, give context and instruction as fields"
            )
        return text

    @property
    def warnings(self) -> list[str]:
        """Return a warning if a notable share of the samples has no context."""
        if self.share <= NOTABLE_REJECTS:
            return []
        return [f"long_sft.path: {self.amount}, so that nothing tells whether they need it. {_context_cure()}."]


def _context_cure() -> str:
    return (
        "Give context and instruction as separate fields, or put a blank line between them "
        f"(`{gateau_command('validate')}` shows how a sample is read)"
    )


def contexts_among(accepted: pl.DataFrame) -> Contexts:
    """Return how contexts were found. `accepted`: schema catalogue.ACCEPTED."""
    counts = accepted["border"].value_counts().sort(["count", "border"], descending=[True, False])
    uncertain = accepted.filter(pl.col("border") == "uncertain")["sample_id"]
    first = uncertain[0] if len(uncertain) else ""
    return Contexts(given=accepted.height, borders=dict(counts.iter_rows()), first_uncertain=first)


def check_contexts(contexts: Contexts, config: LongSftConfig) -> None:
    """Raise GateauError if most samples have no context and the configuration does not allow that."""
    if contexts.share > MOST_EMPTY_CONTEXTS and not config.allow_empty_context:
        raise GateauError(
            "long_sft.no_context",
            f"long_sft.path: {contexts.amount}, so that nothing shows whether they need it. {_context_cure()}. To "
            "accept samples without a context, set long_sft.allow_empty_context: true",
        )
