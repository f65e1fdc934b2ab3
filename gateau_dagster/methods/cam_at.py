"""Compute `cam_at/<length>`: the values of `cam` with another segment length, to study the effect of the length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.pair_tables import cam_effort, cam_version, screening_settings
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.data.sample import Sample
    from gateau_dagster.models.loading import LoadedModel

FAMILY = "cam_at"
_FIGURES = ("sample_id", "digest", "segments", "far_gain")


def further_lengths(config: Config) -> list[int]:
    """Return the lengths in tokens, ascending, that need a table besides `cam`, which has `scoring.segment_length`."""
    return sorted(length for length in config.selection.segment_lengths if length != config.scoring.segment_length)


def cam_at_asset(length: int) -> str:
    """Return the name of the table of a further length."""
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
    from gateau_dagster.models.flops import Meter
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
