"""Say how far a choice can be trusted: what it depends on, its cut, its sources, and what its checks found."""

from collections.abc import Iterator

import polars as pl

from gateau_dagster.config import SelectionConfig
from gateau_dagster.config.selection import DRAWING, Dependency
from gateau_dagster.pipeline.choice import ranking_scores, response_share
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE, PRESETS_TABLE, has_evidence, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import number, percent, plural
from gateau_dagster.selection.evidence import FAR, LEAST_FAR, far_share

_SOURCES = 6
_NEEDLESS: dict[Dependency, str] = {
    "closed_book": "can be answered without their context",
    "near": "depend on near text only",
    "unpredictable": "are predicted by nothing that was found",
}
RESPONSE_CURE = "Long responses are hardly chosen: `selection.budget: {response_tokens: N}` takes more samples."


def trust_lines(state: State) -> list[tuple[str, str]]:
    """Return the trust panel, a label and a sentence per line; empty before anything is chosen."""
    if state.stamp(CHOSEN, None) is None:
        return []
    config, asset = state.config, ranking_asset(state.config)
    if any(state.stamp(asset, part) is None for part in state.pipeline.partitions(asset)):
        return []
    depends = has_evidence(config) and all(state.stamp(EVIDENCE, shard) is not None for shard in state.shards)
    chosen = state.store.read(CHOSEN, columns=["sample_id", "source"])
    scores = ranking_scores(state, config)
    lines: list[tuple[str, str]] = []
    findings: list[str] = []
    if depends:
        every = state.read(EVIDENCE, ["sample_id", "dependency"])
        of_chosen = every.join(chosen, on="sample_id", how="semi")["dependency"]
        lines.append(("Depends on", f"Chosen: {_shares(of_chosen)}. All: {_shares(every['dependency'])}."))
        findings += far_findings(config.selection, of_chosen)
    lines.append(("Cut", _cut(config.selection, scores, chosen)))
    sources = state.store.read_all("raw_long_sft", state.shards, ["sample_id", "source"])
    lines.append(("Sources", _by_source(sources, chosen)))
    if (learned := response_share(state)) is not None:
        lines.append(("Learned", f"{learned.sentence}."))
        findings += [RESPONSE_CURE] if learned.is_small else []
    for trusted in hooks("checks", "trusted"):
        lines += trusted(state)
    upstream = {CHOSEN, *state.pipeline.ancestors([CHOSEN])}
    lost = (f"`{loss.asset}`: {loss.sentence}." for loss in losses(state, upstream) if loss.notable)
    findings += [*_degenerated(state), *lost]
    lines.append(("Checks", " ".join(findings) or "Nothing was found that speaks against the choice."))
    return lines


def far_findings(selection: SelectionConfig, dependencies: pl.Series) -> list[str]:
    """Return sentences, each with a cure, on chosen samples that need no far text, if too few need it.

    `dependencies`: str, of the chosen samples. A rule that draws decides about their share itself.
    """
    share = far_share(dependencies)
    if selection.rule in DRAWING or share is None or share >= LEAST_FAR:
        return []
    return [
        f"{count:,} of {plural(dependencies.len(), 'chosen sample')} {meaning}: `selection.drop: [{name}]`, or a "
        "smaller fraction."
        for name, meaning in _NEEDLESS.items()
        if (count := int((dependencies == name).sum()))
    ]


def _shares(dependencies: pl.Series) -> str:
    counts = dict(dependencies.drop_nulls().value_counts(sort=True).iter_rows())
    far = sum(count for name, count in counts.items() if name in FAR)
    others = [f"{name} {percent(count / dependencies.len(), 0)}" for name, count in counts.items() if name not in FAR]
    return ", ".join([f"{percent(far / max(1, dependencies.len()), 0)} on far text", *others])


def _cut(selection: SelectionConfig, scores: pl.DataFrame, chosen: pl.DataFrame) -> str:
    if selection.rule in DRAWING:
        return f"None: rule {selection.rule} does not choose by rank alone."
    taken = scores.join(chosen, on="sample_id", how="semi")["score"]
    left = scores.join(chosen, on="sample_id", how="anti")["score"]
    if taken.is_empty() or left.is_empty():
        return "None: all samples are chosen, or none."
    last, first = (float(each) for each in (taken.min(), left.max()))  # pyright: ignore[reportArgumentType]
    spread = float(scores["score"].std() or 0.0)  # pyright: ignore[reportArgumentType]
    beside = "" if not spread else f", {percent((last - first) / spread, 0)} of a standard deviation of all scores"
    return f"The last chosen sample has {number(last)}, the best one left out {number(first)}{beside}."


def _by_source(sources: pl.DataFrame, chosen: pl.DataFrame) -> str:
    counts = (
        sources.with_columns(chosen=pl.col("sample_id").is_in(chosen["sample_id"].implode()))
        .group_by(pl.col("source").fill_null("(unknown)"))
        .agg(pl.col("chosen").sum(), given=pl.len())
        .sort("chosen", "given", "source", descending=[True, True, False])
    )
    shown = [f"{name} {taken:,} of {given:,}" for name, taken, given in counts.head(_SOURCES).iter_rows()]
    more = counts.height - _SOURCES
    return f"Chosen: {', '.join([*shown, *([plural(more, 'other source')] if more > 0 else [])])}."


def _degenerated(state: State) -> Iterator[str]:
    from gateau_dagster.selection.presets import check

    selection = state.config.selection
    if ranking_asset(state.config) != PRESETS_TABLE:
        return
    found = check(
        state.store.read(PRESETS_TABLE, None), preset=selection.preset, alpha=selection.alphas[selection.preset]
    )
    if found.degenerate:
        yield f"The ranking should not be trusted ({found.sentence.rstrip('.')}): choose another `selection.preset`."
