"""`gateau show`: the trust panel of the choice; one sample with its ranks, evidence and texts; or the best ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateau_dagster.cli.display import as_line, console, say_if_out_of_date
from gateau_dagster.cli.plan import show_response_share
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.explanation.evidence import Evidence, EvidenceSegment, EvidenceToken
from gateau_dagster.explanation.excerpts import TextPart, pieces, shortened
from gateau_dagster.explanation.maps import Bar, Depends, SpanStrip
from gateau_dagster.explanation.one_sample import (
    OneSample,
    Place,
    Ranking,
    Summands,
    made_rankings,
    one_sample,
    ranking_table,
    read_by,
)
from gateau_dagster.explanation.trust import trust_lines
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.readable import nearest_name, number, plural, printable

_BLOCKS, _EMPTY = "·▁▂▃▄▅▆▇█", 0  # by level of shading
_WIDEST = 100
_THOUSANDTHS = 1000


def show_strips(out: Console, strips: Sequence[SpanStrip]) -> None:
    """Print each map; nothing if there are none."""
    for strip in strips:
        out.print(
            Text.assemble(
                "\n",
                (f"By {', '.join(strip.methods)}", "bold"),
                (f" what each stretch of the context adds to {strip.adds}", "dim"),
            )
        )
        out.print(f"  {line_of(strip.bars, max(10, min(_WIDEST, out.width - 4)))}", soft_wrap=True)
        for added, text in strip.most:
            out.print(Text(f"  {number(added)}: {' '.join(text.split())}…"))
        if strip.elsewhere:
            out.print(Text(f"  Instruction and response add {number(strip.elsewhere)}.", style="dim"))


def line_of(bars: Sequence[Bar], width: int) -> str:
    """Return `width` blocks; each is as high as the strongest stretch within it."""
    levels = [_EMPTY] * width
    for bar in bars:
        first = int(bar.left * width / _THOUSANDTHS)
        last = max(first, int((bar.left + bar.width) * width / _THOUSANDTHS - 1e-9))
        for place in range(min(first, width - 1), min(last, width - 1) + 1):
            levels[place] = max(levels[place], bar.level)
    return "".join(_BLOCKS[level] for level in levels)


LONGEST = 1500
"""Contexts with at most this many characters are shown whole."""
SEGMENTS = 4
TOKENS = 12
"""The number of response tokens whose figures are shown, by gain."""
_LEAST_GAIN = 0.01
_VALUES = 8
_INDENT, _NARROWEST = "  ", 20
_LEGEND = (
    "Probability of the token: by the short model; by the long model without context, given the best near text, the "
    "best far segment, and everything. Gain: far less near."
)


def print_sample(config: Config, name: str, method: str | None, *, require_current: bool = False) -> None:
    """Print what the store holds about a sample; load no model.

    Args:
        name: its id, or the beginning of it.
        method: its rank and figures come first; by default the method that selects.
        require_current: whether to show nothing if its tables are out of date.

    Raises:
        GateauError: there is no such sample or method, or a table cannot be read.
    """
    out, state = console(), state_of(config=config)
    prepare_inputs(config)
    with out.status("Reading the tables"):
        found = one_sample(state, name)
        place = _place(found, method)
    assets = [] if place is None else [ranking_table(state, place.ranking.name)]
    assets += [CHOSEN] if found.selected is not None else []
    say_if_out_of_date(out, state, assets, require_current=require_current)
    with out.status("Reading the tables"):
        figures = read_by(state, place.ranking.name, found.sample) if place is not None else {}
    _show_head(out, found, place)
    if place is not None:
        _show_places(out, found.places, place)
        _show_figures(out, place, figures)
    _show_text(out, "Instruction", found.sample.instruction)
    _show_depends(out, found.maps.depends.get(found.sample.sample_id))
    if found.maps.maps:
        _show_map(out, found.maps.maps[found.sample.sample_id])
    else:
        _show_text(out, "Response", found.sample.response)
        _show_context(out, found.sample.context, None)
        if found.maps.missing:
            out.print(f"[dim]No evidence map: {as_line(found.maps.missing)}[/dim]")
    show_strips(out, found.maps.strips.get(found.sample.sample_id, ()))


def print_trust(config: Config, *, require_current: bool = False) -> None:
    """Print how far the choice can be trusted, and what to call for samples.

    `require_current`: whether to show nothing if the choice is out of date.

    Raises:
        GateauError: nothing is chosen yet, or a table cannot be read.
    """
    out, state = console(), state_of(config=config)
    prepare_inputs(config)
    with out.status("Reading the tables"):
        lines = trust_lines(state)
    if not lines:
        raise GateauError("storage.not_computed", f"nothing is chosen yet. Run `{gateau_command('run')}` first.")
    say_if_out_of_date(out, state, [CHOSEN], require_current=require_current)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, sentence in lines:
        table.add_row(label, Text(printable(sentence)))
    out.print(table)
    top, one = gateau_command("show --top 10"), gateau_command("show SAMPLE")
    out.print(f"The best samples: {as_line(top)}; one of them: {as_line(one)}", soft_wrap=False)


def print_top(config: Config, count: int, method: str | None, *, require_current: bool = False) -> None:
    """Print ids, ranks and scores of the best `count` samples by a method; by default the one that selects.

    `require_current`: whether to show nothing if the scores are out of date.

    Raises:
        GateauError: nothing is scored yet, there is no such method, or a table cannot be read.
    """
    out, state = console(), state_of(config=config)
    prepare_inputs(config)
    with out.status("Reading the tables"):
        ranking = _ranking(made_rankings(state), method)
    if ranking is None:
        raise GateauError("storage.not_computed", f"there are no scores yet. Run `{gateau_command('run')}` first.")
    say_if_out_of_date(out, state, [ranking_table(state, ranking.name)], require_current=require_current)
    show_response_share(out, state)
    rows = ranking.table.sort("rank").head(count).select("rank", "sample_id", "score").rows()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("sample", overflow="fold")
    table.add_column("score", justify="right")
    for rank, name, score in rows:
        table.add_row(f"{rank:,}", Text(printable(name)), number(score))
    out.print(
        f"[bold]{len(rows):,} of {ranking.table.height:,} by {as_line(ranking.name)}[/bold]  {as_line(ranking.title)}"
    )
    out.print(table)


def _place(found: OneSample, method: str | None) -> Place | None:
    ranking = _ranking([place.ranking for place in found.places], method)
    return next((place for place in found.places if place.ranking is ranking), None)


def _ranking(made: Sequence[Ranking], method: str | None) -> Ranking | None:
    by_name = {ranking.name: ranking for ranking in made if ranking.is_method}
    if method is not None and method not in by_name:
        nothing = f"there are no scores yet: run `{gateau_command('run')}`"
        there = nearest_name(method, by_name, "scores exist for") if by_name else nothing
        raise GateauError(
            "show.method", f"--method: there are no scores of {method!r}; {there}. Add the method to selection.compare."
        )
    return by_name[method] if method is not None else next(iter(by_name.values()), None)


def _show_head(out: Console, found: OneSample, place: Place | None) -> None:
    tags = {True: "[green]selected[/green]", False: "not selected", None: "not chosen from yet"}
    parts = [f"source {as_line(found.sample.source)}", tags[found.selected]]
    if found.reserved:
        parts.append("reserved for evaluation")
    out.print(f"[bold]{as_line(found.sample.sample_id)}[/bold]  {' · '.join(parts)}")
    if place is not None:
        where = f"rank {_rank(place)} by {as_line(place.ranking.name)}, score {number(place.score)}"
        where = where if place.rank is not None else f"no score by {as_line(place.ranking.name)}"
        out.print(f"{where}. {as_line(place.ranking.title)}")
        if place.ranking.summands is not None and place.rank is not None:
            out.print(f"Its score: {_sum(place, place.ranking.summands)}")
    for asset, reason in found.rejected:
        out.print(f"[yellow]![/yellow] {as_line(asset)} rejected it: {as_line(reason)}")


def _sum(place: Place, summands: Summands) -> str:
    first, second = (
        f"{weight:.4g} · {name} {number(value)}"
        for name, weight, value in zip(summands.names, summands.weights, (place.first, place.second), strict=True)
    )
    return f"{first} + {second if place.second is not None else number(summands.instead)} = {number(place.score)}"


def _rank(place: Place) -> str:
    return "–" if place.rank is None else f"{place.rank:,} of {place.scored:,}"


def _show_places(out: Console, places: Sequence[Place], chosen: Place) -> None:
    if len(places) < 2:
        return
    table = _table("ranking", "rank", "score")
    for place in places:
        table.add_row(
            as_line(place.ranking.name), _rank(place), number(place.score), style="bold" if place is chosen else None
        )
    out.print()
    out.print(table)


def _show_figures(out: Console, place: Place, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what the method reads of the sample; of a list, only its ends."""
    rows = [(asset, column, value) for asset, row in figures.items() for column, value in row.items()]
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (f"{as_line(place.ranking.name)} reads", "column", "value"):
        table.add_column(column)
    for asset, column, value in rows:
        table.add_row(asset, column, Text(_value(value)))
    out.print()
    out.print(table)


def _value(value: Any) -> str:
    if not isinstance(value, list):
        return printable(value) if isinstance(value, str) else number(value)
    shown = [_value(each) for each in value[:_VALUES]]
    return ", ".join(shown) if len(value) <= _VALUES else f"{', '.join(shown)}, … {len(value):,} values"


def _show_text(out: Console, title: str, text: str) -> None:
    out.print(f"\n[bold]{title}[/bold]")
    _show_indented(out, Text(shortened(text, LONGEST) or "(empty)"))


def _show_depends(out: Console, depends: Depends | None) -> None:
    """Print what the response depends on, and those segments; nothing if that was not measured."""
    if depends is None:
        return
    out.print(f"\n[bold]The response depends on[/bold] {depends.words}")
    if depends.spans is None:
        out.print("  [dim]The long model's tokenizer reports no places of its tokens in a text.[/dim]")
    for span in depends.spans or ():
        where = f"characters {span.start + 1:,} to {span.end:,}, gain {span.gain:.3f}: "
        line = Text.assemble((where, "green"), " ".join(span.beginning.split()))
        line.truncate(max(_NARROWEST, out.width - len(_INDENT)), overflow="ellipsis")
        out.print(Text(_INDENT).append_text(line))


def _show_map(out: Console, evidence: Evidence) -> None:
    response = Text()
    for token in evidence.tokens:
        response.append(printable(token.text), style="bold underline" if token.named else "")
    out.print("\n[bold]Response[/bold]" + (" [dim](underlined: from a far segment)[/dim]" if evidence.named else ""))
    _show_indented(out, response)
    _show_tokens(out, evidence)
    if evidence.named:
        named = ", ".join(str(place + 1) for place in evidence.named)
        out.print(f"\nThe long model found it likely only with these far segments: [bold]{named}[/bold]")
    else:
        out.print("\nThe long model found no part of it likely only with a far segment.")
    _show_context(out, evidence.sample.context, evidence)


def _show_tokens(out: Console, evidence: Evidence) -> None:
    gaining = [token for token in evidence.tokens if token.gain >= _LEAST_GAIN]
    shown = sorted(gaining, key=lambda token: -token.gain)[:TOKENS]
    if not shown:
        return
    table = _table("token", "short model", "none", "near", "far", "full", "gain", "segment")
    for token in (each for each in evidence.tokens if each in shown):
        table.add_row(Text(printable(token.text).strip() or repr(token.text)), *_probabilities(token))
    out.print()
    out.print(table)
    out.print(f"[dim]{_LEGEND}[/dim]", soft_wrap=False)
    if len(gaining) > len(shown):
        out.print(f"[dim]… and {plural(len(gaining) - len(shown), 'token')} that gained less[/dim]")


def _probabilities(token: EvidenceToken) -> list[str]:
    given = (token.short, token.none, token.near, token.far, token.full, token.gain)
    found = ["–" if value is None else f"{value:.3f}" for value in given]
    return [*found, "–" if token.segment is None else str(token.segment + 1)]


def _show_context(out: Console, context: str, evidence: Evidence | None) -> None:
    count = f", {plural(len(evidence.segments), 'segment')}" if evidence is not None else ""
    out.print(f"\n[bold]Context[/bold] [dim]({plural(len(context), 'character')}{count})[/dim]")
    if not context:
        out.print("  (empty)")
    for piece in pieces(context, evidence, longest=LONGEST, most=SEGMENTS):
        for line in _piece_lines(piece, evidence):
            _show_indented(out, line)


def _piece_lines(piece: TextPart, evidence: Evidence | None) -> Iterator[Text]:
    if piece.left_out:
        yield Text(f"… {plural(piece.left_out, 'character')} left out …", style="dim")
        return
    if not piece.seen:
        yield Text("no model saw this:", style="yellow")
    elif piece.segment is not None and evidence is not None:
        segment = evidence.segments[piece.segment]
        yield Text(_segment_title(segment), style="bold green" if segment.named else "dim")
    yield Text(printable(piece.text), style="dim strike" if not piece.seen else "")


def _segment_title(segment: EvidenceSegment) -> str:
    kind = "near" if segment.near else "far"
    if segment.perplexity is None:
        return f"segment {segment.index + 1}, {kind}, left out by screening"
    return f"segment {segment.index + 1}, {kind}, gave {number(segment.gain)}{', named' if segment.named else ''}"


def _show_indented(out: Console, text: Text) -> None:
    for line in text.wrap(out, max(_NARROWEST, out.width - len(_INDENT))):
        line.rstrip()
        out.print(Text(_INDENT).append_text(line))


def _table(first: str, *others: str) -> Table:
    """Return a table with left-aligned words and right-aligned figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table
