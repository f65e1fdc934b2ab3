"""Report inputs of any size and shape: scores by the real `combine`, texts made up; what a browser sees of a page."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from gateau_dagster import tables
from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import EvidenceRows
from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.features.evaluation.statistics.experiment import Cost, experiment_rows
from gateau_dagster.features.evaluation.statistics.results import ExperimentInputs
from gateau_dagster.features.report.build import build_report
from gateau_dagster.features.report.drawings import drawings
from gateau_dagster.features.report.inputs import ReportInputs, compare
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.plots import Drawing
from gateau_dagster.scoring.response_perplexity import perplexity_row
from gateau_dagster.scoring.segments import CamFigures, cam_row
from gateau_dagster.selection.combine import combine
from tests.comparison.frames import described
from tests.features.evaluation.builders import heldout_table, needle_table
from tests.features.evaluation.experiment_builders import LINES, chosen, experiment_scores
from tests.kit.project import configured

_VOID = {"meta", "img", "link", "br", "hr", "input", "wbr", "source"}
KINDS = ("no_context", "near", "far")
NOT_A_NUMBER = re.compile(r"(?<![a-z])(nan|inf|none|null)(?![a-z])", re.IGNORECASE)


class Page(HTMLParser):
    """Parses strictly: a tag that closes what is not open is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text_of: dict[str, str] = {}
        self.styles = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1][0] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            self.styles += data
            return
        for _, name in self._open:
            if name:
                self.text_of[name] = self.text_of.get(name, "") + data
        self.text_of["page"] = self.text_of.get("page", "") + data

    def text(self, section: str = "page") -> str:
        """Visible text of the element with this id, white space collapsed."""
        return re.sub(r"\s+", " ", self.text_of[section])

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


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
        | {"mfu": 0.4, "peak_memory_bytes": 3.0 * 2**30, "host_memory_bytes": 2.0 * 2**30}
        for i in range(1, steps + 1)
    ]


def effort(seconds: float = 2.0, **changes: Any) -> dict[str, Any]:
    """`Stamp.effort` of one shard."""
    found = {"samples": 10, "tokens": 20_000, "flops": 4e11, "seconds": seconds, "peak_memory": 3 * 2**29}
    return found | {"matrix_product_speed": 1e12} | changes


def inputs(count: int = 30, **changes: Any) -> ReportInputs:
    """A whole run over `count` samples, with a ground truth; `changes` replace fields."""
    frame = changes.pop("combined_scores", scores(count))
    chosen = frame.sort("rank").head(max(1, count // 10)).select("sample_id", "score", "rank")
    fields: dict[str, Any] = {
        "config": configured(selection={"ground_truth": ["far"]}),
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


WITHOUT = 4  # samples that the method cannot score


def by_method(method: str = "length", count: int = 30, *, lengths: bool = False, **changes: Any) -> ReportInputs:
    """A run by a method that scores all but the last samples; `lengths`: theta_B has counted tokens."""
    ids = raw(count)["sample_id"]
    rng = np.random.default_rng(3)
    values = [round(float(value), 1) for value in rng.random(count - WITHOUT)]
    own = pl.DataFrame(
        {"sample_id": ids, "score": [*values, *[None] * WITHOUT]}, schema_overrides={"score": pl.Float64}
    )
    chosen = own.drop_nulls().sort("score", "sample_id", descending=[True, False]).head(3).select("sample_id")
    tokens = pl.DataFrame(
        {"sample_id": ids, "context_tokens": range(count), "response_tokens": range(count), "perplexity": [1.5] * count}
    )
    given = {
        "config": configured(selection={"ground_truth": ["far"], "method": method}),
        "method_scores": own,
        "lengths": tokens if lengths else None,
        "combined_scores": None,
        "selected_subset": chosen,
        "efforts": {},
    }
    return replace(inputs(count), **(given | changes))


def html_of(given: ReportInputs) -> str:
    """The page with its figures."""
    comparison = compare(given)
    return build_report(given, comparison, drawings(given, comparison))


def page_of(given: ReportInputs, *names: str) -> Page:
    """The page with an empty figure under each of `names`, and no other: drawing takes most of the time."""
    return Page(build_report(given, compare(given), dict.fromkeys(names, Drawing(figure=Figure(), alt=""))))


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
    return compare_methods(frame, described(*names), **(chosen | options))


LENGTH = 8  # tokens of a segment


def sample(context: str, response: str, sample_id: str = "s") -> Sample:
    return Sample(sample_id=sample_id, source="test", context=context, instruction="say", response=response)


def rows_of(
    tokenizer: object,
    one: Sample,
    *,
    cut: int = 0,
    cut_short: int = 0,
    near: int = 1,
    gives: Sequence[tuple[int, int, float]] = (),
    attention: bool = True,
) -> EvidenceRows:
    """Every token has p 0.1 whatever is shown; `gives`: segment, token, and p of that token given that segment alone.

    cut, cut_short: context tokens that theta_B and theta_A do not see.
    """
    whole = build_prompt(tokenizer, one, max_length=10**6)  # pyright: ignore
    prompts = [replace(whole, context=whole.context[n:], truncated_tokens=n) for n in (cut, cut_short)]
    tokens, context = len(whole.response), len(prompts[0].context)
    probabilities = np.full((-(-context // LENGTH), tokens), 0.1)
    for segment, token, p in gives:
        probabilities[segment, token] = p
    figures = CamFigures(
        without_context=-np.log(np.full(tokens, 0.1)),
        segments=[-np.log(row) for row in probabilities],
        attention=np.linspace(0.1, 0.2, context) if attention and context else None,
        context=context,
        tail=whole.length - len(whole.context),
        near=min(near, len(probabilities)),
    )
    long, short = (
        perplexity_row(one, prompt, np.full(tokens, nll)) for prompt, nll in zip(prompts, (0.5, 3), strict=True)
    )
    cam = cam_row(one, figures, segment_length=LENGTH)
    return EvidenceRows(cam=asdict(cam), long=asdict(long), short=asdict(short))


LENGTHS, DEPTHS = (1000, 4000, 16000, 60000), (0.1, 0.3, 0.5, 0.7, 0.9)


def experiment_inputs(names: Sequence[str] = ("quiz", "haystack", "losses")) -> ExperimentInputs:
    """Quiz: by task and length, with a floor. Haystack: a grid. Losses: less is better."""
    lengths = {"length": lambda name: ("0–4k", "4–8k", "8k+")[int(name[1:]) // 3 % 3]}
    cells = {f"{length}/{depth}": (length, depth) for length in LENGTHS for depth in DEPTHS}
    benchmarks = {
        "quiz": chosen(floor=20.0, groupings=lengths),
        "haystack": chosen(name="haystack", title="A haystack", unit="share found", cell=lambda _, name: cells[name]),
        "losses": chosen(name="losses", title="Losses", unit="NLL", higher=False),
    }
    values = experiment_scores(questions=64, groups=("0–512", "512–1024"), seed=9)
    losses = {name: table.with_columns(value=4.0 - pl.col("value") / 40) for name, table in values.items()}
    rng, found = np.random.default_rng(5), {}
    for line in LINES:
        for name in line.variants:
            late = 0.75 if name.startswith("robust") else 0.45
            shares = [0.2 if line.name == "base" else 1.0 if length < 10_000 else late for length, _ in cells.values()]
            rows = [
                (question, str(length), float(rng.random() < share))
                for (question, (length, _)), share in zip(cells.items(), shares, strict=True)
            ]
            found[name] = pl.DataFrame(rows, schema=tables.schema(tables.SCORES), orient="row")
    scores = {"quiz": experiment_scores(), "haystack": found, "losses": losses}
    return inputs_of({name: benchmarks[name] for name in names}, {name: scores[name] for name in names})


def inputs_of(
    benchmarks: dict[str, Benchmark], scores: dict[str, dict[str, pl.DataFrame]], reference: str = "full"
) -> ExperimentInputs:
    """The table is the experiment's own; costs are made up."""
    costs = {name: _cost(line.name, line.series) for line in LINES for name in line.variants}
    rows = [
        experiment_rows(each, LINES, scores[name], costs, reference=reference, draws=300)
        for name, each in benchmarks.items()
    ]
    return ExperimentInputs(
        table=pl.concat(rows), lines=LINES, scores=scores, benchmarks=benchmarks, reference=reference
    )


def _cost(model: str, series: str) -> Cost:
    if model == "base":
        return Cost(samples=None, tokens=None, scoring_hours=None, training_hours=None)
    part, scoring = float(model[-3:]) if series else 1.0, 6.2 if series == "robust" else 0.0
    amounts: dict[str, Any] = {
        "samples": int(10_000 * part),
        "tokens": int(81_000_000 * part),
        "training_hours": 11.5 * part,
    }
    return Cost(**amounts, scoring_hours=scoring, judge_cost=1.25 if series else None)
