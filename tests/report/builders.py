"""Report inputs of any size and shape: scores by the real `combine`, texts made up."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from gateau_dagster import tables
from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.config import Config
from gateau_dagster.report.build import build_report
from gateau_dagster.report.comparison import compare
from gateau_dagster.report.drawings import Drawing, drawings
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.selection.combine import combine
from tests.evaluation.builders import heldout_table, needle_table
from tests.report.page import Page

KINDS = ("no_context", "near", "far")


def config(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "long_sft": {"path": "data/long.jsonl"},
            "models": {"short": {"path": "pair/short"}, "long": {"path": "pair/long"}},
            **sections,
        }
    )


def raw(count: int, **changes: str) -> pl.DataFrame:
    """RAW_LONG_SFT; every `changes` column holds that text in all rows."""
    ids = [f"s{i:06d}" for i in range(count)]
    frame = pl.DataFrame(
        {
            "sample_id": ids,
            "source": [KINDS[i % 3] for i in range(count)],
            "context": [f"start {i} " + "word " * 400 + f" end {i}" for i in range(count)],
            "instruction": [f"question {i}" for i in range(count)],
            "response": [f"answer {i}" for i in range(count)],
            "digest": [f"digest {i}" for i in range(count)],
        },
        schema=tables.schema(tables.RAW_LONG_SFT),
    )
    return frame.with_columns(**{name: pl.lit(text) for name, text in changes.items()})


def scores(count: int, *, segments: int = 4, equal: bool = False, preset: str = "robust") -> pl.DataFrame:
    """COMBINED_SCORES of `raw(count)`; `far` samples are worse under the short model. `equal`: all samples alike."""
    rng = np.random.default_rng(count)
    ids = [f"s{i:06d}" for i in range(count)]
    far = np.array([KINDS[i % 3] == "far" for i in range(count)])
    noise = np.zeros(count) if equal else rng.normal(0, 0.1, count)
    tokens = np.full(count, 100) if equal else rng.integers(1, 5000, count)
    ends = {"response_tokens": 5, "truncated_tokens": 0}
    models = [np.exp(1 + noise + (0 if equal else 1) * far), np.exp(1 + noise / 2)]
    short, long = (
        pl.DataFrame(
            {"sample_id": ids, "digest": ids, "perplexity": ppl, "mean_nll": np.log(ppl), "mean_probability": 1 / ppl}
        ).with_columns(
            context_tokens=pl.Series(np.minimum(tokens, limit)), **{name: pl.lit(n) for name, n in ends.items()}
        )
        for ppl, limit in zip(models, (50, 10**6), strict=True)
    )
    each = [[2.0 + (0 if equal else rng.random()) for _ in range(segments)] for _ in ids]
    cas = [None if segments < 2 else 0.5 if equal else rng.random() for _ in ids]
    gain = [None if value is None else value / 5 for value in cas]
    columns = {"segment_perplexity": each, "segment_attention": each, "cas": cas, "far_gain": gain}
    cam = pl.DataFrame(
        {"sample_id": ids, "digest": ids, **columns}, schema_overrides={"cas": pl.Float64, "far_gain": pl.Float64}
    ).with_columns(segments=pl.lit(segments, pl.Int32))
    return combine(short, long, cam, preset=preset, alpha=0.8)  # type: ignore[arg-type]


def training_log(steps: int = 8) -> list[dict[str, float]]:
    return [
        {"step": i, "loss": 2 / i, "learning_rate": 1e-5 / i, "grad_norm": float(i), "tokens_per_second": 1000.0 + i}
        for i in range(1, steps + 1)
    ]


def effort(seconds: float = 2.0, planned: float | None = 1.6, **changes: Any) -> dict[str, Any]:
    """`Stamp.effort` of one shard; without `planned` there was no plan."""
    found = {"samples": 10, "tokens": 20_000, "flops": 4e11, "seconds": seconds, "peak_memory": 3 * 2**29}
    plan = {"samples": 10, "tokens": 19_000, "flops": 3.8e11, "seconds": planned}
    return found | {"matrix_product_speed": 1e12} | ({} if planned is None else {"planned": plan}) | changes


def inputs(count: int = 30, **changes: Any) -> ReportInputs:
    """A whole run over `count` samples, with a ground truth; `changes` replace fields."""
    frame = changes.pop("combined_scores", scores(count))
    chosen = frame.sort("rank").head(max(1, count // 10)).select("sample_id", "score", "rank")
    fields: dict[str, Any] = {
        "config": config(selection={"ground_truth": ["far"]}),
        "raw": raw(count).lazy(),
        "combined_scores": frame,
        "selected_subset": chosen,
        "rejected": {"raw_long_sft": pl.DataFrame({"sample_id": ["bad"], "reason": ["the response is empty"]})},
        "training_log": training_log(),
        "evaluations": {"heldout": heldout_table(), "needle": needle_table()},
        "efforts": {"perplexity/long": [effort(), effort()], "cam": [effort(4.0)]},
        "fingerprints": {"cam": "f" * 64},
        "generated_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return ReportInputs(**(fields | changes))


def html_of(given: ReportInputs) -> str:
    """The page with its figures."""
    comparison = compare(given)
    return build_report(given, comparison, drawings(given, comparison))


def page_of(given: ReportInputs, *names: str) -> Page:
    """The page with an empty figure under each of `names`, and no other: drawing takes most of the time."""
    return Page(build_report(given, compare(given), dict.fromkeys(names, Drawing(figure=Figure(), alt=""))))


@dataclass(frozen=True, kw_only=True)
class Named:
    """A method as the comparison sees it."""

    name: str
    title: str = "What a high score means."
    source: str = "A paper, Eq. 1"


def methods(
    count: int = 30, names: Sequence[str] = ("gateau", "ladm", "length", "nothing"), **options: Any
) -> MethodComparison:
    """Methods with random scores over the samples of `raw(count)`; the last one scores none when there are four."""
    rng = np.random.default_rng(7)
    frame = raw(count).select("sample_id", "source").with_columns(
        context_tokens=pl.Series(rng.integers(100, 9000, count)),
        response_tokens=pl.Series(rng.integers(1, 90, count)),
        perplexity=pl.Series(rng.random(count) + 1),
    )  # fmt: skip
    for number, name in enumerate(names):
        empty = number == 3
        values = pl.Series([None] * count, dtype=pl.Float64) if empty else pl.Series(rng.random(count))
        frame = frame.with_columns(values.alias(f"score:{name}"))
    chosen = {"chosen": max(1, count // 10), "selected_by": names[0], "ground_truth": ["far"]}
    return compare_methods(frame, [Named(name=name) for name in names], **(chosen | options))
