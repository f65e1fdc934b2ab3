"""Declare the tables of the homologous models' scores (Eqs. 1 and 3-5): `perplexity/<model>`, `cam`, `cam_at/<length>`.

The last has the values of `cam` with another segment length, to study the effect of the length.
"""

# Why two tables share a step: `perplexity/long` and `cam` both need theta_B's pass over the whole prompt, the most
# expensive one of a sample. Apart, each would run it. They stay two tables, since a change of `scoring.segment_length`
# must not recompute perplexities: rows are requested table by table.
#
# The efforts below are the same arithmetic as in `scoring.scorer`, for all samples at once and without a model. A
# change there needs the same change here, or `gateau plan` promises other tokens than a run takes.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.models import SegmentChoice
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.sample_table import (
    Derivation,
    Outcomes,
    PlannedPasses,
    PlannedWork,
    RequestedRow,
    Row,
    Running,
    SampleTable,
    SampleTokens,
    SharedPass,
)
from gateau_dagster.scoring.segments import GAINS_CODE_VERSION, SCREENING_CODE_VERSION, at_window, screened_count

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.models.loaded import LoadedModel


def perplexity_effort(tokens: SampleTokens) -> PlannedWork:
    """Return a pass over each whole prompt, with the output layer for its response."""
    parts = tokens.prompts(opening=True)
    count = (parts.prompt > 0).astype(np.float64)
    return PlannedWork(passes=[PlannedPasses(count=count, length=parts.prompt, read=parts.response, head=True)])


def cam_effort(
    tokens: SampleTokens, *, length: int, attention: bool = True, segments: SegmentChoice = "all"
) -> PlannedWork:
    """Return the passes over each segment of `length` tokens alone (Eq. 3), or the screened ones, and over no context.

    With `attention`, a pass over the whole prompt is added (Eq. 4), if the model shows its attention. If perplexity
    takes that pass (`tokens.shared`), it is counted only there. Without a context, that pass is also the pass without
    context.
    """
    parts, shared = tokens.prompts(opening=True), np.asarray(tokens.shared)
    has_context = parts.context > 0
    count = np.ceil(parts.context / length)
    read = count if segments == "all" else screened_count(parts, length, tokens.shape)
    # All segments are of one length but the last, so two kinds of pass describe them.
    whole, last = np.maximum(read - 1, 0), np.minimum(read, 1)  # the last segment is always read
    # Without context, the pass without context is the pass over the whole prompt, which perplexity takes already.
    alone = ((parts.prompt > 0) & (has_context | ~shared)).astype(np.float64)
    lengths = (
        (whole, np.minimum(parts.context, length) + parts.tail),
        (last, last * (parts.context - (count - 1) * length + parts.tail)),
        (alone, parts.tail),
    )
    passes = [PlannedPasses(count=count, length=each, read=parts.response, head=True) for count, each in lengths]
    if not (attention and tokens.shows_attention):
        return PlannedWork(passes=passes)
    own = PlannedPasses(count=(has_context & ~shared).astype(np.float64), length=parts.prompt, read=parts.response)
    observed = parts.response * has_context
    return PlannedWork(
        passes=[own, *passes], rows=lambda shape: observed * shape.attention_row_flops_each(parts.prompt)
    )


THETA_A, THETA_B = "short", "long"
CAM = "cam"
WINDOW_SETTINGS = ("models.short.context", "models.short.window")  # they decide which segments are far
# Raise them when rows change; that of `cam` covers `cam_at`, too.
PERPLEXITY_CODE_VERSION = "3"
CAM_CODE_VERSION = "3"


def perplexity_asset(model: str) -> str:
    """Return the name of a causal model's perplexity table."""
    return f"perplexity/{model}"


def pair_tables(config: Config, *, attention_read: bool = True) -> Iterator[SampleTable]:
    """Yield `perplexity/<model>` of every causal model, and `cam` by theta_B if the pair is configured.

    attention_read: whether anything in the configuration reads attention, see `cam_table`.
    """
    for model in config.causal_models:
        shared = model == THETA_B and config.has_pair
        yield perplexity_table(model, shared=shared, attention_read=attention_read)
    if config.has_pair:
        yield cam_table(config, attention_read=attention_read)


def perplexity_table(model: str, *, shared: bool, attention_read: bool = True) -> SampleTable:
    """Return the table of the response's perplexity given context and instruction.

    shared: whether its full pass also serves `cam`.
    """
    role = {THETA_A: " under theta_A", THETA_B: " under theta_B"}.get(model, "")
    return SampleTable(
        asset=perplexity_asset(model),
        model=model,
        columns=tables.PERPLEXITY,
        finite=("perplexity", "mean_nll", "mean_probability"),
        summary="perplexity of each response; one for each configured model",
        description=f"Perplexity of each response{role} (Eq. 1).",
        score=partial(_one_table, asset=perplexity_asset(""), attention_read=False),
        code_version=PERPLEXITY_CODE_VERSION,
        shared=_shared_pass(attention_read) if shared else None,
        effort=perplexity_effort,
    )


def cam_table(config: Config, *, attention_read: bool = True) -> SampleTable:
    """Return the table of segment perplexities, segment attention and their similarity.

    If theta_B's attention cannot be read, rows have no attention and no CAS; with `attention_read` the model is refused
    instead. Neither changes a row of another model, so neither is a setting.
    """
    length, segments = config.scoring.segment_length, config.scoring.segments
    every = () if segments == "screened" else ("segment_perplexity", "segment_gain")
    return SampleTable(
        asset=CAM,
        of="",
        model=THETA_B,
        columns=tables.CAM,
        finite=("segment_attention", *every),
        summary="segment perplexities, segment attention, Contextual Awareness Score",
        description="Contextual Awareness Measurement by theta_B: does the model attend to the segments that matter "
        "for the response? Segment perplexities, segment attention and their similarity CAS (Eq. 3-5).",
        score=partial(_one_table, asset=CAM, attention_read=attention_read),
        settings={"scoring.segment_length": length, **screening_settings(config)},
        code_version=cam_version(config, GAINS_CODE_VERSION),
        shared=_shared_pass(attention_read),
        needs_visible_window=True,
        derivation=None
        if segments == "screened"
        else Derivation(settings=frozenset(WINDOW_SETTINGS), marker="tail_tokens", rows=partial(_derived, config)),
        effort=partial(cam_effort, length=length, segments=segments),
        other_efforts={
            f"scoring.segments: {other}": partial(cam_effort, length=length, segments=other)
            for other in get_args(SegmentChoice)
            if other != segments and not (other == "screened" and attention_read)
        },
    )


def _derived(config: Config, cam: pl.DataFrame) -> pl.DataFrame:
    from gateau_dagster.models.model_facts import visible_tokens

    return at_window(cam, segment_length=config.scoring.segment_length, visible_tokens=visible_tokens(config))


def screening_settings(config: Config) -> dict[str, str]:
    """Return the setting that leaves segments out; none for the default, so that it enters no fingerprint."""
    # A default that is written would make every earlier store stale.
    return {} if config.scoring.segments == "all" else {"scoring.segments": config.scoring.segments}


def cam_version(config: Config, *versions: str) -> str:
    """Return the code version of a table of segments, made of these, and of screening if segments are screened."""
    screened = config.scoring.segments == "screened"
    return ".".join([CAM_CODE_VERSION, *versions, *([SCREENING_CODE_VERSION] if screened else [])])


def _shared_pass(attention_read: bool) -> SharedPass:
    # One pass of theta_B over a sample gives both tables.
    perplexity = perplexity_asset(THETA_B)
    score = partial(_both, perplexity=perplexity, attention_read=attention_read)
    return SharedPass(name=f"perplexity__{THETA_B}_and_cam", score=score)


def _one_table(
    loaded: LoadedModel, samples: Iterable[Sample], running: Running, *, asset: str, attention_read: bool
) -> Iterator[Row | Reject]:
    requests = (RequestedRow(sample=sample, assets=frozenset({asset})) for sample in samples)
    both = partial(_both, perplexity=perplexity_asset(""), attention_read=attention_read)
    return (outcomes[asset] for outcomes in both(loaded, requests, {asset: running}))


def _both(
    loaded: LoadedModel,
    asked: Iterable[RequestedRow],
    running: Mapping[str, Running],
    *,
    perplexity: str,
    attention_read: bool,
) -> Iterator[Outcomes]:
    """Yield a row or a reject for each table that needs the sample. `perplexity`: name of that table."""
    from gateau_dagster.models.context_attention import attention_unseen, require_seen
    from gateau_dagster.models.loaded import ForwardWork, Meter
    from gateau_dagster.scoring.scorer import Request, score_samples

    # Either table may be missing, when only one is stale. Its work then goes to a counter that nobody reads.
    any_one = next(iter(running.values()))
    works = {asset: running[asset].work if asset in running else ForwardWork() for asset in (perplexity, CAM)}
    # Refuse the model before its first sample if the ranking needs CAS. If nothing reads CAS, the same model is good
    # enough, and its rows have none.
    if attention_read and CAM in running:
        require_seen(loaded)
    seen = CAM in running and attention_unseen(loaded) is None
    requests = (
        Request(sample=one.sample, perplexity=perplexity in one.assets, cam=CAM in one.assets, attention=seen)
        for one in asked
    )
    outcomes = score_samples(
        loaded,
        requests,
        max_length=any_one.max_length,
        scoring=any_one.scoring,
        meter=Meter(perplexity=works[perplexity], cam=works[CAM]),
        visible_tokens=running[CAM].visible_tokens if CAM in running else None,
    )
    # An interrupt ends this generator, which must end the one below it with its reading thread.
    with closing(outcomes):  # pyright: ignore[reportArgumentType]
        for found in outcomes:
            given = {perplexity: found.perplexity, CAM: found.cam}
            rows = {asset: one for asset, one in given.items() if one is not None}
            yield {asset: one if isinstance(one, Reject) else asdict(one) for asset, one in rows.items()}


FAMILY = "cam_at"
_FIGURES = ("sample_id", "digest", "segments", "far_gain")


def further_lengths(config: Config) -> list[int]:
    """Return the lengths in tokens, ascending, that need a table besides `cam`, which has `scoring.segment_length`."""
    return sorted(length for length in config.selection.segment_lengths if length != config.scoring.segment_length)


def cam_at_asset(length: int) -> str:
    """Return the name of the table of another length."""
    return f"{FAMILY}/{length}"


def cam_at_columns(config: Config) -> tuple[tables.Column, ...]:
    """Return the columns of `cam` that the ranking by `selection.preset` reads.

    CAS (Eq. 5) takes a pass over the whole prompt that observes attention; robust reads the far-segment gain instead.
    """
    wanted = {*_FIGURES, *(() if config.selection.preset == "robust" else ("cas",))}
    return tuple(column for column in tables.CAM if column.name in wanted)


def cam_at_tables(config: Config) -> Sequence[SampleTable]:
    """Return a table for each of `further_lengths`.

    Raises GateauError for a length at which no prompt of `scoring.max_length` holds two segments.
    """
    return [_table(config, length) for length in further_lengths(config)]


def _table(config: Config, length: int) -> SampleTable:
    longest = config.scoring.max_length
    if length >= longest:
        raise GateauError(
            "methods.no_sample_fits",
            f"selection.segment_lengths: no sample has two segments of {length} tokens, since scoring.max_length "
            f"is {longest}: give shorter lengths",
        )
    columns = cam_at_columns(config)
    return SampleTable(
        asset=cam_at_asset(length),
        of="length",
        model="long",
        columns=columns,
        summary="the columns of `cam` that the ranking reads, for another segment length",
        description=f"What the ranking reads of `cam`, with segments of {length} tokens.",
        settings={
            "scoring.segment_length": length,
            "columns": [column.name for column in columns],
            **screening_settings(config),
        },
        score=partial(_measure, length=length, columns=[column.name for column in columns]),
        code_version=cam_version(config),
        needs_visible_window=True,
        effort=partial(
            cam_effort,
            length=length,
            attention=any(column.name == "cas" for column in columns),
            segments=config.scoring.segments,
        ),
    )


def _measure(
    loaded: LoadedModel, samples: Iterable[Sample], running: Running, *, length: int, columns: Sequence[str]
) -> Iterator[Row | Reject]:
    """Yield one row or reject per sample, in order."""
    from gateau_dagster.models.loaded import Meter
    from gateau_dagster.scoring.scorer import Request, score_samples

    requests = (Request(sample=one, perplexity=False, cam=True, attention="cas" in columns) for one in samples)
    scoring = running.scoring.model_copy(update={"segment_length": length})
    outcomes = score_samples(
        loaded,
        requests,
        max_length=running.max_length,
        scoring=scoring,
        meter=Meter(cam=running.work),
        visible_tokens=running.visible_tokens,
    )
    with closing(outcomes):  # pyright: ignore[reportArgumentType]
        for found in outcomes:
            assert found.cam is not None
            yield found.cam if isinstance(found.cam, Reject) else {name: getattr(found.cam, name) for name in columns}
