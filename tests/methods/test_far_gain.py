"""Far gain against plain loops over the tokens and the robust preset, its parts, and tables of other models."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config.selection import ALPHA
from gateau_dagster.data.sample import Sample
from gateau_dagster.methods import far_gain
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.scoring.response_perplexity import perplexity_row
from gateau_dagster.scoring.segments import TOP_SHARE, CamFigures, cam_row, near_segments
from gateau_dagster.selection.combine import combine
from tests.kit.error_codes import refused
from tests.methods.configured import method_of, scores_of

LENGTHS = [1, 2, 3, 10, 20, 21, 30, 31, 70, 400]


def made(seed: int = 0, lengths: list[int] = LENGTHS) -> dict[str, pl.DataFrame]:
    """The columns that are read, of samples with responses of these lengths, in another order in each table."""
    rng = np.random.default_rng(seed)
    ids = [f"s{index}" for index in range(len(lengths))]

    def lists() -> list[list[float]]:
        return [rng.random(length).astype(np.float32).tolist() for length in lengths]

    common = {"sample_id": ids, "digest": [f"digest {name}" for name in ids]}
    single = tables.schema(tables.PERPLEXITY)["token_probability"]
    columns = {
        "perplexity/short": ["token_probability"],
        "perplexity/long": ["token_probability"],
        "cam": ["near_probability", "far_probability"],
    }
    return {
        name: pl.DataFrame(
            {**common, **{column: lists() for column in wanted}}, schema_overrides=dict.fromkeys(wanted, single)
        ).sample(fraction=1, shuffle=True, seed=seed)
        for name, wanted in columns.items()
    }


def run(name: str, found: dict[str, pl.DataFrame], **options: Any) -> dict[str, float]:
    return scores_of(name, found, options=options)


def slow(found: dict[str, pl.DataFrame], sample: str, top: Fraction) -> tuple[float, float]:
    """FG and HMPp of a sample, token by token."""
    rows = {name: table.row(by_predicate=pl.col("sample_id") == sample, named=True) for name, table in found.items()}
    gains = []
    for near, far in zip(rows["cam"]["near_probability"], rows["cam"]["far_probability"], strict=True):
        gains.append(far - near if far > near else 0.0)
    count = max(2, math.ceil(top * len(gains)))
    largest = sorted(gains)[::-1][:count]
    long, short = rows["perplexity/long"]["token_probability"], rows["perplexity/short"]["token_probability"]
    differences = [b - a for a, b in zip(short, long, strict=True)]
    return sum(largest) / len(largest), sum(differences) / len(differences)


@pytest.mark.parametrize("top", ["1/10", "3/10", "1"])
@pytest.mark.parametrize("alpha", [0.5, 0.2])
def test_against_plain_loops(top: str, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_gain, "_ROWS", 4)
    found, share = made(), Fraction(top)
    both = run("far_gain", found, alpha=alpha, top=float(share))
    fg, hmp = run("far_gain_fg", found, top=float(share)), run("far_gain_hmp", found)
    assert len(both) == len(fg) == len(hmp) == len(LENGTHS)
    for sample in both:
        gain, guidance = slow(found, sample, share)
        assert fg[sample] == pytest.approx(gain, rel=1e-9)
        assert hmp[sample] == pytest.approx(guidance, rel=1e-9)
        assert both[sample] == pytest.approx(alpha * guidance + (1 - alpha) * gain, rel=1e-9)


@pytest.mark.parametrize(("near", "gains"), [(0, True), (1, False)])
def test_a_lone_segment_counts_where_it_is_far(near: int, gains: bool) -> None:
    """theta_A sees no token of a far one; the robust preset has no CAS for either."""
    assert near_segments(8, 4, segment_length=8, visible_tokens=3 if near == 0 else 12) == near
    sample = Sample(sample_id="s", source="x", context="c", instruction="i", response="r r")
    alone, segment = np.array([4.0, 5.0]), np.array([0.1, 0.2])
    figures = CamFigures(without_context=alone, segments=[segment], attention=np.ones(8), context=8, tail=4, near=near)
    row = cam_row(sample, figures, segment_length=8)
    fg = run("far_gain_fg", {"cam": pl.DataFrame([vars(row)], schema=tables.schema(tables.CAM))})["s"]
    assert row.far_gain is None
    assert fg == (pytest.approx(np.mean(np.exp(-segment) - np.exp(-alone)), rel=1e-6) if gains else 0.0)


def test_of_no_samples_come_no_scores() -> None:
    found = {name: table.clear() for name, table in made().items()}
    assert run("far_gain", found) == run("far_gain_fg", found) == {}


def test_samples_that_a_table_lacks_have_no_score() -> None:
    found = made()
    found["cam"] = found["cam"].filter(pl.col("sample_id") != "s3")
    assert set(run("far_gain", found)) == {f"s{index}" for index in range(len(LENGTHS))} - {"s3"}


def test_other_tokens_are_refused() -> None:
    found = made()
    found["perplexity/short"] = made(1, [2, *LENGTHS[1:]])["perplexity/short"]
    for name in ("far_gain", "far_gain_hmp"):
        with refused("models.not_homologous", "1.*s0's"):
            run(name, found)


def test_other_versions_are_refused() -> None:
    found = made()
    found["cam"] = found["cam"].with_columns(digest=pl.lit("x"))
    with refused("storage.out_of_date", "10.*s0"):
        run("far_gain", found)


def whole_tables() -> dict[str, pl.DataFrame]:
    """perplexity/short, perplexity/long and cam as the scoring writes them, of samples with none to four segments."""
    rng = np.random.default_rng(1)
    made: dict[str, list[Any]] = {"perplexity/short": [], "perplexity/long": [], "cam": []}
    for index in range(60):
        sample = Sample(sample_id=f"s{index:02d}", source="x", context="c", instruction="i", response=f"r {index}")
        context, tokens = 8 * (index % 5), int(rng.integers(1, 40))
        prompt = Prompt(prefix=(1,), context=(2,) * context, suffix=(3,), response=(4,) * tokens)
        for model in ("short", "long"):
            made[f"perplexity/{model}"].append(perplexity_row(sample, prompt, rng.exponential(1, tokens)))
        figures = CamFigures(
            without_context=rng.exponential(1, tokens),
            segments=list(rng.exponential(1, (context // 8, tokens))),
            attention=rng.random(context) if context else None,
            context=context,
            tail=prompt.length - context,
            near=min(context // 8, 1),
        )
        made["cam"].append(cam_row(sample, figures, segment_length=8))
    columns = {"perplexity/short": tables.PERPLEXITY, "perplexity/long": tables.PERPLEXITY, "cam": tables.CAM}
    return {
        name: pl.DataFrame([vars(row) for row in rows], schema=tables.schema(columns[name]))
        for name, rows in made.items()
    }


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_the_robust_preset_scores_and_ranks_alike(alpha: float) -> None:
    """Compare samples with at least two segments: the preset puts the others last."""
    found = whole_tables()
    short, long, cam = found.values()
    preset = combine(short, long, cam, preset="robust", alpha=alpha)
    compared = preset.filter(pl.col("segments") > 1)
    scores = run("far_gain", found, alpha=alpha)
    assert compared.height == 36
    for sample, score in compared.select("sample_id", "score").iter_rows():
        assert scores[sample] == pytest.approx(score, rel=1e-12, abs=1e-15)
    order = sorted(compared["sample_id"], key=lambda sample: (-round(scores[sample], 12), sample))
    assert compared.sort("rank")["sample_id"].to_list() == order
    assert preset.filter(pl.col("segments") < 2)["rank"].min() == 37


def test_the_defaults_of_the_preset_are_the_method_s() -> None:
    options = method_of("far_gain").options
    mine = (options.alpha, options.top)  # pyright: ignore[reportAttributeAccessIssue]
    assert mine == (ALPHA["robust"], TOP_SHARE) == (0.5, 0.1)
