"""The page itself: inputs in, one self-contained HTML document out."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.readable import fixed, number, percent, plural
from gateau_dagster.report.comparison import Comparison
from gateau_dagster.report.drawings import Drawing
from gateau_dagster.report.effort import duration, effort_sentence, memory, quantity, table_efforts
from gateau_dagster.report.evidence import NAMED_GAIN
from gateau_dagster.report.evidence_shares import evidence_shares
from gateau_dagster.report.experiment_drawings import figure_name
from gateau_dagster.report.experiment_text import experiment_section
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.methods import methods_section, source_swatches
from gateau_dagster.report.outcome import benchmark_outcomes, training_facts
from gateau_dagster.report.pictures import pictures
from gateau_dagster.report.plots.agreement_plots import bucket_name, share_text
from gateau_dagster.report.provenance import chosen_by, provenance, ranked_by, scored_by
from gateau_dagster.report.rejects import reject_groups
from gateau_dagster.report.samples import sample_cards
from gateau_dagster.report.text import breakable, printable
from gateau_dagster.report.truth import truth

SOURCES = 20
"""Sources in the table of what was selected; the others are one line."""
RAW = "raw_long_sft"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many samples came in, and what became of them; `given` = `invalid` + `unscorable` + `scored`.

    `reserved`: of the scored, those that cannot be selected.
    """

    given: int
    invalid: int
    unscorable: int
    scored: int
    reserved: int
    selected: int


def build_report(inputs: ReportInputs, comparison: Comparison | None, drawn: Mapping[str, Drawing]) -> str:
    """The whole report as HTML: no script, and nothing is loaded from outside.

    Every text from the data is escaped: samples are untrusted.

    Args:
        comparison: of the presets; see report.comparison.compare.
        drawn: see drawings; a figure that is not among them is left out.
    """
    cards = sample_cards(inputs)
    return _environment().get_template("report.html.j2").render(
        inputs=inputs,
        selection=inputs.config.selection,
        ranked_by=ranked_by(inputs.config.selection),
        chosen_by=chosen_by(inputs.config.selection),
        scored_by=scored_by(inputs.config),
        by_gateau=inputs.by_gateau,
        deciding=chosen_methods(inputs.config)[inputs.config.selection.method].method,
        counts=counts(inputs),
        comparison=comparison,
        pictures=pictures(drawn),
        top=cards.top,
        bottom=cards.bottom,
        no_evidence=cards.no_evidence,
        evidence=evidence_shares(inputs),
        named_gain=NAMED_GAIN,
        sources=source_table(inputs.ranked),
        lengths=_length_sentence(inputs.ranked, inputs.length_unit),
        length_unit=inputs.length_unit,
        rejects=reject_groups(inputs.rejected),
        training=training_facts(inputs.training_log) if inputs.training_log else None,
        benchmarks=benchmark_outcomes(inputs),
        experiment=None if inputs.experiment is None else experiment_section(inputs.experiment),
        further=inputs.further,
        figure_name=figure_name,
        effort=_effort(inputs),
        far=inputs.far_ranked is not None,
        truth=truth(inputs, comparison),
        methods=methods_section(inputs),
        source_swatches=source_swatches(inputs),
        provenance=provenance(
            inputs.config,
            fingerprints=inputs.fingerprints,
            generated_at=inputs.generated_at,
            command=inputs.command,
        ),
    )  # fmt: skip


def counts(inputs: ReportInputs) -> Counts:
    """Samples in, out and between."""
    invalid = inputs.rejected[RAW].height if RAW in inputs.rejected else 0
    scored = inputs.ranked.height
    return Counts(
        given=inputs.given + invalid,
        invalid=invalid,
        unscorable=inputs.given - scored,
        scored=scored,
        reserved=int(inputs.ranked["sample_id"].is_in(list(inputs.reserved)).sum()),
        selected=inputs.selected_subset.height,
    )


def source_table(scores: pl.DataFrame) -> list[dict]:
    """`source`, `scored`, `selected` and `share` (selected / scored) by source, the most selected first.

    Beyond `SOURCES` sources the rest is one line.
    """
    table = (
        scores.group_by("source")
        .agg(pl.len().alias("scored"), pl.col("selected").sum(), pl.col("far").any())
        .sort(["selected", "scored", "source"], descending=[True, True, False])
    )
    rest = table.slice(SOURCES)
    rows = table.head(SOURCES).with_columns(
        pl.col("source").map_elements(lambda source: printable(source[:200]), return_dtype=pl.String)
    )
    lines = list(rows.iter_rows(named=True))
    if not rest.is_empty():
        name = plural(rest.height, "other source")
        lines.append({"source": name, "scored": rest["scored"].sum(), "selected": rest["selected"].sum(), "far": False})
    return [{**line, "share": line["selected"] / line["scored"]} for line in lines]


def _length_sentence(scores: pl.DataFrame, unit: str) -> str:
    everything = scores[f"context_{unit}"].median()
    chosen = scores.filter("selected")[f"context_{unit}"].median()
    if not isinstance(everything, float) or not isinstance(chosen, float):
        return "Nothing was selected."
    return f"Half of the selected contexts have {chosen:,.0f} {unit} or more; of all scored ones, {everything:,.0f}."


def _effort(inputs: ReportInputs) -> dict | None:
    tables = table_efforts(inputs.efforts)
    if not any(table.measured for table in tables):
        return None
    return {"sentence": effort_sentence(tables), "tables": tables}


@cache
def _environment() -> Environment:
    # autoescape for every template, whatever its name ends in.
    environment = Environment(
        loader=PackageLoader("gateau_dagster.report", package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(fixed=fixed, number=number, percent=percent, plural=plural)
    environment.filters.update(bucket_name=bucket_name, share_text=share_text, printable=printable, breakable=breakable)
    environment.filters.update(duration=duration, memory=memory, quantity=quantity)
    return environment
