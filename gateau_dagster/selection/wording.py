"""Put a selection and its forecast into words, and a forecast into a record for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from gateau_dagster.config import SelectionConfig
from gateau_dagster.config.selection import DEFAULT_FRACTION, SCORES, Rule
from gateau_dagster.readable import fixed, number, percent, percentage, plural
from gateau_dagster.selection.forecast import LEAST_DEFICIT, VERDICTS, Estimated, Forecast, SelectionVerdict


def ranked_by(selection: SelectionConfig) -> str:
    """Return the method: for GATEAU with preset and alpha, for a file of scores with its path."""
    if selection.method == SCORES:
        return f"Method {SCORES}: {selection.options[SCORES]['path']}"
    if selection.method != "gateau":
        return f"Method {selection.method}"
    return f"Method gateau, preset {selection.preset}, α = {selection.alphas[selection.preset]}"


def chosen_by(selection: SelectionConfig, taken: str = "", *, far: float | None = None) -> str:
    """Return the selection rule and its amount (`config.selection.RuleConfig`).

    Args:
        selection: the configured selection.
        taken: the rule that `auto` took.
        far: the share of the chosen samples that depend on far text, in [0, 1], from selection.evidence.far_share.
    """
    budget = selection.most_tokens
    amount = _amount(selection) if budget is None else f"a budget of {number(budget)} {selection.budget_unit}"
    auto = ""
    if selection.rule == "auto" and taken:
        selection, auto = selection.under(cast(Rule, taken)), f" (rule {taken}, which auto took)"
    quota = f"{100 * selection.use['far']:g} % of it" if isinstance(selection.use, dict) else "a quota"
    phrases = {
        "top": amount,
        "token_budget": amount,
        "per_source": f"{amount}, each source its share",
        "per_source_tokens": f"{amount}, the same percentage of every source",
        "diverse": f"{amount}, and the {selection.per_cluster} best of every cluster besides",
        "mix": f"{amount}, {quota} from samples that depend on far text, and others drawn at random",
        "clean": f"{amount}, drawn at random",
        "auto": f"{amount}, as the forecast decides",
        "ccs": f"{amount}, evenly over the range of scores",
    }
    limit = selection.per_document
    by_document = "" if limit is None else f", at most {limit} of a document"
    share = "" if far is None else f"; {percentage(far)} of the chosen samples depend on far text"
    return phrases[selection.rule] + auto + by_document + share


def _amount(selection: SelectionConfig) -> str:
    if selection.count is not None:
        return f"count ({number(selection.count)})"
    return f"fraction ({100 * (selection.fraction or DEFAULT_FRACTION):g} %)"


_ADVICE: dict[SelectionVerdict, str] = {
    "pays": "Confirm it: variants trains models on this choice and on random samples, and the report compares them.",
    "level": "Random samples without repeats and noise are expected to do as well.",
    "do_not_select": "Choose by shares of the use, or draw at random.",
}


def _range(found: Estimated, *, sign: bool = False) -> str:
    """Return an estimate with its interval, unless it is exact: `0.90 (0.61 to 1.10)`."""
    value, low, high = (
        (signed(end) if sign else fixed(end)) if math.isfinite(end) else "∞"
        for end in (found.value, found.low, found.high)
    )
    return value if found.low == found.high else f"{value} ({low} to {high})"


def signed(value: float) -> str:
    """Return a change with two decimals and its sign."""
    return ("+" if round(value, 2) > 0 else "") + fixed(value)


def _shares(found: Estimated) -> str:
    low, high = percent(found.low, 0).removesuffix("\u00a0%"), percent(found.high, 0)
    return f"{percent(found.value, 0)} ({low} to {high})"


def forecast_lines(found: Forecast) -> list[tuple[str, str]]:
    """Return the forecast as lines of a label and one or two sentences, in the order of the argument."""
    known = found.samples - found.unknown
    share = found.seen / known if known else 0.0
    beside = "" if not found.unknown else f" {plural(found.unknown, 'other sample')} could not be classified."
    given = "by selection.use" if found.use_given else "assumed; set selection.use"
    need = (
        f"{percent(found.far.value)} need it, by selection.ground_truth."
        if found.far_known
        else f"About {_shares(found.far)} need it, corrected for what the test misses."
    )
    return [
        (
            "Far text",
            f"{percent(share)} of {plural(known, 'sample')} show it. {need}{beside}",
        ),
        (
            "Use",
            f"Far text in {percent(found.use, 0)} ({given}). Mismatch with the pool: {_range(found.mismatch)} bits.",
        ),
        ("Far deficit", _deficit_sentence(found)),
        ("Far samples", _counts_sentence(found)),
        (
            "Coverage",
            f"This choice covers {percent(found.covered, 0)} of {found.strata}; as many of the best samples cover "
            f"{percent(found.covered_top, 0)}, random ones {percent(found.covered_random, 0)}.",
        ),
        (
            "Expected",
            f"Change of the loss (NLL) against random samples: {_range(found.far_change, sign=True)} on far text, "
            f"{_range(found.rest_change, sign=True)} on the rest, {_range(found.use_change, sign=True)} over the "
            f"use. Grounds: {found.grounds}.",
        ),
        ("Verdict", f"{VERDICTS[found.verdict]}. {_sentences(found.reasons)} {_ADVICE[found.verdict]}"),
    ]


def _sentences(reasons: Sequence[str]) -> str:
    joined = "; ".join(reasons)
    return f"{joined[:1].upper()}{joined[1:]}."


def _deficit_sentence(found: Forecast) -> str:
    deficit = found.deficit
    if deficit.far is None:
        return "Not measured: no token of a response depends on far text."
    near = "no near text to compare with" if deficit.near is None else f"near text: by {fixed(deficit.near.value)}"
    clear = deficit.beyond is not None and deficit.beyond.low > LEAST_DEFICIT
    meaning = (
        "That is the deficit of models.long. Another model is trained, whose deficit is not known."
        if found.trains_other
        else "The model answers better from the best far segment alone than from the whole text."
        if clear
        else "No clear deficit: the model may use far text as well as near text."
    )
    where = f"{plural(deficit.far_tokens, 'token')} of {plural(deficit.far_samples, 'sample')}"
    return (
        f"On {where}, the best far segment makes a token likelier than the whole text does, by {_range(deficit.far)}; "
        f"{near}. {meaning}"
    )


def _counts_sentence(found: Forecast) -> str:
    low, high = (round(end) for end in (found.random_far.low, found.random_far.high))
    amount = plural(found.amount, found.unit.removesuffix("s"))
    drawn = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    times = "" if found.enrichment is None else f", {fixed(found.enrichment, 1)} times as many"
    return (
        f"In {amount}, random ones hold {drawn}; this choice of {plural(found.chosen, 'sample')} holds "
        f"{found.chosen_far:,}{times}."
    )


def short_lines(found: Forecast) -> list[str]:
    """Return the forecast in two sentences."""
    return [
        f"Forecast: {VERDICTS[found.verdict]}. {_sentences(found.reasons)}",
        f"About {percent(found.far.value, 0)} of the samples need far text, and {percent(found.use, 0)} of the use. "
        f"Expected change of the loss against random samples, over the use: {_range(found.use_change, sign=True)} "
        "NLL.",
    ]


def forecast_record(found: Forecast) -> dict[str, Any]:
    """Return the forecast for programs: its fields; what is infinite is null."""
    return _finite(asdict(found))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def forecast_text(told: Estimated) -> str:
    """Return a forecast of a change with its interval."""
    return _range(told, sign=True)
