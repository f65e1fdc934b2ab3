"""Put what the benchmarks measured into README and docs, so that no figure is copied by hand.

    .venv/bin/python benchmarks/figures.py --measured build/benchmarks

The newest JSON of each benchmark in --measured is shortened into docs/evidence/figures. From these files every table
between `<!-- figures: NAME -->` and `<!-- end of figures -->` in README and docs is written. With --check, pages that
are not current are listed, and nothing is written.

A table is a function of the shortened files that its decorator names. NAME is that of the function, or the decorator's.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import Spread, estimate_text, say
from common_ranking import FIGURES, SHARES
from gpu_training import PREFIX
from kinds import KINDS as SYNTHETIC_KINDS
from kinds import groups
from real_selection import ALL
from real_text_kinds import KINDS as REAL_KINDS
from response_length import CANDIDATES, RECALL

from gateau_dagster.config.selection import CLASSES, DEPENDENCIES

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "evidence" / "figures"
ROBUST = "gateau[robust]"
AUROC = FIGURES[0]
PRESETS = ("robust", "official", "paper")
README_SIZE = "1024/256"
EFFECT_BASES = (10000, 50000, 1000000)  # rotary bases of the study's other models
BASE_RATES = ("base_rates", *(f"base_rates_{name}" for name in ("made", "coding", "synthesis", "long")))
TOGETHER = "all models"
WITHIN_REACH = "within reach"
_SYNTHETIC_GROUPS = ("base", "controlled", "harder", "breaking", WITHIN_REACH)
_LEAST_CLUSTERS = 5
_SURE = 0.995  # kinds that the default ranks at least as well are left out of a long table
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n\n).*?(<!-- end of figures -->)", re.DOTALL)
Json = Mapping[str, Any]
Row = Sequence[object]


# What is kept of the files.


def shortened(found: Any) -> Any:
    """Return figures with each estimate as a list of its value and ends, and six digits of each number."""
    match found:
        case {"value": _, "low": _, "high": _, **rest} if not rest:
            return [shortened(found[name]) for name in ("value", "low", "high")]
        case Mapping():
            return {name: shortened(each) for name, each in found.items()}
        case list():
            return [shortened(each) for each in found]
        case float():
            return round(found, 6)
    return found


def _results(measured: Json, kept: Callable[[Any], Any]) -> dict[str, Any]:
    """Return settings and machine of a file, and what is kept of each of its results."""
    results = {name: shortened(kept(result)) for name, result in measured["results"].items()}
    return {"settings": measured["settings"], "machine": measured["machine"], "results": results}


def _by_method(methods: Json, groups: Iterable[str]) -> dict[str, Any]:
    """Return AUROC by method and task; precision of the groups only."""
    return {
        label: {
            task: {name: estimates[name] for name in (FIGURES if task in groups else FIGURES[:1])}
            for task, estimates in tasks.items()
        }
        for label, tasks in methods.items()
    }


def real_text(measured: Json) -> dict[str, Any]:
    """Shorten what real_selection.py wrote."""

    def kept(result: Json) -> dict[str, Any]:
        some = result["answerable"]
        return {
            **{name: result[name] for name in ("samples", "probability_of_response")},
            "methods": _by_method(result["figures"], [ALL]),
            "difference": result["difference"],
            "answerable": {"samples": some["samples"], "methods": _by_method(some["figures"], [ALL])},
        }

    found = _results(measured, kept)
    for setting in found["results"].keys() - _few(found["results"]).keys():  # of these, pages show no kinds by method
        for each in (found["results"][setting], found["results"][setting]["answerable"]):
            each["methods"] = {label: {ALL: tasks[ALL]} for label, tasks in each["methods"].items()}
    return found


def real_templates(measured: Json) -> dict[str, Any]:
    """Shorten what real_selection.py wrote with two templates: keep AUROC of the default over all kinds."""
    found = _results(
        measured, lambda result: {"samples": result["samples"], AUROC: result["figures"][ROBUST][ALL][AUROC]}
    )
    return found | {"between_templates": shortened(measured["between_templates"])}


def response_length(measured: Json) -> dict[str, Any]:
    """Shorten what response_length.py wrote."""
    kept = ("settings", "machine", "samples", "far", "figures", "difference", "evidence")
    return shortened({name: measured[name] for name in kept})


def real_dependencies(measured: Json) -> dict[str, Any]:
    """Shorten what real_selection.py wrote: keep how often dependency and evidence are right."""
    return _results(measured, lambda result: result["dependency"])


def qmsum(measured: Json) -> dict[str, Any]:
    """Shorten what qmsum_selection.py wrote: keep what its tables show."""
    names = ("parts", "samples", "meetings", "response_tokens", "dependency", "auroc", "evidence", "mixed")

    def kept(result: Json) -> dict[str, Any]:
        difference = {label: tasks[ALL] for label, tasks in result["difference"].items()}
        return {name: result[name] for name in names if name in result} | {"difference": difference}

    return _results(measured, kept)


def gpu(measured: Json) -> dict[str, Any]:
    """Shorten what gpu.py wrote: keep what its tables show."""
    parts, peak = measured["parts"], measured["parts"]["matrix_product_peak"]["flops_per_second"]
    steps = {name.removeprefix(PREFIX): part for name, part in parts.items() if PREFIX in name}
    return {
        "machine": parts["machine"],
        "peak": round(peak / 1e12),
        "parity": {dtype: max(found.values()) for dtype, found in parts["parity"].items() if dtype != "part_seconds"},
        "straightforward": parts["straightforward"].get("ratio"),
        "scoring": {n: _on_gpu(part, peak) for n, part in parts.items() if "flops" in part and PREFIX not in n},
        "training": {name: _on_gpu(part, peak) for name, part in steps.items() if "skipped" not in part},
    }


def _on_gpu(part: Json, peak: float) -> dict[str, Any]:
    """Return a part's figures, in units that its table shows; those of a part without any, by its reason."""
    if "flops" not in part:
        reasons = ("out_of_memory", "left_out", "error")
        return {"reason": next(name.replace("_", " ") for name in reasons if name in part)}
    seconds, again = part["best_seconds"], part["flops"] + part.get("recomputed_flops", 0.0)
    found = {"seconds": round(seconds, 3), "tokens": part["tokens"], "tflops": round(part["flops"] / seconds / 1e12)}
    found |= {"share": round(part["flops"] / seconds / peak, 3), "again": round(again / seconds / peak, 3)}
    found |= {name: part[name] for name in ("trained_tokens", "documents") if name in part}
    sizes = {"gib": "total_peak_bytes", "planned_gib": "planned_bytes", "host_gib": "host_bytes"}
    return found | {name: round(part[of] / 2**30, 1) for name, of in sizes.items() if part.get(of) is not None}


def synthetic(measured: Json) -> dict[str, Any]:
    """Shorten what selection.py wrote."""
    by_seed = measured["probability_of_response"]
    names = ("settings", "machine", "samples", "kinds", "drawn_blindly", "better_than_reference")
    return shortened({name: measured[name] for name in names} | {
        "probability_of_response": {kind: fmean(seed[kind] for seed in by_seed) for kind in by_seed[0]},
        "methods": _by_method(measured["methods"], groups()),
    })  # fmt: skip


def effect(measured: Json) -> dict[str, Any]:
    """Shorten what effect.py wrote: keep the means, and the recalls of each run."""
    runs = [
        [run["seed"], run["arm"], run["pool"], *(round(run["recall"][name], 4) for name in ("far", "near"))]
        for run in measured["runs"]
    ]
    return {**measured, "runs": runs}


# A benchmark's file: the name of the shortened one, and how it is shortened.
SOURCES: dict[str, tuple[str, Callable[[Json], Json]]] = {
    "real_report.json": ("real_text", real_text),
    **{f"real_templates_{half}.json": (f"real_templates_{half}", real_templates) for half in ("choose", "report")},
    "real_dependencies.json": ("real_dependencies", real_dependencies),
    **{f"real_long_{name}.json": (f"real_long_{name}", real_text) for name in ("SmolLM2", "Gemma-3")},
    **{f"response_length_{half}.json": (f"response_length_{half}", response_length) for half in ("choose", "report")},
    "qmsum_report.json": ("qmsum", qmsum),
    **{f"{name}.json": (name, qmsum) for name in ("qmsum_choose", "qmsum_gemma3")},
    **{f"{name}.json": (name, shortened) for name in BASE_RATES},
    "selection.json": ("synthetic", synthetic),
    **{f"{name}.json": (name, dict) for name in ("scoring", "context_length", "training", "daily")},
    **{f"experiment_{size}.json": (f"experiment_{size}", dict) for size in ("cpu", "cpu_auto", "gpu")},
    "gpu.json": ("gpu", gpu),
    "effect.json": ("effect", effect),
    **{f"effect_{base}.json": (f"effect_{base}", effect) for base in EFFECT_BASES},
}


def keep(folder: Path, into: Path) -> list[str]:
    """Shorten the benchmarks' files of `folder` into `into`, and return the names of those that exist."""
    names = [name for name in SOURCES if (folder / name).is_file()]
    into.mkdir(parents=True, exist_ok=True)
    for name in names:
        kept, shorten = SOURCES[name]
        text = json.dumps(shorten(json.loads((folder / name).read_text())), indent=1)
        # A list of figures is one line.
        text = re.sub(r"\[\s*([^\[\]{}]*?)\s*\]", lambda values: f"[{' '.join(values[1].split())}]", text)
        (into / f"{kept}.json").write_text(text + "\n")
    return names


# The tables.

TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {}
"""A table's name: the files that it is made of, and its function."""
Maker = Callable[..., str]


def table_of(*files: str, name: str = "", joined: bool = False, **options: Any) -> Callable[[Maker], Maker]:
    """Return a decorator for the function of a table: one argument per file, and the options.

    joined: the files have results of other models or settings, and the function takes them as those of one file.
    """

    def add(make: Maker) -> Maker:
        def made(*found: Json) -> str:
            if joined:
                found = ({"results": {name: each for one in found for name, each in one["results"].items()}},)
            return make(*found, **options)

        TABLES[name or make.__name__] = (files, made)
        return make

    return add


def _table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def _auroc(methods: Json, label: str, task: str, digits: int = 3) -> str:
    """Return a method's AUROC of a task, empty where the task has samples of one label only."""
    return estimate_text(methods[label][task][AUROC], digits) if task in methods[label] else ""


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _percent(triple: Sequence[float]) -> str:
    value, low, high = (f"{100 * number:.0f}" for number in triple)
    return f"{value} % ({low}-{high})"


def _to(triple: Sequence[float | None], digits: int = 3) -> str:
    return estimate_text(triple, digits, " to ")


def _spread(measured: Json, digits: int = 2) -> str:
    return Spread(**measured).show(digits)


def _method(label: str) -> str:
    """Return a method's label as text: `gateau[robust]` is `gateau` with the preset `robust`."""
    method, _, preset = label.rstrip("]").partition("[")
    if method == "trial":
        return f"candidate `{preset}`"
    return f"`{method}`, `{preset}`" if preset else f"`{method}`"


def _ranked(rows: Mapping[str, Sequence[str]], order: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield rows, best first; methods with the same cells are one row."""
    same: dict[tuple[str, ...], list[str]] = {}
    for label in sorted(rows, key=lambda label: -order[label]):
        same.setdefault(tuple(rows[label]), []).append(_method(label))
    for cells, names in same.items():
        yield ["; ".join(names), *cells]


def _ranked_table(columns: Mapping[str, Mapping[str, Sequence[float] | None]]) -> str:
    """Return the estimates of each method that all columns have, the highest sum first; an empty cell for None."""
    first, *others = columns.values()
    labels = [label for label in first if all(label in each for each in others)]
    cells = {label: [column[label] for column in columns.values()] for label in labels}
    rows = {label: ["" if each is None else estimate_text(each) for each in of] for label, of in cells.items()}
    order = {label: sum(each[0] for each in of if each) for label, of in cells.items()}
    return _table(["method", *columns], _ranked(rows, order))


def _setting(setting: str) -> tuple[str, str, str]:
    """Return model, tokens and window of a setting's name; the name alone where it is of all sizes."""
    model, _, size = setting.rpartition(" ")
    if "/" not in size:
        return setting, "", ""
    tokens, window = (f"{int(number):,}" for number in size.split("/"))
    return model, tokens, window


def _parts(real: Json, part: str = "all") -> dict[str, Json]:
    """Return the methods' figures by setting: of all samples, or of `answerable` ones."""
    results = real["results"].items()
    return {setting: (result if part == "all" else result[part])["methods"] for setting, result in results}


def _few(by_setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that fit a table: of several sizes those of all models."""
    if f"{TOGETHER}, all sizes" not in by_setting:
        return dict(by_setting)
    return {setting: found for setting, found in by_setting.items() if setting.startswith(TOGETHER)}


def _of_models(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of single models."""
    return {setting: result for setting, result in results.items() if not setting.startswith(TOGETHER)}


@table_of("real_templates_choose", "real_templates_report")
def templates(*halves: Json) -> str:
    """Return AUROC of the default by template and half of the questions, and the difference."""
    rows = []
    for measured in halves:
        for other, change in measured["between_templates"].items():
            pair = [measured["results"][name] for name in (other.partition(", ")[0], other)]
            half, values = measured["settings"]["fold"], [estimate_text(each[AUROC]) for each in pair]
            rows.append([f"`{half}`", pair[0]["samples"], *values, _to(change)])
    return _table(["half", "samples", "`gateau`", "`chat`", "`chat` minus `gateau`"], rows)


@table_of("real_text", "synthetic")
def readme(real: Json, language: Json) -> str:
    """Return AUROC of the presets on real text of README_SIZE and on the synthetic language."""
    rows = []
    for setting, result in _of_models(real["results"]).items():
        if setting.endswith(f" {README_SIZE}"):
            model, tokens, window = _setting(setting)
            rows.append([f"Natural Questions, {model}, {tokens} tokens, window {window}", result["methods"], ALL])
            methods = result["answerable"]["methods"]
            rows.append(["the same, without answers that the model does not know", methods, ALL])
    rows.append(["synthetic language, three fresh pairs", language["methods"], WITHIN_REACH])
    cells = [
        [name, *(estimate_text(methods[f"gateau[{preset}]"][task][AUROC], between="–") for preset in PRESETS)]
        for name, methods, task in rows
    ]
    return _table(["data and model", "`robust` (default)", "`official`", "`paper`"], cells)


@table_of("real_text")
def presets_real(real: Json) -> str:
    """Return AUROC of the presets in all settings, and of the default where theta_B can answer."""
    rows, known = [], _parts(real, "answerable")
    for setting, methods in _parts(real).items():
        model, tokens, window = _setting(setting)
        values = [_auroc(methods, f"gateau[{preset}]", ALL) for preset in PRESETS]
        rows.append([model, f"{tokens} / {window}" if tokens else "", *values, _auroc(known[setting], ROBUST, ALL)])
    names = [f"`{preset}`" for preset in PRESETS]
    return _table(["theta_B", "context / window", *names, "`robust`, without answers that theta_B does not know"], rows)


@table_of("synthetic")
def presets_synthetic(language: Json) -> str:
    """Return AUROC of the presets on the synthetic language."""
    shown = {"base": "the demo's kinds", "harder": "harder kinds", WITHIN_REACH: "all kinds within the pair's reach"}
    methods = language["methods"]
    rows = [[f"`{preset}`", *(_auroc(methods, f"gateau[{preset}]", group) for group in shown)] for preset in PRESETS]
    return _table(["preset", *shown.values()], rows)


_LONG = ("real_long_SmolLM2", "real_long_Gemma-3")


@table_of("real_text")
@table_of(*_LONG, name="real_long_samples", joined=True)
def real_samples(real: Json) -> str:
    """Return the number of samples in each setting."""
    results = real["results"].items()
    rows = [[setting, result["samples"], result["answerable"]["samples"]] for setting, result in results]
    return _table(["setting", "samples", "without far samples that theta_B cannot answer"], rows)


@table_of("real_text")
@table_of("real_text", name="real_answerable", part="answerable")
@table_of(*_LONG, name="real_long", joined=True)
@table_of(*_LONG, name="real_long_answerable", joined=True, part="answerable")
def real_methods(real: Json, part: str = "all") -> str:
    """Return AUROC of every method over all kinds."""
    return _ranked_table({
        setting: {label: tasks[ALL][AUROC] if ALL in tasks else None for label, tasks in methods.items()}
        for setting, methods in _few(_parts(real, part)).items()
    })  # fmt: skip


@table_of("real_text")
def real_differences(real: Json) -> str:
    """Return AUROC of every method over all kinds minus that of the default."""
    differences = _few({setting: result["difference"] for setting, result in real["results"].items()})
    return _ranked_table({
        setting: {label: each for label, each in difference.items() if label != ROBUST}
        for setting, difference in differences.items()
    })  # fmt: skip


@table_of("real_text")
def real_precision(real: Json) -> str:
    """Return precision of the default over all kinds."""
    settings = _few(_parts(real))
    rows = [
        [f"best {_whole_percent(share)}"] + [estimate_text(methods[ROBUST][ALL][name]) for methods in settings.values()]
        for share, name in zip(SHARES, FIGURES[1:], strict=True)
    ]
    return _table(["precision of `robust`", *settings], rows)


@table_of("real_text")
@table_of("real_text", name="real_kinds_answerable", part="answerable")
def real_kinds(real: Json, part: str = "all") -> str:
    """Return AUROC of the default by kind."""
    settings = _few(_parts(real, part))
    known = [real["results"][setting]["probability_of_response"] for setting in settings]
    rows = [
        [
            f"`{kind}`: {REAL_KINDS[kind].why}",
            "yes" if REAL_KINDS[kind].needs_far else "no",
            *(_auroc(methods, ROBUST, kind, 2) for methods in settings.values()),
            ", ".join(f"{probability[kind]:.2f}" for probability in known),
        ]
        for kind in known[0]
    ]
    return _table(["kind", "needs far", *settings, "p, in this order"], rows)


@table_of("real_text")
def real_every_kind(real: Json) -> str:
    """Return AUROC by kind and method, a table for each setting."""
    tables = []
    for setting, methods in _few(_parts(real)).items():
        best = sorted(methods, key=lambda label: -methods[label][ALL][AUROC][0])
        kinds = (ALL, *real["results"][setting]["probability_of_response"])
        rows = [[kind, *(_auroc(methods, label, kind, 2) for label in best)] for kind in kinds]
        tables.append(f"## {setting}\n\n" + _table(["kind", *map(_method, best)], rows))
    return "\n".join(tables)


@table_of("real_dependencies")
def dependency_counts(real: Json) -> str:
    """Return the samples of each model by the dependency of their passages and the column's, over all its sizes."""
    by_model, rows = dict[str, list[Json]](), list[Row]()
    for setting, result in _of_models(real["results"]).items():
        by_model.setdefault(_setting(setting)[0], []).append(result["counts"])
    for model, counts in by_model.items():
        for wanted in DEPENDENCIES:
            found = {name: sum(each[wanted][name] for each in counts) for name in DEPENDENCIES}
            right = found[wanted] / sum(found.values())
            rows.append([model, f"`{wanted}`", *found.values(), _whole_percent(right)])
    return _table(["model", "by its passages", *(f"`{name}`" for name in DEPENDENCIES), "right"], rows)


@table_of("real_dependencies")
def evidence_hits(real: Json) -> str:
    """Return the share of passages with evidence, and the share of evidence on a passage, by setting."""
    rows = [
        [setting, *(f"{100 * some / every:.1f} % of {every}" for some, every in (result["passages"], result["spans"]))]
        for setting, result in _of_models(real["results"]).items()
    ]
    return _table(["setting", "passages with evidence", "evidence on a passage"], rows)


_OF_CHOICE = {
    "spearman": "Spearman of score and length",
    "far tokens": "share of the far tokens that is chosen",
    "far samples": "far samples among the chosen",
    "length": "length of the chosen to that of far samples",
}
"""Names of figures of response_length.py that are no AUROC."""


@table_of("response_length_choose", name="length_choose_auroc")
@table_of("response_length_report", name="length_report_auroc")
@table_of("response_length_choose", name="length_choose_choice", of_choice=True)
@table_of("response_length_report", name="length_report_choice", of_choice=True)
@table_of("response_length_report", name="length_report_difference", part="difference")
def length_figures(found: Json, part: str = "figures", *, of_choice: bool = False) -> str:
    """Return AUROC of every candidate, or the figures of its choice; or the differences of these to today's default."""
    names = [name for name in found[part]["robust"] if (name in _OF_CHOICE) == of_choice]
    rows = [
        [f"`{candidate}`", *(estimate_text(figures[name], 2 if of_choice else 3) for name in names)]
        for candidate, figures in found[part].items()
        if part == "figures" or candidate != "robust"
    ]
    return _table(["candidate", *(_OF_CHOICE.get(name, name) for name in names)], rows)


@table_of("response_length_report", name="length_report_evidence")
def length_evidence(found: Json) -> str:
    """Return how well the segments' gains find those with evidence."""
    names = [name for name in next(iter(found["evidence"].values())) if name != "samples"]
    rows = [
        [place, int(figures["samples"]), *(f"{figures[name]:.2f}" for name in names)]
        for place, figures in found["evidence"].items()
    ]
    words = {"first_": "one of the first ", "recall_": "recall at ", "auroc": "AUROC of segments"}
    heads = [re.sub("|".join(words), lambda word: words[word[0]], name) for name in names]
    return _table(["passages", "samples", *heads], rows)


# The candidates of response_length.py that the table shows beside the methods.
_QMSUM_SCORES = (
    *("robust", "all_tokens", "all_tokens_sum", "information", "information_sum", "information_sqrt"),
    *("clear_0.5", "clear_0.5_sqrt"),
)
_QMSUM = ("qmsum", "qmsum_gemma3")
"""Runs of other models, each with its own number of samples."""


@table_of(*_QMSUM, joined=True)
def qmsum_samples(found: Json) -> str:
    """Return samples, lengths of responses and classes of dependency of each kind, by model."""
    rows = [
        [model, f"`{kind}`", of["samples"][kind], f"{of['response_tokens'][kind]:.0f}", *counts.values()]
        for model, of in found["results"].items()
        for kind, counts in of["dependency"].items()
    ]
    return _table(["model", "kind", "samples", "response tokens", *(f"`{name}`" for name in CLASSES)], rows)


@table_of(*_QMSUM, joined=True)
def qmsum_methods(found: Json) -> str:
    """Return AUROC by score and task, for each model one after another, best first."""
    (first, *_), rows = found["results"].values(), list[Row]()
    tasks = list(first["auroc"]["robust"])
    for model, result in found["results"].items():
        shown = {
            label: [model, *(estimate_text(of[task]) for task in tasks), estimate_text(result["difference"][label])]
            for label, of in result["auroc"].items()
            if "[" in label or label in _QMSUM_SCORES or label not in CANDIDATES
        }
        order = {label: result["auroc"][label][tasks[0]][0] + result["auroc"][label][ALL][0] for label in shown}
        rows += _ranked(shown, order)
    return _table(["score", "model", *tasks, f"{ALL}, minus `robust`"], rows)


@table_of(*_QMSUM, joined=True)
@table_of("qmsum_choose", name="qmsum_choose")
def qmsum_evidence(found: Json) -> str:
    """Return how often evidence is in the marked turns, by model and kind."""
    orders = {"listed": "as listed", "by_gain": "by gain"}
    names = {f"{name}_{count}": f"first {count}, {shown}" for name, shown in orders.items() for count in RECALL}
    rows = [
        [
            *(model, kind if " " in kind else f"`{kind}`", of["samples"]),
            *(_percent(of[name]) for name in ("evidence", *names, "by_chance")),
            *(estimate_text(of[name], 2) for name in ("segments_auroc", "same_side")),
        ]
        for model, result in found["results"].items()
        for kind, of in result["evidence"].items()
    ]
    aurocs = ("AUROC of segments", "on the same side")
    return _table(["model", "kind", "samples", "has evidence", *names.values(), "by chance", *aurocs], rows)


@table_of(*_QMSUM, joined=True)
def qmsum_mixed(found: Json) -> str:
    """Return which far samples are chosen of a pool of meetings and short answers, by model and candidate."""
    rows = list[Row]()
    for model, result in found["results"].items():
        pool = result.get("mixed", {"candidates": {}})
        for label in filter(_QMSUM_SCORES.__contains__, pool["candidates"]):
            of = pool["candidates"][label]
            shares = (f"{_percent(of[group])} of {far}" for group, far in pool["far"].items())
            rows.append([model, f"`{label}`", estimate_text(of["auroc"]), *shares])
    return _table(["model", "candidate", "AUROC", "far meetings chosen", "far short answers chosen"], rows)


@table_of(*BASE_RATES)
def base_rates(*found: Json) -> str:
    """Return the share of samples that depend on far text, by data set and size, of each file in turn."""
    rows = [
        [name, size, of["samples"], f"{of['context_tokens']:,.0f}", _percent(of["seen"]), _percent(of["corrected"])]
        for each in found
        for name, sizes in each["results"].items()
        for size, of in sizes.items()
    ]
    return _table(["data set", "size", "samples", "median context tokens", "far, seen", "far, corrected"], rows)


@table_of("synthetic")
def synthetic_methods(language: Json) -> str:
    """Return AUROC of every method by group of kinds, and its precision over all kinds within reach."""
    methods = language["methods"]
    rows = {
        label: [*(_auroc(methods, label, group) for group in _SYNTHETIC_GROUPS),
                f"{tasks[WITHIN_REACH][FIGURES[-1]][0]:.3f}"]
        for label, tasks in methods.items()
    }  # fmt: skip
    order = {label: tasks[WITHIN_REACH][AUROC][0] for label, tasks in methods.items()}
    blindly = ["drawn blindly", *["0.500"] * len(_SYNTHETIC_GROUPS), f"{language['drawn_blindly'][WITHIN_REACH]:.3f}"]
    header = ["method", *_SYNTHETIC_GROUPS, f"precision in the best {_whole_percent(SHARES[-1])}"]
    return _table(header, [*_ranked(rows, order), blindly])


@table_of("synthetic")
def synthetic_kinds(language: Json) -> str:
    """Return AUROC of four methods by kind, of kinds that are not sure under the default."""
    shown = (ROBUST, "gateau[paper]", "hmg[official]", "perplexity")
    methods, rows = language["methods"], []
    for task, estimates in methods[ROBUST].items():
        if task in groups() or estimates[AUROC][0] >= _SURE:
            continue
        kind, why = language["kinds"].get(task), SYNTHETIC_KINDS.get(task)
        about = ["", ""]
        if kind:
            needs = "yes" if kind["needs_far_context"] else "no"
            about = [needs, f"{language['probability_of_response'][task]:.2f}"]
        aurocs = [_auroc(methods, label, task) for label in shown]
        rows.append([f"`{task}`" + (f": {why.why}" if why else ""), *about, *aurocs])
    return _table(["kind", "needs far", "theta_B's probability", *map(_method, shown)], rows)


@table_of("synthetic")
def synthetic_better(language: Json) -> str:
    """Return where another method is better than the default by more than the interval."""
    rows = [
        [
            *(f"`{row['task']}`", _method(row["method"])),
            *(_auroc(language["methods"], label, row["task"]) for label in (row["method"], ROBUST)),
            estimate_text(row["difference"]),
        ]
        for row in language["better_than_reference"]
    ]
    return _table(["group or kind", "method", "its AUROC", "`robust`", "difference"], rows)


@table_of("scoring", "context_length", "training")
def speed(scoring: Json, context_length: Json, training: Json) -> str:
    """Return the figures in short."""
    ratios, faster = context_length["conclusions"], "times faster"
    rows = [
        [f"scoring, responses of {case['response_tokens']} tokens", f"{_spread(case['ratio']['eager'])} {faster}"]
        for case in scoring["cases"]
    ] + [
        ["peak memory at 16,384 tokens, of that of `output_attentions=True`", f"{100 * ratios['memory_share']:.2f} %"],
        ["time at 32,768 tokens, of the extrapolation by FLOPs from 8,192", f"{ratios['time_ratio_joint']:.2f}"],
        ["training in packed rows against padded batches", f"{_spread(training['ratio']['padded'])} {faster}"],
    ]
    return _table(["", "measured"], rows)


@table_of("daily")
def daily(daily: Json) -> str:
    """Return the times of the commands of a working day."""
    whole = {"`import polars, yaml`": daily["base"]} | {
        f"`gateau {name}`": one for name, one in daily["commands"].items()
    }
    names = [name for name in ("wall", "cpu", "of_base", "faster") if name in daily["commands"]["run"]]
    rows = [[text, *(_spread(one[name]) if name in one else "" for name in names)] for text, one in whole.items()]
    headers = {
        "wall": "seconds",
        "cpu": "CPU seconds",
        "of_base": "times the first row's CPU",
        "faster": "times less CPU than with them",
    }
    return _table(["process", *(headers[name] for name in names)], rows)


@table_of("scoring", name="scoring")
def scoring_ratios(scoring: Json) -> str:
    """Return how many times faster the pipeline scores, and the seconds of each part of both sides."""
    cases = scoring["cases"]
    ways = {"eager": "all passes eager", "sdpa": "eager only where matrices are read"}
    rows = [[f"times faster: {text}", *(_spread(case["ratio"][way]) for case in cases)] for way, text in ways.items()]
    rows += [
        [f"{part}, s", *(Spread.of(case["seconds"][part]).show() for case in cases)] for part in cases[0]["seconds"]
    ]
    worst = [f"{max(case['largest_difference'].values()):.1e}" for case in cases]
    header = ["", *(f"responses of {case['response_tokens']} tokens" for case in cases)]
    return _table(header, [*rows, ["largest relative difference of a figure", *worst]])


@table_of("scoring")
def screened_cost(scoring: Json) -> str:
    """Return the FLOPs of theta_B's tables, of those of one pass over each prompt."""
    rows = [
        [
            f"{each['context_tokens']}, responses of {each['response_tokens']}",
            *(f"{each[name]:.2f}" for name in ("all", "screened")),
            _whole_percent(each["read"]),
        ]
        for each in scoring["flops"]
    ]
    return _table(["tokens of contexts", "`all`", "`screened`", "segments read"], rows)


@table_of("context_length", name="context_length")
def context_lengths(context_length: Json) -> str:
    """Return seconds and peak memory of each pass by length, and the figures that have a target."""
    lengths = {int(n): {each["name"]: each for each in passes} for n, passes in context_length["lengths"].items()}
    names = list(dict.fromkeys(name for passes in lengths.values() for name in passes))

    def cells(measured: Json | None) -> list[str]:
        both = [min(measured["seconds"]), measured["peak_bytes"] / 2**20] if measured else []
        return [f"{both[0]:.2f}", f"{both[1]:.0f}"] if both else ["", ""]

    rows = [[f"{n:,}", *(cell for name in names for cell in cells(of.get(name)))] for n, of in lengths.items()]
    targets = [
        ("peak at 16,384 tokens, of that of `output_attentions=True`", "memory_share", "at most 0.05"),
        ("time at 32,768 tokens, of the extrapolation from 8,192: prompt", "time_ratio_joint", "at most 1.2"),
        ("the same: segment prompts", "time_ratio_segments", "at most 1.2"),
    ]
    conclusions = [[text, f"{context_length['conclusions'][name]:.3g}", target] for text, name, target in targets]
    header = ["tokens", *(head for name in names for head in (f"{name}, s", "peak MiB"))]
    return _table(header, rows) + "\n" + _table(["figure", "measured", "target"], conclusions)


@table_of("training", name="training")
def training_sides(training: Json) -> str:
    """Return tokens per second of packed and padded training, and what explains their ratio."""
    rows = [
        [side, _spread(measured, 0), "" if side == "packed" else _spread(training["ratio"][side])]
        for side, measured in training["useful_tokens_per_second"].items()
    ]
    peaks, levers = training["loss_peak_bytes"], training["levers"]
    useful, tokens = training["useful_tokens"] / training["padded_tokens"], f"a pass over {levers['tokens']:,} tokens"
    more = [
        ["useful tokens, of those of the padded batches", _whole_percent(useful)],
        ["memory of the loss in chunks, of that of full logits", f"{100 * peaks['chunked'] / peaks['plain']:.1f} %"],
        [f"peak memory of {tokens}, without levers / with both", _spread(levers["memory_ratio"])],
        [f"time of {tokens}, with both levers / without", _spread(levers["time_ratio"])],
    ]
    drift = [[name, f"{100 * value:.2f} %"] for name, value in training["drift"].items()]
    return "\n".join([
        _table(["side", "useful tokens/s", "packed is faster by"], rows),
        _table(["figure", "measured"], more),
        _table(["lever", "distance of bfloat16's gradients from float32's"], drift),
    ])  # fmt: skip


_ARMS = {
    "mix": "`mix`", "mix_tau": "`mix`, `tau: 1`", "mix_trim": "`mix`, `trim`", "oracle": "oracle", "top": "`top`",
    "clean": "`clean`", "auto": "`auto`", "random_again": "`random`, another draw",
}  # fmt: skip


def _cell(found: Json, arm: str, pool: float) -> Json | None:
    return next((row for row in found["cells"] if (row["arm"], row["pool"]) == (arm, pool)), None)


def _cells(found: Json, arm: str) -> list[Json]:
    return [cell for pool in _pools(found) if (cell := _cell(found, arm, pool))]


def _pools(found: Json) -> list[float]:
    return sorted({row["pool"] for row in found["cells"]})


def _by_pool(found: Json, arms: Mapping[str, str], text: Callable[[Json], str]) -> Iterator[list[str]]:
    """Yield a row for each arm that was run: its name, and the text of its cell of each pool."""
    for arm, name in arms.items():
        cells = [_cell(found, arm, pool) for pool in _pools(found)]
        if any(cells):
            seeds = max(cell["seeds"] for cell in cells if cell)
            yield [name.format(seeds=seeds), *("" if cell is None else text(cell) for cell in cells)]


def _gain(estimate: Json, digits: int = 3) -> str:
    return estimate_text([estimate[name] for name in ("value", "low", "high")], digits, " to ", sign="+")


@table_of("effect", name="effect_far", recall="far")
@table_of("effect", name="effect_near", recall="near")
def effect_gains(found: Json, recall: str) -> str:
    """Return each arm's gain over random in a recall, by pool, and the recall of random."""
    random, arms = _cells(found, "random"), {arm: f"{name} ({{seeds}} seeds)" for arm, name in _ARMS.items()}
    rows: list[Row] = [["`random`: recall", *(f"{row[recall]['value']:.3f}" for row in random)]]
    rows += _by_pool(found, arms, lambda cell: _gain(cell[f"{recall}_gain"]))
    heads = [f"{_whole_percent(row['pool'])}: {row['bits']:.2f} bits" for row in random]
    return _table([f"{recall} recall minus that of `random`, pool of", *heads], rows)


@table_of("effect")
def readme_effect(found: Json) -> str:
    """Return the gain of `mix` over random in far recall, by pool."""
    gains = [_gain(cell["far_gain"], 2) for cell in _cells(found, "mix")]
    return _table(["far text in the pool", *map(_whole_percent, _pools(found))], [["gain (95 %)", *gains]])


@table_of("effect")
def effect_forecast(found: Json) -> str:
    """Return both forecasts of every cell beside the measured gain, and how far they are from it."""
    laws, held = found["forecast"]["cells"], found["held"]
    rows, apart = list[Row](), {law: list[float]() for law in laws}
    for place, cell in enumerate(laws["tokens"]):
        row = _cell(found, cell["arm"], cell["pool"])
        line = [_ARMS[cell["arm"]], _whole_percent(cell["pool"]), _gain(row["far_gain"]) if row else "not measured"]
        for law in ("tokens", "samples"):
            line += [_gain(laws[law][place]), {True: "yes", False: "no", None: ""}[held[law][place]]]
            apart[law] += [abs(laws[law][place]["value"] - row["far_gain"]["value"])] if row else []
        rows.append(line)
    last = [f"{sum(apart[law]) / max(1, len(apart[law])):.3f}" for law in ("tokens", "samples")]
    rows.append(["mean distance to the measured gain", "", "", last[0], "", last[1], ""])
    return _table(["arm", "pool", "measured", "forecast", "holds it", "by the law named first", "holds it"], rows)


@table_of("effect")
def effect_choices(found: Json) -> str:
    """Return the table of the choices: far samples by label, far tokens, and samples that nothing predicts."""
    names = ("far", "far_tokens", "unpredictable")
    arms = {"random": "`random`", **_ARMS}
    rows = _by_pool(found, arms, lambda cell: " / ".join(f"{cell['choice'][of]:.0f}" for of in names))
    return _table(["far samples / far tokens / unpredictable samples", *map(_whole_percent, _pools(found))], rows)


@table_of("effect", *(f"effect_{base}" for base in EFFECT_BASES))
def effect_deficit(*files: Json) -> str:
    """Return the gain of mix in far recall by the far deficit of the model before training."""
    rows = []
    for found in sorted(files, key=lambda found: found["settings"]["theta"]):
        deficits = {each["seed"]: each["deficit"] for each in found["verdicts"]}.values()
        parts = [[each[name]["value"] for each in deficits if each[name]] for name in ("far", "near", "beyond")]
        means = [f"{fmean(part):.2f}" if part else "" for part in parts]
        gains = [_gain(cell["far_gain"]) for cell in _cells(found, "mix") if cell["pool"] in (0.05, 0.1)]
        base, recall = found["settings"]["theta"], found["untrained"]["far"]["value"]
        rows.append([f"{base:,.0f}", f"{recall:.3f}", *means, *gains])
    header = ["rotary base", "far recall before training", "far deficit", "near control", "far minus near"]
    return _table([*header, "gain of `mix`, pool of 5 %", "10 %"], rows)


@table_of("effect")
def effect_verdicts(found: Json) -> str:
    """Return the product's verdicts by pool, and the means of what they are made from."""
    rows = []
    for pool in _pools(found):
        some = [each for each in found["verdicts"] if each["pool"] == pool]
        far, mismatch = (fmean(each[name]["value"] for each in some) for name in ("far", "mismatch"))
        enrichment, supply = (fmean(each[name] for each in some) for name in ("enrichment", "supply"))
        numbers = (mismatch, enrichment, _enrichment_in_tokens(found, pool), supply)
        counts = Counter(each["verdict"] for each in some)
        words = ", ".join(f"`{word}` {count} of {len(some)}" for word, count in counts.most_common())
        rows.append([_whole_percent(pool), f"{100 * far:.1f} %", *(f"{number:.2f}" for number in numbers), words])
    header = ["pool", "far share, corrected", "mismatch, bits", "enrichment", "the same in tokens", "supply", "verdict"]
    return _table(header, rows)


def _enrichment_in_tokens(found: Json, pool: float) -> float:
    """Return the far tokens of the choice of mix, of those that as many samples drawn from the pool have on average."""
    if (cell := _cell(found, "mix", pool)) is None:
        return float("nan")
    per_sample = fmean(each["far_tokens"] / each["samples"] for each in found["pools"] if each["pool"] == pool)
    return cell["choice"]["far_tokens"] / (cell["choice"]["samples"] * per_sample)


@table_of("effect")
def effect_test(found: Json) -> str:
    """Return how often `dependency` is right about far text in the scored sets."""
    shares = {"samples that need far text: found": "far", "others: not taken for far": "others"}
    rows = []
    for name, label in shares.items():
        right, every = found["test"][label]
        rows.append([name, f"{100 * right / every:.1f} % of {every:,}"])
    missed = [f"`{kind}` {100 * shown:.0f} %" for kind, shown in found["test"]["worst"].items()]
    return _table(["", "measured"], [*rows, ["far kinds that are found least often", ", ".join(missed)]])


def effect_curve(found: Json) -> bytes:
    """Return the figure of gain against mismatch, an SVG document."""
    from gateau_dagster.plotting import FAR, INK, MUTED, PRESET_COLOURS, SELECTED, label, legend, new_figure, to_svg

    figure, axes = new_figure("Gain over random samples against the mismatch of use and pool", columns=2, height=4.2)
    shown = {"mix": (SELECTED, "o"), "mix_tau": ("#56a0c8", "s"), "oracle": (MUTED, "D"), "top": (FAR, "^"),
             "clean": (PRESET_COLOURS["paper"], "v")}  # fmt: skip
    names = {"mix": "mix", "mix_tau": "mix, tau 1", "oracle": "oracle classes", "top": "top", "clean": "clean"}
    for axis, recall in zip(axes, ("far", "near"), strict=True):
        axis.axhline(0, color=INK, linewidth=0.9)
        for law, cells in found["forecast"]["cells"].items() if recall == "far" else ():
            line = sorted((cell for cell in cells if cell["arm"] == "mix"), key=lambda cell: cell["bits"])
            bits, tested = [cell["bits"] for cell in line], law == "tokens"
            axis.plot(bits, [cell["value"] for cell in line], color=SELECTED if tested else MUTED, linewidth=1.2,
                      linestyle=(0, (4, 3) if tested else (1, 2)),
                      label="forecast for mix, 95 %" if tested else "the law named first")  # fmt: skip
            if tested:
                axis.fill_between(bits, [cell["low"] for cell in line], [cell["high"] for cell in line],
                                  color=SELECTED, alpha=0.12, linewidth=0)  # fmt: skip
        for place, (arm, (colour, marker)) in enumerate(shown.items()):
            cells = _cells(found, arm)
            x = [cell["bits"] + 0.028 * (place - 2) for cell in cells]
            gains = [cell[f"{recall}_gain"] for cell in cells]
            axis.plot(x, [gain["value"] for gain in gains], marker, color=colour, markersize=5.5, label=names[arm])
            for at, gain in zip(x, gains, strict=True):
                if gain["low"] is not None:  # of one seed
                    axis.vlines(at, gain["low"], gain["high"], color=colour, linewidth=1.3, alpha=0.6)
        label(axis, x="KL(use ‖ pool), bits; the use is half far text", y=f"{recall} recall minus that of random")
        above = axis.secondary_xaxis("top")
        places = [cell["bits"] for cell in _cells(found, "random")]
        above.set_xticks(places, [_whole_percent(pool) for pool in _pools(found)])
        above.tick_params(colors=MUTED, labelsize=8.5, length=3)
        above.set_xlabel("far samples in the pool", fontsize=9.5, color=MUTED)
    axes[0].set_ylim(top=1.3 * axes[0].get_ylim()[1])  # room for the legend
    legend(axes[0], loc="upper left", ncols=2)
    return to_svg(figure)


def _of_arms(what: str, *sizes: str, pool: str = "main") -> Callable[[Maker], Maker]:
    """Return a decorator for a table of a pool, for the sizes of the experiment in which the pool was run."""

    def add(make: Maker) -> Maker:
        for size in sizes:
            file = KEPT / f"experiment_{size}.json"
            if file.is_file() and pool in json.loads(file.read_text(encoding="utf-8"))["results"]:
                table_of(file.stem, name=f"{file.stem}_{what}", pool=pool)(make)
        return make

    return add


@_of_arms("differences", "cpu", "cpu_auto", "gpu")
@_of_arms("control", "cpu", "cpu_auto", "gpu", pool="control")
def arms_differences(experiment: Json, pool: str) -> str:
    """Return the table of the differences between each arm of a pool and random data; lower is better."""
    totals = ("primary", "near_answers", "use", "pool", "guard")
    rows = [
        [
            f"`{name}`",
            *(_to(arm[total]["difference"]) for total in totals),
            f"{arm['primary']['corrected_p']:.3f}" if "corrected_p" in arm["primary"] else "",
        ]
        for name, arm in experiment["results"][pool].items()
    ]
    heads = ["far answers", "near answers", "by the use", "by the pool", "by the use, less the margin"]
    return _table(["model", *heads, "corrected p, far answers"], rows)


@_of_arms("kinds", "cpu", "gpu")
def arms_kinds(experiment: Json, pool: str) -> str:
    """Return the difference of the loss on all response tokens to random data by kind of sample."""
    arms = {name: arm for name, arm in experiment["results"][pool].items() if name != "base"}
    kinds = [*next(iter(arms.values()))["by_kind"]]
    rows = [[f"`{kind}`", *(_of_kind(arm["by_kind"][kind]) for arm in arms.values())] for kind in kinds]
    return _table(["held-out samples", *(f"`{name}`" for name in arms)], rows)


def _of_kind(found: Json) -> str:
    # An interval over fewer clusters says nothing: it would come from two contexts.
    shown = 1 if found["pages"] < _LEAST_CLUSTERS else 3
    return _to(found["difference"][:shown])


@_of_arms("trained", "cpu", "gpu")
def arms_trained(experiment: Json, pool: str) -> str:
    """Return the table of each arm's training data, as means over its seeds, and of its far gap after training.

    The last column is the gap's difference to random data.
    """
    made, rows = experiment["trained_on"][pool], []
    for arm in dict.fromkeys(name.rpartition("-s")[0] for name in made):
        own = [of for name, of in made.items() if name.rpartition("-s")[0] == arm]
        samples, tokens, far = (sum(of[key] for of in own) / len(own) for key in ("samples", "tokens", "far"))
        rows.append(
            [f"`{arm}`", f"{samples:.0f}", f"{tokens:,.0f}", _whole_percent(far), *_gaps(experiment, pool, arm)]
        )
    rows.insert(0, ["`base`", "", "", "", *_gaps(experiment, pool, "base")])
    heads = ["samples", "tokens", "samples that need far text", "far gap, far less near", "gap less that of `random`"]
    return _table(["model", *heads], rows)


def _gaps(experiment: Json, pool: str, arm: str) -> list[str]:
    """Return an arm's far gap and its difference to random data; empty for the single run, which is not compared."""
    shown = experiment["results"][pool].get(arm)
    if shown is None:
        return ["", ""]
    return [_to(gap) for gap in (shown["gap"]["far_less_near"], shown["gap_difference"])]


@_of_arms("spread", "cpu", "gpu")
def arms_spread(experiment: Json, pool: str) -> str:
    """Return the table of the spread that the plan assumes and the spread of each arm's differences on far answers."""
    rows = []
    for power in experiment["power"]:
        assumed = experiment["plan"]["assumed"][power["spread"]]
        seeds = 2**0.5 * assumed["seeds"]  # of a difference of two models whose seeds have nothing in common
        numbers = (power["half_width"], assumed["questions"], seeds)
        rows.append([f"the plan, {power['spread']} spread", *(f"{number:.3f}" for number in numbers), ""])
    for name, arm in experiment["results"][pool].items():
        if name in ("base", experiment["plan"]["reference"]):
            continue
        _, low, high = arm["primary"]["difference"]
        by_seed = arm["spread"]["by_seed"]
        numbers = ((high - low) / 2, arm["spread"]["questions"], stdev(by_seed))
        rows.append(
            [f"`{name}`", *(f"{number:.3f}" for number in numbers), ", ".join(f"{each:.3f}" for each in by_seed)]
        )
    return _table(["", "interval to each side", "SD of questions", "SD of seeds", "difference by seed"], rows)


@table_of("gpu")
def gpu_scoring(gpu: Json) -> str:
    """Return the table of the cost of each scoring pass on a GPU."""
    rows = [
        [
            *(_pass(name), f"{part['tokens']:,}", f"{part['seconds']:.2f}", f"{part['tokens'] / part['seconds']:,.0f}"),
            *(part["tflops"], _whole_percent(part["share"]), part["gib"]),
        ]
        for name, part in gpu["scoring"].items()
    ]
    header = ["pass", "tokens", "seconds", "tokens/s", "TFLOP/s", "share of peak", "peak GiB"]
    return _table(header, rows)


def _pass(name: str) -> str:
    """Return a part's name as the page says it: `grouped joint 16384` as `joint, 16,384, 8B with grouped heads`."""
    model = ", 8B with grouped heads" if name.startswith("grouped ") else ""
    kind, _, length = name.removeprefix("grouped ").rpartition(" ")
    return f"`{kind}`, {int(length):,}{model}" if length.isdigit() else name


@table_of("gpu")
def gpu_facts(gpu: Json) -> str:
    """Return the GPU, its measured peak and what was compared on it."""
    machine, ratio = gpu["machine"], gpu["straightforward"]
    return _table(["", "measured"], [
        ["GPU", f"{machine['gpu']}, torch {machine['torch']}, transformers {machine['transformers']}"],
        ["peak of a bfloat16 matrix product, TFLOP/s", gpu["peak"]],
        *([f"largest relative difference to float32 on the CPU, {name}", f"{value:.1e}"]
          for name, value in gpu["parity"].items()),
        *([["faster than the straightforward implementation, 4,096 tokens", f"{ratio:.2f} times"]] if ratio else []),
    ])  # fmt: skip


@table_of("gpu")
def gpu_training(gpu: Json) -> str:
    """Return the table of the cost of a training step on a GPU."""
    rows = []
    for name, part in gpu["training"].items():
        if "reason" in part:
            rows.append([name, part["reason"], *[""] * 7])
            continue
        shares = [_whole_percent(part[name]) for name in ("share", "again")]
        rows.append([name, f"{part['seconds']:.2f}", f"{part['tokens'] / part['seconds']:,.0f}", part["tflops"]])
        rows[-1] += [*shares, part["gib"], part.get("planned_gib", ""), part.get("host_gib", "")]
    header = ["a step of", "seconds", "tokens/s", "TFLOP/s", "share of peak", "with recomputation"]
    header += ["peak GiB", "planned GiB", "host GiB"]
    return _table(header, rows)


# A figure in docs/images: the files that it is drawn from, and its function. Its bytes depend on the machine's fonts,
# so --check does not compare them.
DRAWINGS: dict[str, tuple[tuple[str, ...], Callable[..., bytes]]] = {"effect.svg": (("effect",), effect_curve)}


def drawn(folder: Path, kept: Path) -> list[str]:
    """Draw the figures into `folder`, and return the names of those that changed."""
    changed = []
    for name, (files, draw) in DRAWINGS.items():
        image = draw(*(json.loads((kept / f"{file}.json").read_text()) for file in files))
        if not (folder / name).is_file() or (folder / name).read_bytes() != image:
            (folder / name).write_bytes(image)
            changed.append(name)
    return changed


def written(page: str, kept: Path) -> str:
    """Return the page's text with each marked table as the files in `kept` have it."""

    def replaced(marked: re.Match[str]) -> str:
        names, make = TABLES[marked[2]]
        files = (json.loads((kept / f"{name}.json").read_text()) for name in names)
        return f"{marked[1]}{make(*files)}\n{marked[3]}"

    return _MARKED.sub(replaced, page)


def pages() -> dict[Path, str]:
    """Return the pages that have marked tables, with their text."""
    texts = {
        page: page.read_text(encoding="utf-8")
        for page in (ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if page.is_file()
    }
    return {page: text for page, text in texts.items() if _MARKED.search(text)}


def main(given: list[str] | None = None) -> int:
    """Parse, shorten, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="folder with JSON files of benchmarks")
    parser.add_argument("--check", action="store_true", help="only list pages that are not current")
    options = parser.parse_args(given)
    if options.measured:
        names = keep(options.measured, KEPT)
        say(f"shortened: {', '.join(names) or 'nothing'}")
        if "effect.json" in names:
            say(f"drawn: {', '.join(drawn(ROOT / 'docs' / 'images', KEPT)) or 'nothing new'}")
    stale = {page: new for page, text in pages().items() if (new := written(text, KEPT)) != text}
    for page, text in stale.items():
        say(f"{'not current' if options.check else 'wrote'}: {page.relative_to(ROOT)}")
        if not options.check:
            page.write_text(text, encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
