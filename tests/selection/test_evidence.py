"""Check what responses depend on, by hand-made probabilities of one sample each."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.selection.evidence import CAM_COLUMNS, LONG_COLUMNS, dependencies

NEAR = 2  # segments at the end
Figures = dict[str, Any]


def figures(
    alone: float, segments: list[list[float]], everything: float = 0.9, read: set[int] | None = None
) -> Figures:
    """Return rows of both tables for p(y_t|s_i,x) [N][|y|], by the equations of scoring.segments.

    alone: p(y_t|x) of every token. everything: mean p(y_t|c,x). read: what screening leaves; None: all.
    """
    p = np.array(segments)
    none = np.full(p.shape[1], alone)
    far, near = p[:-NEAR], np.maximum(none, p[-NEAR:].max(axis=0))
    best = far.max(axis=0) if len(far) else np.zeros_like(none)
    gains = [*np.maximum(far - near, 0).sum(axis=1), *np.maximum(p[-NEAR:] - none, 0).sum(axis=1)]
    perplexity = np.exp(-np.log(p).mean(axis=1))
    kept = range(len(p)) if read is None else read
    return {
        "sample_id": "a",
        "near_probability": near,
        "far_probability": best,
        "far_segment": [int(far[:, t].argmax()) if best[t] > near[t] else None for t in range(len(near))],
        "no_context_probability": none,
        "near_segments": min(NEAR, len(p)),
        "segment_gain": [gain if place in kept else None for place, gain in enumerate(gains)],
        "segment_perplexity": [value if place in kept else None for place, value in enumerate(perplexity)],
        "mean_probability": everything,
    }


def found(row: Figures) -> tuple[str, list[int]]:
    schema = {name: dtype for name, dtype in tables.schema((*tables.CAM, *tables.PERPLEXITY)).items() if name in row}
    frame = pl.DataFrame([row], schema=schema)
    table = dependencies(frame.select(CAM_COLUMNS), frame.select(LONG_COLUMNS))
    assert table.columns == ["sample_id", "segments", "dependency"] and table.height == 1
    return table["dependency"][0], table["segments"].to_list()[0]


LOW, HIGH = [0.1, 0.1, 0.1], [0.1, 0.9, 0.1]
OTHER = [0.9, 0.1, 0.1]


@pytest.mark.parametrize(
    ("row", "dependency", "segments"),
    [
        (figures(0.1, [HIGH, LOW, LOW, LOW]), "one_far", [0]),
        (figures(0.1, [HIGH, OTHER, LOW, LOW]), "several_far", [0, 1]),
        (figures(0.1, [LOW, LOW, LOW, HIGH]), "near", [3]),
        # One far and one near: the far one decides, and both are evidence.
        (figures(0.1, [OTHER, LOW, LOW, [0.1, 0.9, 0.9]]), "one_far", [0, 3]),
        # Far text repeats what near text says: near text is enough, and it is more than any text.
        (figures(0.01, [[0.9] * 3, [0.01] * 3, [0.01] * 3, [0.9] * 3]), "near", [3]),
        # Any text at all raises every token: none of it is needed.
        (figures(0.1, [[0.9] * 3] * 4), "closed_book", []),
        (figures(0.6, [[0.6] * 3] * 4), "closed_book", []),
        (figures(0.1, [LOW, LOW, LOW, [0.1, 0.55, 0.1]]), "closed_book", []),
        (figures(0.01, [[0.01] * 3] * 4, everything=0.05), "unpredictable", []),
        # The near segment is the only one, so there is none to compare it with.
        (figures(0.1, [HIGH]), "near", [0]),
        (figures(0.1, [HIGH, LOW, LOW, LOW], read={0, 3}), "one_far", [0]),
        # Each near segment has a fact of its own, or they have the same one, and there is no far text.
        (figures(0.1, [HIGH, OTHER]), "near", [0, 1]),
        (figures(0.1, [HIGH, HIGH]), "near", [0, 1]),
        (figures(0.1, [LOW, HIGH, OTHER]), "near", [1, 2]),
        (figures(0.1, [HIGH, OTHER], read={1}), "near", [1]),
        # Segments that were not read are compared with nothing.
        (figures(0.1, [LOW, LOW, LOW, HIGH], read={3}), "near", [3]),
        (figures(0.01, [[0.9] * 3, [0.01] * 3, [0.01] * 3, [0.9] * 3], read={0, 3}), "near", [3]),
        # The fewest segments that screening reads are enough to compare: here any text helps.
        (figures(0.01, [[0.9] * 3] * 8, read={0, 3, 6, 7}), "closed_book", []),
    ],
)  # fmt: skip
def test_what_a_response_depends_on(row: Figures, dependency: str, segments: list[int]) -> None:
    assert found(row) == (dependency, segments)


def test_a_sample_without_a_context_has_no_evidence() -> None:
    row = figures(0.6, [LOW]) | {"near_segments": 0, "segment_gain": [], "segment_perplexity": []}
    row |= {"near_probability": [0.6] * 3, "far_probability": [0.0] * 3, "far_segment": [None] * 3}
    assert found(row) == ("closed_book", [])


def test_samples_are_those_of_both_tables() -> None:
    row = figures(0.1, [HIGH, LOW, LOW, LOW])
    schema = {name: dtype for name, dtype in tables.schema((*tables.CAM, *tables.PERPLEXITY)).items() if name in row}
    frame = pl.DataFrame([row, row | {"sample_id": "b"}], schema=schema)
    table = dependencies(frame.select(CAM_COLUMNS).head(1), frame.select(LONG_COLUMNS))
    assert table["sample_id"].to_list() == ["a"]
    assert dependencies(frame.select(CAM_COLUMNS).clear(), frame.select(LONG_COLUMNS)).is_empty()
