"""Put what the benchmarks measured into README and docs, so that no figure is copied by hand.

    .venv/bin/python benchmarks/figures.py --measured build/benchmarks

The newest JSON of each benchmark in --measured is shortened into docs/evidence/figures. From these files every table
between `<!-- figures: NAME -->` and `<!-- end of figures -->` in README and docs is written. With --check, pages that
are not current are listed, and nothing is written.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

from common import Spread, estimate_text, say
from common_ranking import FIGURES, SHARES
from effect_counts import Law, held_by_chance, laws
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
TOGETHER = "all models"
WITHIN_REACH = "within reach"
_SYNTHETIC_GROUPS = ("base", "controlled", "harder", "breaking", WITHIN_REACH)
_LEAST_CLUSTERS = 5
_SURE = 0.995  # kinds that the default ranks at least as well are left out of a long table
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n\n).*?(<!-- end of figures -->)", re.DOTALL)
Json = Mapping[str, Any]
Row = Sequence[object]


def real_text(measured: Json) -> dict[str, Any]:
    """Shorten what real_selection.py wrote."""
    results = {
        setting: {
            "samples": result["samples"],
            "probability_of_response": _rounded(result["probability_of_response"]),
            "methods": _by_method(result["figures"], [ALL]),
            "difference": {label: _triple(estimate) for label, estimate in result["difference"].items()},
            "answerable": {
                "samples": result["answerable"]["samples"],
                "methods": _by_method(result["answerable"]["figures"], [ALL]),
            },
        }
        for setting, result in measured["results"].items()
    }
    for setting in results.keys() - _few(results).keys():  # of these, pages show the kinds under no method
        for each in (results[setting], results[setting]["answerable"]):
            each["methods"] = {label: {ALL: tasks[ALL]} for label, tasks in each["methods"].items()}
    return {"settings": measured["settings"], "machine": measured["machine"], "results": results}


def response_length(measured: Json) -> dict[str, Any]:
    """Shorten what response_length.py wrote."""
    shortened = {
        part: {name: {of: _triple(each) for of, each in figures.items()} for name, figures in measured[part].items()}
        for part in ("figures", "difference")
    }
    evidence = {place: _rounded(figures) for place, figures in measured["evidence"].items()}
    kept = ("settings", "machine", "samples", "far")
    return {name: measured[name] for name in kept} | shortened | {"evidence": evidence}


def real_dependencies(measured: Json) -> dict[str, Any]:
    """Shorten what real_selection.py wrote: keep how often dependency and evidence are right."""
    results = {setting: result["dependency"] for setting, result in measured["results"].items()}
    return {"settings": measured["settings"], "machine": measured["machine"], "results": results}


def qmsum(measured: Json) -> dict[str, Any]:
    """Shorten what qmsum_selection.py wrote: keep what its tables show."""
    results = {
        model: {
            **{name: result[name] for name in ("parts", "samples", "meetings", "response_tokens", "dependency")},
            **{of: _triples(result[of]) for of in ("auroc", "evidence")},
            "difference": {label: _triple(tasks[ALL]) for label, tasks in result["difference"].items()},
            **({"mixed": _triples(result["mixed"])} if "mixed" in result else {}),
        }
        for model, result in measured["results"].items()
    }
    return {"settings": measured["settings"], "machine": measured["machine"], "results": results}


def base_rates(measured: Json) -> dict[str, Any]:
    """Shorten what base_rates.py wrote."""
    return _triples(measured)


def _triples(found: Any) -> Any:
    """Return the same with each estimate as a list."""
    if not isinstance(found, Mapping):
        return found
    if set(found) == {"value", "low", "high"}:
        return _triple(found)
    return {name: _triples(each) for name, each in found.items()}


def gpu(measured: Json) -> dict[str, Any]:
    """Shorten what gpu.py wrote: keep what its two tables show."""
    parts, peak = measured["parts"], measured["parts"]["matrix_product_peak"]["flops_per_second"]
    steps = {name.removeprefix(PREFIX): part for name, part in parts.items() if PREFIX in name}
    training = {name: _on_gpu(part, peak) for name, part in steps.items() if "skipped" not in part}
    scoring = {name: _on_gpu(part, peak) for name, part in parts.items() if "flops" in part and PREFIX not in name}
    return {
        "machine": parts["machine"],
        "peak": round(peak / 1e12),
        "parity": {dtype: max(found.values()) for dtype, found in parts["parity"].items() if dtype != "part_seconds"},
        "straightforward": parts["straightforward"].get("ratio"),
        "scoring": scoring,
        "training": training,
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
    probability = {kind: sum(seed[kind] for seed in by_seed) / len(by_seed) for kind in by_seed[0]}
    better = [{**row, "difference": _triple(row["difference"])} for row in measured["better_than_reference"]]
    return {name: measured[name] for name in ("settings", "machine", "samples", "kinds", "drawn_blindly")} | {
        "probability_of_response": _rounded(probability),
        "methods": _by_method(measured["methods"], list(groups())),
        "better_than_reference": better,
    }


def effect(measured: Json) -> dict[str, Any]:
    """Shorten what effect.py wrote: keep the means, and the recalls of each run."""
    runs = [
        [run["seed"], run["arm"], run["pool"], *(round(run["recall"][name], 4) for name in ("far", "near"))]
        for run in measured["runs"]
    ]
    return {**measured, "runs": runs}


def _by_method(methods: Json, groups: Sequence[str]) -> dict[str, Any]:
    """Return each estimate as a list; precision of the groups only."""
    return {
        label: {
            task: {name: _triple(estimates[name]) for name in (FIGURES if task in groups else FIGURES[:1])}
            for task, estimates in tasks.items()
        }
        for label, tasks in methods.items()
    }


def _triple(estimate: Json) -> list[float]:
    return [round(estimate[name], 6) for name in ("value", "low", "high")]


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


# A benchmark's file: the name of the shortened one, and how it is shortened.
SOURCES: dict[str, tuple[str, Callable[[Json], Json]]] = {
    "real_report.json": ("real_text", real_text),
    "real_dependencies.json": ("real_dependencies", real_dependencies),
    "response_length_choose.json": ("response_length_choose", response_length),
    "response_length_report.json": ("response_length_report", response_length),
    "qmsum_report.json": ("qmsum", qmsum),
    "qmsum_choose.json": ("qmsum_choose", qmsum),
    "qmsum_gemma3.json": ("qmsum_gemma3", qmsum),
    "base_rates.json": ("base_rates", base_rates),
    "base_rates_long.json": ("base_rates_long", base_rates),
    "base_rates_made.json": ("base_rates_made", base_rates),
    "selection.json": ("synthetic", synthetic),
    "scoring.json": ("scoring", dict),
    "context_length.json": ("context_length", dict),
    "training.json": ("training", dict),
    "experiment.json": ("experiment", dict),
    "experiment_large.json": ("experiment_large", dict),
    "experiment_short_chat.json": ("experiment_short_chat", dict),
    "experiment_cpu.json": ("experiment_cpu", dict),
    "experiment_cpu_auto.json": ("experiment_cpu_auto", dict),
    "experiment_gpu.json": ("experiment_gpu", dict),
    "gpu.json": ("gpu", gpu),
    "effect.json": ("effect", effect),
    **{f"effect_{base}.json": (f"effect_{base}", effect) for base in EFFECT_BASES},
    "real_long_SmolLM2.json": ("real_long_SmolLM2", real_text),
    "real_long_Gemma-3.json": ("real_long_Gemma-3", real_text),
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


def _table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def _auroc(methods: Json, label: str, task: str, digits: int = 3) -> str:
    """Return a method's AUROC of a task, empty where the task has samples of one label only."""
    return estimate_text(methods[label][task][AUROC], digits) if task in methods[label] else ""


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _spread(measured: Json) -> str:
    return Spread(**measured).show()


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


def _setting(setting: str) -> tuple[str, str, str]:
    """Return model, tokens and window of a setting's name; the name alone where it is of all sizes."""
    model, _, size = setting.rpartition(" ")
    if "/" not in size:
        return setting, "", ""
    tokens, window = (f"{int(number):,}" for number in size.split("/"))
    return model, tokens, window


def _parts(real: Json, part: str) -> dict[str, Json]:
    """Return the methods' figures by setting: of all samples, or of `answerable` ones."""
    results = real["results"].items()
    return {setting: (result if part == "all" else result[part])["methods"] for setting, result in results}


def _few(by_setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that fit a table: of several sizes those of all models."""
    if f"{TOGETHER}, all sizes" not in by_setting:
        return dict(by_setting)
    return {setting: found for setting, found in by_setting.items() if setting.startswith(TOGETHER)}


def readme(real: Json, language: Json) -> str:
    """Return AUROC of the presets on real text of README_SIZE and on the synthetic language."""
    rows = []
    for setting, result in real["results"].items():
        model, tokens, window = _setting(setting)
        if setting.endswith(f" {README_SIZE}") and model != TOGETHER:
            rows.append([f"Natural Questions, {model}, {tokens} tokens, window {window}", result["methods"], ALL])
            rows.append(
                ["the same, without answers that the model does not know", result["answerable"]["methods"], ALL]
            )
    rows.append(["synthetic language, three fresh pairs", language["methods"], WITHIN_REACH])
    cells = [
        [name, *(estimate_text(methods[f"gateau[{preset}]"][task][AUROC], between="–") for preset in PRESETS)]
        for name, methods, task in rows
    ]
    return _table(["data and model", "`robust` (default)", "`official`", "`paper`"], cells)


def presets_real(real: Json) -> str:
    """Return AUROC of the presets in all settings, and of the default where theta_B can answer."""
    rows, known = [], _parts(real, "answerable")
    for setting, methods in _parts(real, "all").items():
        model, tokens, window = _setting(setting)
        values = [_auroc(methods, f"gateau[{preset}]", ALL) for preset in PRESETS]
        rows.append([model, f"{tokens} / {window}" if tokens else "", *values, _auroc(known[setting], ROBUST, ALL)])
    names = [f"`{preset}`" for preset in PRESETS]
    return _table(["theta_B", "context / window", *names, "`robust`, without answers that theta_B does not know"], rows)


def presets_synthetic(language: Json) -> str:
    """Return AUROC of the presets on the synthetic language."""
    shown = {"base": "the demo's kinds", "harder": "harder kinds", WITHIN_REACH: "all kinds within the pair's reach"}
    methods = language["methods"]
    rows = [[f"`{preset}`", *(_auroc(methods, f"gateau[{preset}]", group) for group in shown)] for preset in PRESETS]
    return _table(["preset", *shown.values()], rows)


def real_samples(real: Json) -> str:
    """Return the number of samples in each setting."""
    results = real["results"].items()
    rows = [[setting, result["samples"], result["answerable"]["samples"]] for setting, result in results]
    return _table(["setting", "samples", "without far samples that theta_B cannot answer"], rows)


def real_methods(real: Json, part: str) -> str:
    """Return AUROC of every method over all kinds."""
    settings = _few(_parts(real, part))
    labels = [label for label in next(iter(settings.values())) if all(label in each for each in settings.values())]
    rows = {label: [_auroc(methods, label, ALL) for methods in settings.values()] for label in labels}
    order = {
        label: sum(methods[label][ALL][AUROC][0] for methods in settings.values() if ALL in methods[label])
        for label in labels
    }
    return _table(["method", *settings], _ranked(rows, order))


def real_differences(real: Json) -> str:
    """Return AUROC of every method over all kinds minus that of the default."""
    differences = _few({setting: result["difference"] for setting, result in real["results"].items()})
    labels = [label for label in next(iter(differences.values())) if label != ROBUST]
    rows = {label: [estimate_text(difference[label]) for difference in differences.values()] for label in labels}
    order = {label: sum(difference[label][0] for difference in differences.values()) for label in labels}
    return _table(["method", *differences], _ranked(rows, order))


def real_precision(real: Json) -> str:
    """Return precision of the default over all kinds."""
    settings = _few(_parts(real, "all"))
    rows = [
        [f"best {_whole_percent(share)}"] + [estimate_text(methods[ROBUST][ALL][name]) for methods in settings.values()]
        for share, name in zip(SHARES, FIGURES[1:], strict=True)
    ]
    return _table(["precision of `robust`", *settings], rows)


def real_kinds(real: Json, part: str) -> str:
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


def real_every_kind(real: Json) -> str:
    """Return AUROC by kind and method, a table for each setting."""
    tables = []
    for setting, methods in _few(_parts(real, "all")).items():
        best = sorted(methods, key=lambda label: -methods[label][ALL][AUROC][0])
        rows = [
            [kind, *(_auroc(methods, label, kind, 2) for label in best)]
            for kind in (ALL, *real["results"][setting]["probability_of_response"])
        ]
        tables.append(f"## {setting}\n\n" + _table(["kind", *map(_method, best)], rows))
    return "\n".join(tables)


_OF_CHOICE = {
    "spearman": "Spearman of score and length",
    "far tokens": "share of the far tokens that is chosen",
    "far samples": "far samples among the chosen",
    "length": "length of the chosen to that of far samples",
}
"""Names of figures of response_length.py that are no AUROC."""


def length_figures(found: Json, part: str, *, of_choice: bool) -> str:
    """Return AUROC of every candidate, or the figures of its choice; or the differences of these to today's default."""
    names = [name for name in found[part]["robust"] if (name in _OF_CHOICE) == of_choice]
    rows = [
        [f"`{candidate}`", *(estimate_text(figures[name], 2 if of_choice else 3) for name in names)]
        for candidate, figures in found[part].items()
        if part == "figures" or candidate != "robust"
    ]
    return _table(["candidate", *(_OF_CHOICE.get(name, name) for name in names)], rows)


def length_evidence(found: Json) -> str:
    """Return how well the segments' gains find those with evidence."""
    rows = [
        [place, int(figures["samples"]), *(f"{value:.2f}" for name, value in figures.items() if name != "samples")]
        for place, figures in found["evidence"].items()
    ]
    names = [name for name in next(iter(found["evidence"].values())) if name != "samples"]
    shown = [name.replace("first_", "one of the first ").replace("recall_", "recall at ") for name in names]
    return _table(["passages", "samples", *(name.replace("auroc", "AUROC of segments") for name in shown)], rows)


def dependency_counts(real: Json) -> str:
    """Return the samples of each model by the dependency of their passages and the column's, over all its sizes."""
    singles, rows = _of_models(real["results"]), list[Row]()
    for model in dict.fromkeys(_setting(setting)[0] for setting in singles):
        results = [result for setting, result in singles.items() if _setting(setting)[0] == model]
        for wanted in DEPENDENCIES:
            found = [sum(result["counts"][wanted][name] for result in results) for name in DEPENDENCIES]
            right = found[DEPENDENCIES.index(wanted)] / sum(found)
            rows.append([model, f"`{wanted}`", *found, _whole_percent(right)])
    return _table(["model", "by its passages", *(f"`{name}`" for name in DEPENDENCIES), "right"], rows)


def evidence_hits(real: Json) -> str:
    """Return the share of passages with evidence, and the share of evidence on a passage, by setting."""
    rows = []
    for setting, result in _of_models(real["results"]).items():
        shares = (f"{100 * some / every:.1f} % of {every}" for some, every in (result["passages"], result["spans"]))
        rows.append([setting, *shares])
    return _table(["setting", "passages with evidence", "evidence on a passage"], rows)


# The candidates of response_length.py that the table shows beside the methods.
_QMSUM_SCORES = (
    *("robust", "all_tokens", "all_tokens_sum", "information", "information_sum", "information_sqrt"),
    *("clear_0.5", "clear_0.5_sqrt"),
)


def qmsum_samples(found: Json) -> str:
    """Return samples, lengths of responses and classes of dependency of each kind, by model."""
    rows = list[Row]()
    for model, result in found["results"].items():
        for kind, counts in result["dependency"].items():
            tokens = f"{result['response_tokens'][kind]:.0f}"
            rows.append([model, f"`{kind}`", result["samples"][kind], tokens, *counts.values()])
    return _table(["model", "kind", "samples", "response tokens", *(f"`{name}`" for name in CLASSES)], rows)


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


def qmsum_evidence(found: Json) -> str:
    """Return how often evidence is in the marked turns, by model and kind."""
    names = {
        **{f"listed_{count}": f"first {count}, as listed" for count in RECALL},
        **{f"by_gain_{count}": f"first {count}, by gain" for count in RECALL},
    }
    rows = list[Row]()
    for model, result in found["results"].items():
        for kind, of in result["evidence"].items():
            shares = [_percent(of[name]) for name in ("evidence", *names, "by_chance")]
            rows.append([model, kind if " " in kind else f"`{kind}`", of["samples"], *shares])
            rows[-1] = [*rows[-1], estimate_text(of["segments_auroc"], 2), estimate_text(of["same_side"], 2)]
    aurocs = ("AUROC of segments", "on the same side")
    return _table(["model", "kind", "samples", "has evidence", *names.values(), "by chance", *aurocs], rows)


_OF_QMSUM = ("qmsum", "qmsum_gemma3")
"""Runs of other models, each with its own number of samples."""


def _of_all(make: Callable[[Json], str]) -> Callable[..., str]:
    """Return a function that makes a table of several files, whose results are by model."""
    return lambda *files: make({"results": {model: each for one in files for model, each in one["results"].items()}})


def qmsum_mixed(found: Json) -> str:
    """Return which far samples are chosen of a pool of meetings and short answers, by model and candidate."""
    rows = list[Row]()
    for model, result in found["results"].items():
        pool = result.get("mixed", {"candidates": {}})
        for label, of in pool["candidates"].items():
            if label not in _QMSUM_SCORES:
                continue
            shares = (f"{_percent(of[group])} of {far}" for group, far in pool["far"].items())
            rows.append([model, f"`{label}`", estimate_text(of["auroc"]), *shares])
    return _table(["model", "candidate", "AUROC", "far meetings chosen", "far short answers chosen"], rows)


def base_rate_table(*found: Json) -> str:
    """Return the share of samples that depend on far text, by data set and size, of each file in turn."""
    rows = [
        [name, size, of["samples"], f"{of['context_tokens']:,.0f}", _percent(of["seen"]), _percent(of["corrected"])]
        for each in found
        for name, sizes in each["results"].items()
        for size, of in sizes.items()
    ]
    return _table(["data set", "size", "samples", "median context tokens", "far, seen", "far, corrected"], rows)


def _percent(triple: Sequence[float]) -> str:
    value, low, high = (f"{100 * number:.0f}" for number in triple)
    return f"{value} % ({low}-{high})"


def _of_models(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of single models."""
    return {setting: result for setting, result in results.items() if not setting.startswith(TOGETHER)}


def synthetic_methods(language: Json) -> str:
    """Return AUROC of every method by group of kinds, and its precision over all kinds within reach."""
    methods = language["methods"]
    precision = FIGURES[-1]
    rows = {
        label: [
            *(estimate_text(tasks[group][AUROC]) for group in _SYNTHETIC_GROUPS),
            f"{tasks[WITHIN_REACH][precision][0]:.3f}",
        ]
        for label, tasks in methods.items()
    }
    order = {label: tasks[WITHIN_REACH][AUROC][0] for label, tasks in methods.items()}
    blindly = ["drawn blindly", *["0.500"] * len(_SYNTHETIC_GROUPS), f"{language['drawn_blindly'][WITHIN_REACH]:.3f}"]
    header = ["method", *_SYNTHETIC_GROUPS, f"precision in the best {_whole_percent(SHARES[-1])}"]
    return _table(header, [*_ranked(rows, order), blindly])


def synthetic_kinds(language: Json) -> str:
    """Return AUROC of four methods by kind, of kinds that are not sure under the default."""
    shown = (ROBUST, "gateau[paper]", "hmg[official]", "perplexity")
    methods = language["methods"]
    rows = []
    for task in methods[ROBUST]:
        if task in groups() or methods[ROBUST][task][AUROC][0] >= _SURE:
            continue
        kind, why = language["kinds"].get(task), SYNTHETIC_KINDS.get(task)
        rows.append([
            f"`{task}`" + (f": {why.why}" if why else ""),
            ("yes" if kind["needs_far_context"] else "no") if kind else "",
            f"{language['probability_of_response'][task]:.2f}" if kind else "",
            *(_auroc(methods, label, task) for label in shown),
        ])  # fmt: skip
    return _table(["kind", "needs far", "theta_B's probability", *map(_method, shown)], rows)


def synthetic_better(language: Json) -> str:
    """Return where another method is better than the default by more than the interval."""
    rows = []
    for row in language["better_than_reference"]:
        both = [_auroc(language["methods"], label, row["task"]) for label in (row["method"], ROBUST)]
        rows.append([f"`{row['task']}`", _method(row["method"]), *both, estimate_text(row["difference"])])
    return _table(["group or kind", "method", "its AUROC", "`robust`", "difference"], rows)


def speed(scoring: Json, context_length: Json, training: Json) -> str:
    """Return the figures in short."""
    ratios = context_length["conclusions"]
    rows = [
        [f"scoring, responses of {case['response_tokens']} tokens", f"{_spread(case['ratio']['eager'])} times faster"]
        for case in scoring["cases"]
    ] + [
        ["peak memory at 16,384 tokens, of that of `output_attentions=True`", f"{100 * ratios['memory_share']:.2f} %"],
        ["time at 32,768 tokens, of the extrapolation by FLOPs from 8,192", f"{ratios['time_ratio_joint']:.2f}"],
        ["training in packed rows against padded batches", f"{_spread(training['ratio']['padded'])} times faster"],
    ]
    return _table(["", "measured"], rows)


def scoring_ratios(scoring: Json) -> str:
    """Return how many times faster the pipeline scores, and the seconds of each part of both sides."""
    cases = scoring["cases"]
    ways = {"eager": "all passes eager", "sdpa": "eager only where matrices are read"}
    rows = [[f"times faster: {text}", *(_spread(case["ratio"][way]) for case in cases)] for way, text in ways.items()]
    rows += [
        [f"{part}, s", *(_spread(asdict(Spread.of(case["seconds"][part]))) for case in cases)]
        for part in cases[0]["seconds"]
    ]
    worst = [f"{max(case['largest_difference'].values()):.1e}" for case in cases]
    header = ["", *(f"responses of {case['response_tokens']} tokens" for case in cases)]
    return _table(header, [*rows, ["largest relative difference of a figure", *worst]])


def screened_cost(scoring: Json) -> str:
    """Return the FLOPs of theta_B's tables, of those of one pass over each prompt."""
    rows = [
        [f"{each['context_tokens']}, responses of {each['response_tokens']}"]
        + [f"{each[name]:.2f}" for name in ("all", "screened")]
        + [_whole_percent(each["read"])]
        for each in scoring["flops"]
    ]
    return _table(["tokens of contexts", "`all`", "`screened`", "segments read"], rows)


def context_lengths(context_length: Json) -> str:
    """Return seconds and peak memory of each pass by length, and the figures that have a target."""
    lengths = {
        int(length): {each["name"]: each for each in passes} for length, passes in context_length["lengths"].items()
    }
    names = list(dict.fromkeys(name for passes in lengths.values() for name in passes))
    rows = []
    for length, passes in lengths.items():
        cells = [f"{length:,}"]
        for name in names:
            measured = passes.get(name)
            cells += (
                [f"{min(measured['seconds']):.2f}", f"{measured['peak_bytes'] / 2**20:.0f}"] if measured else ["", ""]
            )
        rows.append(cells)
    targets = [
        ("peak at 16,384 tokens, of that of `output_attentions=True`", "memory_share", "at most 0.05"),
        ("time at 32,768 tokens, of the extrapolation from 8,192: prompt", "time_ratio_joint", "at most 1.2"),
        ("the same: segment prompts", "time_ratio_segments", "at most 1.2"),
    ]
    conclusions = [[text, f"{context_length['conclusions'][name]:.3g}", target] for text, name, target in targets]
    header = ["tokens", *(head for name in names for head in (f"{name}, s", "peak MiB"))]
    return _table(header, rows) + "\n" + _table(["figure", "measured", "target"], conclusions)


def training_sides(training: Json) -> str:
    """Return tokens per second of packed and padded training, and what explains their ratio."""
    rows = [
        [side, Spread(**measured).show(0), "" if side == "packed" else _spread(training["ratio"][side])]
        for side, measured in training["useful_tokens_per_second"].items()
    ]
    peaks = training["loss_peak_bytes"]
    more = [
        [
            "useful tokens, of those of the padded batches",
            _whole_percent(training["useful_tokens"] / training["padded_tokens"]),
        ],
        ["memory of the loss in chunks, of that of full logits", f"{100 * peaks['chunked'] / peaks['plain']:.1f} %"],
    ]
    levers = training["levers"]
    tokens = f"a pass over {levers['tokens']:,} tokens"
    more += [
        [f"peak memory of {tokens}, without levers / with both", _spread(levers["memory_ratio"])],
        [f"time of {tokens}, with both levers / without", _spread(levers["time_ratio"])],
    ]
    drift = [[name, f"{100 * value:.2f} %"] for name, value in training["drift"].items()]
    return "\n".join(
        [
            _table(["side", "useful tokens/s", "packed is faster by"], rows),
            _table(["figure", "measured"], more),
            _table(["lever", "distance of bfloat16's gradients from float32's"], drift),
        ]
    )


def experiment_trained(experiment: Json) -> str:
    """Return the table of the data that each model was trained on."""
    rows = [
        [f"`{name}`", made["samples"], f"{made['tokens']:,}", _whole_percent(made["far"])]
        for name, made in experiment["trained_on"].items()
    ]
    return _table(["model", "samples in the mix", "tokens trained on", "samples that need far text"], rows)


def experiment_values(experiment: Json, benchmark: str, of: str) -> str:
    """Return the `value` of each model over all held-out samples and by group, or its `difference`."""
    groups, digits = experiment["results"][benchmark], 1 if benchmark == "answers" else 3
    models = [name for name in groups["all"]["models"] if of == "value" or name != experiment["reference"]]
    rows = [
        [f"`{name}`", *(estimate_text(group["models"][name][of], digits, " to ") for group in groups.values())]
        for name in models
    ]
    return _table(["model", *(f"{name} ({group['questions']})" for name, group in groups.items())], rows)


def experiment_outcome(experiment: Json) -> str:
    """Return the report's sentences on each selection, a list for each benchmark."""
    return "\n".join(f"- {sentence}" for of in experiment["sentences"].values() for sentence in of) + "\n"


_ARMS = {
    "mix": "`mix`", "mix_tau": "`mix`, `tau: 1`", "mix_trim": "`mix`, `trim`", "oracle": "oracle", "top": "`top`",
    "clean": "`clean`", "auto": "`auto`", "random_again": "`random`, another draw",
}  # fmt: skip


def _cell(found: Json, arm: str, pool: float) -> Json | None:
    return next((row for row in found["cells"] if (row["arm"], row["pool"]) == (arm, pool)), None)


def _pools(found: Json) -> list[float]:
    return sorted({row["pool"] for row in found["cells"]})


def _gain(estimate: Json, digits: int = 3) -> str:
    return estimate_text([estimate[name] for name in ("value", "low", "high")], digits, " to ", sign="+")


def effect_gains(found: Json, recall: str) -> str:
    """Return each arm's gain over random in a recall, by pool, and the recall of random."""
    pools = _pools(found)
    random = [row for pool in pools if (row := _cell(found, "random", pool))]
    rows: list[Row] = [["`random`: recall", *(f"{row[recall]['value']:.3f}" for row in random)]]
    for arm, name in _ARMS.items():
        cells = [_cell(found, arm, pool) for pool in pools]
        if any(cells):
            seeds = max(cell["seeds"] for cell in cells if cell)
            rows.append([f"{name} ({seeds} seeds)", *(_gain(cell[f"{recall}_gain"]) if cell else "" for cell in cells)])
    heads = [f"{_whole_percent(pool)}: {random[place]['bits']:.2f} bits" for place, pool in enumerate(pools)]
    return _table([f"{recall} recall minus that of `random`, pool of", *heads], rows)


def readme_effect(found: Json) -> str:
    """Return the gain of `mix` over random in far recall, by pool."""
    gains = [_gain(cell["far_gain"], 2) for pool in _pools(found) if (cell := _cell(found, "mix", pool))]
    return _table(["far text in the pool", *map(_whole_percent, _pools(found))], [["gain (95 %)", *gains]])


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


_LAWS = {
    "mean": "the mean gain of the other pools",
    "mismatch": "mismatch, bits",
    "supply": "supply",
    "expected": "the product's doublings, of corrected samples",
    "by_pool": "doublings against an average random choice",
    "uncorrected": "doublings against this draw of `random`",
    "enrichment": "log2 of enrichment against this draw",
    "offset": "doublings with an offset",
    "added": "far text added",
}


def _number(values: Mapping[str, float], unit: str, form: str) -> str:
    return format(values[unit], form) if unit in values else ""


def _law_difference(law: Law) -> str:
    if law.difference is None:
        return ""
    return _gain(dict(zip(("value", "low", "high"), law.difference, strict=True)))


def effect_counts(found: Json) -> str:
    """Return how laws in samples and in tokens order and predict the gains of `mix` and `mix_tau`."""
    rows = [
        [
            _LAWS[law.name],
            *(_number(law.order, unit, ".2f") for unit in ("samples", "tokens")),
            *(_number(law.distance, unit, ".3f") for unit in ("samples", "tokens")),
            _law_difference(law),
        ]
        for law in laws(found, ["mix", "mix_tau"])
    ]
    return _table(["law", "order: samples", "tokens", "distance: samples", "tokens", "tokens less samples"], rows)


def effect_counts_elsewhere(found: Json) -> str:
    """Return the distances of the same laws for all arms, and for the loss on far facts in place of their recall."""
    every = laws(found, [arm for arm in _ARMS if arm != "auto"])
    loss = {law.name: law for law in laws(found, ["mix", "mix_tau"], "far_nll_gain")}
    units = ("samples", "tokens")
    rows = [
        [
            _LAWS[law.name],
            *(_number(law.distance, unit, ".3f") for unit in units),
            _law_difference(law),
            *(_number(loss[law.name].distance, unit, ".3f") for unit in units),
        ]
        for law in every
    ]
    return _table(["law", "all arms: samples", "tokens", "tokens less samples", "loss: samples", "tokens"], rows)


def effect_choices(found: Json) -> str:
    """Return the table of the choices: far samples by label, far tokens, and samples that nothing predicts."""
    rows = []
    for arm, name in {"random": "`random`", **_ARMS}.items():
        cells = [_cell(found, arm, pool) for pool in _pools(found)]
        if any(cells):
            names = ("far", "far_tokens", "unpredictable")
            text = (" / ".join(f"{cell['choice'][of]:.0f}" for of in names) if cell else "" for cell in cells)
            rows.append([name, *text])
    return _table(["far samples / far tokens / unpredictable samples", *map(_whole_percent, _pools(found))], rows)


def effect_deficit(*files: Json) -> str:
    """Return the gain of mix in far recall by the far deficit of the model before training."""
    rows = []
    for found in sorted(files, key=lambda found: found["settings"]["theta"]):
        deficits = {each["seed"]: each["deficit"] for each in found["verdicts"]}.values()
        parts = [[each[name]["value"] for each in deficits if each[name]] for name in ("far", "near", "beyond")]
        means = [f"{sum(part) / len(part):.2f}" if part else "" for part in parts]
        cells = [cell for pool in (0.05, 0.1) if (cell := _cell(found, "mix", pool))]
        base = f"{found['settings']['theta']:,.0f}"
        rows.append([base, f"{found['untrained']['far']['value']:.3f}", *means, *(_gain(c["far_gain"]) for c in cells)])
    header = ["rotary base", "far recall before training", "far deficit", "near control", "far minus near"]
    return _table([*header, "gain of `mix`, pool of 5 %", "10 %"], rows)


def effect_verdicts(found: Json) -> str:
    """Return the product's verdicts by pool, and the means of what they are made from."""
    rows = []
    for pool in _pools(found):
        some = [each for each in found["verdicts"] if each["pool"] == pool]
        counts = Counter(each["verdict"] for each in some)
        means = [sum(part) / len(part) for part in (
            [each["far"]["value"] for each in some], [each["mismatch"]["value"] for each in some],
            [each["enrichment"] for each in some], [each["supply"] for each in some])]  # fmt: skip
        words = ", ".join(f"`{word}` {count} of {len(some)}" for word, count in counts.most_common())
        cell = _cell(found, "mix", pool)
        in_tokens = cell["choice"]["far_tokens"] / held_by_chance(found, cell, "tokens") if cell else math.nan
        numbers = [*means[1:3], in_tokens, means[3]]
        rows.append([_whole_percent(pool), f"{100 * means[0]:.1f} %", *(f"{number:.2f}" for number in numbers), words])
    header = ["pool", "far share, corrected", "mismatch, bits", "enrichment", "the same in tokens", "supply", "verdict"]
    return _table(header, rows)


def effect_test(found: Json) -> str:
    """Return how often `dependency` is right about far text in the scored sets."""
    shares = {
        "samples that need far text: found": found["test"]["far"],
        "others: not taken for far": found["test"]["others"],
    }
    rows = [[name, f"{100 * right / every:.1f} % of {every:,}"] for name, (right, every) in shares.items()]
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
            cells = [cell for pool in _pools(found) if (cell := _cell(found, arm, pool))]
            x = [cell["bits"] + 0.028 * (place - 2) for cell in cells]
            gains = [cell[f"{recall}_gain"] for cell in cells]
            axis.plot(x, [gain["value"] for gain in gains], marker, color=colour, markersize=5.5, label=names[arm])
            for at, gain in zip(x, gains, strict=True):
                if gain["low"] is not None:  # of one seed
                    axis.vlines(at, gain["low"], gain["high"], color=colour, linewidth=1.3, alpha=0.6)
        label(axis, x="KL(use ‖ pool), bits; the use is half far text", y=f"{recall} recall minus that of random")
        above = axis.secondary_xaxis("top")
        places = [cell["bits"] for pool in _pools(found) if (cell := _cell(found, "random", pool))]
        above.set_xticks(places, [_whole_percent(pool) for pool in _pools(found)])
        above.tick_params(colors=MUTED, labelsize=8.5, length=3)
        above.set_xlabel("far samples in the pool", fontsize=9.5, color=MUTED)
    axes[0].set_ylim(top=1.3 * axes[0].get_ylim()[1])  # room for the legend
    legend(axes[0], loc="upper left", ncols=2)
    return to_svg(figure)


def arms_differences(experiment: Json, pool: str) -> str:
    """Return the table of the differences between each arm of a pool and random data; lower is better."""
    totals = ("primary", "near_answers", "use", "pool", "guard")
    rows = [
        [
            f"`{name}`",
            *(estimate_text(arm[total]["difference"], 3, " to ") for total in totals),
            f"{arm['primary']['corrected_p']:.3f}" if "corrected_p" in arm["primary"] else "",
        ]
        for name, arm in experiment["results"][pool].items()
    ]
    heads = ["far answers", "near answers", "by the use", "by the pool", "by the use, less the margin"]
    return _table(["model", *heads, "corrected p, far answers"], rows)


def arms_kinds(experiment: Json, pool: str) -> str:
    """Return the difference of the loss on all response tokens to random data by kind of sample."""
    arms = {name: arm for name, arm in experiment["results"][pool].items() if name != "base"}
    kinds = [*next(iter(arms.values()))["by_kind"]]
    rows = [[f"`{kind}`", *(_of_kind(arm["by_kind"][kind]) for arm in arms.values())] for kind in kinds]
    return _table(["held-out samples", *(f"`{name}`" for name in arms)], rows)


def _of_kind(found: Json) -> str:
    # An interval over fewer clusters says nothing: it would come from two contexts.
    shown = 1 if found["pages"] < _LEAST_CLUSTERS else 3
    return estimate_text(found["difference"][:shown], 3, " to ")


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
    return [estimate_text(gap, 3, " to ") for gap in (shown["gap"]["far_less_near"], shown["gap_difference"])]


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


def real_long(files: Iterable[Json], make: Callable[[Json], str]) -> str:
    """Return a table of all settings with long contexts, a file for each model."""
    return make({"results": {name: each for file in files for name, each in file["results"].items()}})


# A table's name: the files that it is made of, and its function.
TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "readme": (("real_text", "synthetic"), readme),
    "readme_effect": (("effect",), readme_effect),
    "presets_real": (("real_text",), presets_real),
    "presets_synthetic": (("synthetic",), presets_synthetic),
    "real_samples": (("real_text",), real_samples),
    "real_methods": (("real_text",), lambda real: real_methods(real, "all")),
    "real_differences": (("real_text",), real_differences),
    "real_answerable": (("real_text",), lambda real: real_methods(real, "answerable")),
    "real_precision": (("real_text",), real_precision),
    "dependency_counts": (("real_dependencies",), dependency_counts),
    "evidence_hits": (("real_dependencies",), evidence_hits),
    "qmsum_samples": (_OF_QMSUM, _of_all(qmsum_samples)),
    "qmsum_methods": (_OF_QMSUM, _of_all(qmsum_methods)),
    "qmsum_evidence": (_OF_QMSUM, _of_all(qmsum_evidence)),
    "qmsum_mixed": (_OF_QMSUM, _of_all(qmsum_mixed)),
    "qmsum_choose": (("qmsum_choose",), qmsum_evidence),
    "base_rates": (("base_rates", "base_rates_made", "base_rates_long"), base_rate_table),
    "screened_cost": (("scoring",), screened_cost),
    "real_kinds": (("real_text",), lambda real: real_kinds(real, "all")),
    "real_kinds_answerable": (("real_text",), lambda real: real_kinds(real, "answerable")),
    "real_every_kind": (("real_text",), real_every_kind),
    "synthetic_methods": (("synthetic",), synthetic_methods),
    "synthetic_kinds": (("synthetic",), synthetic_kinds),
    "synthetic_better": (("synthetic",), synthetic_better),
    "speed": (("scoring", "context_length", "training"), speed),
    "scoring": (("scoring",), scoring_ratios),
    "context_length": (("context_length",), context_lengths),
    "training": (("training",), training_sides),
    "effect_far": (("effect",), lambda found: effect_gains(found, "far")),
    "effect_near": (("effect",), lambda found: effect_gains(found, "near")),
    "effect_forecast": (("effect",), effect_forecast),
    "effect_choices": (("effect",), effect_choices),
    "effect_counts": (("effect",), effect_counts),
    "effect_counts_elsewhere": (("effect",), effect_counts_elsewhere),
    "effect_test": (("effect",), effect_test),
    "effect_verdicts": (("effect",), effect_verdicts),
    "effect_deficit": (("effect", *(f"effect_{base}" for base in EFFECT_BASES)), effect_deficit),
    "gpu_facts": (("gpu",), gpu_facts),
    "gpu_scoring": (("gpu",), gpu_scoring),
    "gpu_training": (("gpu",), gpu_training),
    "real_long": (
        ("real_long_SmolLM2", "real_long_Gemma-3"),
        lambda *of: real_long(of, lambda real: real_methods(real, "all")),
    ),
    "real_long_samples": (("real_long_SmolLM2", "real_long_Gemma-3"), lambda *of: real_long(of, real_samples)),
    "real_long_answerable": (
        ("real_long_SmolLM2", "real_long_Gemma-3"),
        lambda *of: real_long(of, lambda real: real_methods(real, "answerable")),
    ),
}
_OF_LENGTHS: Mapping[str, Callable[..., str]] = {
    "auroc": lambda found: length_figures(found, "figures", of_choice=False),
    "difference": lambda found: length_figures(found, "difference", of_choice=False),
    "choice": lambda found: length_figures(found, "figures", of_choice=True),
    "evidence": length_evidence,
}
for _half, _what in (("choose", "auroc"), ("choose", "choice"), *(("report", what) for what in _OF_LENGTHS)):
    TABLES[f"length_{_half}_{_what}"] = ((f"response_length_{_half}",), _OF_LENGTHS[_what])
_OF_EXPERIMENTS: Mapping[str, Callable[..., str]] = {
    "outcome": experiment_outcome,
    "differences": lambda found: experiment_values(found, "answer_loss", "difference"),
    "answers": lambda found: experiment_values(found, "answers", "value"),
    "loss": lambda found: experiment_values(found, "answer_loss", "value"),
    "trained": experiment_trained,
}
for _run, _shown in (("experiment", 5), ("experiment_large", 5), ("experiment_short_chat", 3)):
    TABLES |= {f"{_run}_{what}": ((_run,), make) for what, make in [*_OF_EXPERIMENTS.items()][:_shown]}
_OF_ARMS: Mapping[str, Callable[..., str]] = {
    "differences": arms_differences,
    "kinds": arms_kinds,
    "trained": arms_trained,
    "spread": arms_spread,
}
for _run, _shown in (("experiment_cpu", 4), ("experiment_cpu_auto", 1), ("experiment_gpu", 4)):
    if (KEPT / f"{_run}.json").is_file():  # a size that was not run has no tables
        _of_run = [*_OF_ARMS.items()][:_shown]
        TABLES |= {f"{_run}_{what}": ((_run,), partial(make, pool="main")) for what, make in _of_run}
        if "control" in json.loads((KEPT / f"{_run}.json").read_text(encoding="utf-8"))["results"]:
            TABLES[f"{_run}_control"] = ((_run,), partial(arms_differences, pool="control"))


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
