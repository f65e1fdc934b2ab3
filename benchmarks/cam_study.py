"""What would make contextual awareness (CAM, Eqs. 3-5) useful: which heads, rows, normalisation, sign, calibration?

    .venv/bin/python benchmarks/cam_study.py --seeds 0 1 2 --report 5 6 7 --out build/benchmarks/cam_study.json

Attention of every layer and head of theta_B is reduced to segments; each variant is a score made of it without labels.
The best of each family is chosen on --seeds (pairs and data) and reported on --report, which nothing was chosen on. The
second table is what attention adds there: each together with HMPp, in the place of FG, and with all of `far_gain`.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common_cam import FAMILIES, far_gain, gained_probability
from common_case import Case, add_case_options, cases_of, ready_pair
from common_groups import groups
from common_harder import KINDS, needs_far_context
from common_heads import Array, Heads, attended, measured
from common_measure import say, show, table, write_json
from common_ranking import Figures, Task, drawn_weights, estimates, measure, tasks_of
from common_selection import Tables

from gateau_dagster.demo.samples import KINDS as BASE_KINDS
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.pair_tables import CAM_CODE_VERSION, PERPLEXITY_CODE_VERSION
from gateau_dagster.selection.statistics import average_ranks

SECONDS_PER_SEED = 120
ALPHA = 0.5
HEAD_SETS = ("all heads", "first layer", "last layer", "retrieval heads")
ROWS = ("own rows", "predicting rows")
PARTNERS = ("HMPp", "far_gain: both")
RETRIEVAL_SHARE = 0.5  # a head is a retrieval head if it looks at the value this often when the value is next
_PROBE = 40  # needle prompts that tell the retrieval heads


def retrieval_heads(known: Tables) -> list[int]:
    """Heads whose most attended segment is the fact's, in the row that predicts its value: on needles of other data."""
    loaded, length = known.model("long")
    case = known.case
    count = 4 if case.untrained else _PROBE
    given = {"per_kind": count, "base": 0, "kinds": ("far_at_start",), "untrained": case.untrained}
    seed = case.data_seed + 500
    probe = Tables(Case(folder=case.folder, pair_seed=case.pair_seed, data_seed=seed, **given))
    found = []
    for sample in probe.samples:
        prompt = build_prompt(loaded.tokenizer, sample, max_length=length)
        mass, _ = attended(loaded, prompt, 4)  # the fact's four tokens are the first segment
        found.append(mass[:, 1].argmax(axis=1) == 0)
    shares = np.mean(found, axis=0)
    chosen = np.flatnonzero(shares >= RETRIEVAL_SHARE)
    return chosen.tolist() or [int(shares.argmax())]


def head_sets(known: Tables, count: int) -> dict[str, list[int]]:
    """Heads by the names of HEAD_SETS, and each head alone."""
    layers = known.model("long")[0].model.config.num_hidden_layers
    each = count // layers
    sets = [list(range(count)), list(range(each)), list(range(count - each, count)), retrieval_heads(known)]
    return dict(zip(HEAD_SETS, sets, strict=True)) | {f"head {k}": [k] for k in range(count)}


def calibrated(samples: list[Heads], name: str) -> list[Array]:
    """Attention over its mean in the data set at the same distance from the end, [K, R + 1, N] each; no labels."""
    most = max(one.tokens.size for one in samples)
    total, seen = np.zeros((samples[0].mass.shape[0], most)), np.zeros(most)
    for one in samples:
        n = one.tokens.size
        total[:, most - n :] += getattr(one, name).mean(axis=1)
        seen[most - n :] += 1
    expected = total / np.maximum(seen, 1)
    return [getattr(one, name) / np.maximum(expected[:, None, most - one.tokens.size :], 1e-12) for one in samples]


def variants(known: Tables, samples: list[Heads]) -> Iterator[tuple[str, str, Array]]:
    """Family, name and scores of every variant."""
    raw = [(one.mass, one.peak) for one in samples]
    even = list(zip(calibrated(samples, "mass"), calibrated(samples, "peak"), strict=True))
    sets = head_sets(known, samples[0].mass.shape[0])
    for (chosen, heads), rows, (how, given) in product(
        sets.items(), ROWS, (("raw", raw), ("calibrated for position", even))
    ):
        place = slice(1, None) if rows == ROWS[0] else slice(0, -1)
        reduced = [(mass[heads].mean(axis=0)[place], peak[heads].max(axis=0)[place]) for mass, peak in given]
        for family, scores in FAMILIES.items():
            for name, score in scores.items():
                values = [score(one, *pair) for one, pair in zip(samples, reduced, strict=True)]
                yield family, f"{name}; {chosen}; {rows}; {how}", np.array(values)


def everything(known: Tables, file: Path) -> dict[tuple[str, str], Array]:
    """Scores of one seed by family and name, with the candidates to beat."""
    samples = measured(known, file)
    found = {(family, name): values for family, name, values in variants(known, samples)}
    gain = np.array([far_gain(one) for one in samples])
    ours = np.array([gained_probability(one) for one in samples])
    found[("to beat", "FG")] = gain
    found[("to beat", "HMPp")] = ours
    found[("to beat", "far_gain: both")] = ALPHA * ours + (1 - ALPHA) * gain
    return found


def rank_share(values: Array) -> Array:
    """Share of the data set that is not above each value, (rank - ½) / |D|, in (0, 1); equal values share a rank."""
    return (average_ranks(values) - 0.5) / values.size


def with_partner(scores: dict[tuple[str, str], list[Array]], name: tuple[str, str], partner: str) -> list[Array]:
    """A variant and one to beat together: does attention add anything?

    Gains are probabilities like both that are to beat, and are averaged; of anything else the ranks are.
    """
    pairs = zip(scores[name], scores[("to beat", partner)], strict=True)
    if name[0] == "attention and gain":
        return [first + second for first, second in pairs]
    return [rank_share(first) + rank_share(second) for first, second in pairs]


def tasks_for(known: list[Tables]) -> list[Task]:
    """The groups' tasks, as in selection.py."""
    sources = [[record["source"] for record in each.records] for each in known]
    present = {kind for source in sources for kind in source}
    labels = {kind: needs_far_context(kind) for kind in (*BASE_KINDS, *KINDS) if kind in present}
    named = {name: [kind for kind in kinds if kind in present] for name, kinds in groups().items()}
    return [task for task in tasks_of(sources, labels, named, set()) if task.name in named]


def collected(cases: list[Case]) -> tuple[list[Tables], dict[tuple[str, str], list[Array]]]:
    """Tables and scores of several seeds."""
    known, found = [], {}
    for case in cases:
        ready_pair(case)
        say(f"pair {case.pair_seed}: heads and variants")
        tables = Tables(case)
        known.append(tables)
        code = f"{PERPLEXITY_CODE_VERSION}-{CAM_CODE_VERSION}"
        file = case.folder / "heads" / f"{case.context}-{tables.key}-{code}.npz"
        for name, values in everything(tables, file).items():
            found.setdefault(name, []).append(values)
    return known, found


def summary(figures: dict[str, Figures]) -> dict[str, Any]:
    """AUROC by group."""
    return {name: estimates(each)[0] for name, each in figures.items()}


def evaluated(tasks: list[Task], vectors: list[Array], draws: int) -> dict[str, Figures]:
    """Figures by task."""
    return {task.name: measure(task, vectors, drawn_weights(task, draws=draws)) for task in tasks}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    parser.set_defaults(seeds=[0, 1, 2])
    parser.add_argument("--report", type=int, nargs="+", default=[5, 6, 7], help="seeds that nothing is chosen on")
    parser.add_argument("--goal", default="within reach", help="group whose AUROC chooses")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path)
    return parser


def main(given: list[str] | None = None) -> int:
    """Parse, announce the time, choose, report."""
    arguments = _options().parse_args(given)
    count = len(arguments.seeds) + len(arguments.report)
    say(f"{count} seeds, at most {count * SECONDS_PER_SEED / 60:.0f} minutes on a core if nothing is kept yet")
    known, chosen_on = collected(cases_of(arguments))
    tasks = tasks_for(known)
    goal = {
        name: evaluated(tasks, vectors, 1)[arguments.goal].whole[:, 0].mean() for name, vectors in chosen_on.items()
    }
    held_known, held = collected(cases_of(argparse.Namespace(**vars(arguments) | {"seeds": arguments.report})))
    held_tasks = tasks_for(held_known)
    rows, content = [], []
    for name in reported(goal):
        entry = {"family": name[0], "variant": name[1], "chosen_on": float(goal[name])}
        entry["auroc"] = summary(evaluated(held_tasks, held[name], arguments.draws))
        if name[0] != "to beat":
            for partner in PARTNERS:
                both = evaluated(held_tasks, with_partner(held, name, partner), arguments.draws)
                entry[f"with {partner}"] = summary(both)
        content.append(entry)
        rows.append([f"{name[0]}: {name[1]}", f"{goal[name]:.3f}", *(each.show() for each in entry["auroc"].values())])
    show(table(["variant (best of family and factor)", "chosen on", *(task.name for task in held_tasks)], rows))
    show(f"\n{together(content, arguments.goal)}")
    settings = {name: value for name, value in vars(arguments).items() if name not in {"out", "folder"}}
    everything_chosen = {f"{family}: {name}": float(value) for (family, name), value in goal.items()}
    write_json(arguments.out, {"settings": settings, "reported": content, "choosing": everything_chosen})
    return 0


def together(content: list[dict[str, Any]], goal: str) -> str:
    """AUROC of `goal` when a variant stands beside one to beat, under that one alone; the best beside HMPp first."""
    alone = {entry["variant"]: entry["auroc"][goal] for entry in content if entry["family"] == "to beat"}
    both = [entry for entry in content if entry["family"] != "to beat"]
    keys = [f"with {partner}" for partner in PARTNERS]
    both.sort(key=lambda entry: -entry[keys[0]][goal].value)
    rows = [["none", *(alone[partner].show() for partner in PARTNERS)]]
    rows += [[f"{each['family']}: {each['variant']}", *(each[key][goal].show() for key in keys)] for each in both]
    return table([f"together with ({goal}, held back)", *PARTNERS], rows)


def reported(goal: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    """The literal Eq. 5, the best of each family, the best of each level of each factor, and those to beat."""
    literal: tuple[str, str] = ("agreement", f"cosine of softmaxes (Eq. 5); {HEAD_SETS[0]}; {ROWS[0]}; raw")
    found: list[tuple[str, str]] = [literal]
    for family in FAMILIES:
        members = [name for name in goal if name[0] == family]
        found.append(max(members, key=lambda name: goal[name]))
        for factor in range(4):
            for level in {name[1].split("; ")[factor] for name in members}:
                of_level = [name for name in members if name[1].split("; ")[factor] == level]
                if not level.startswith("head "):
                    found.append(max(of_level, key=lambda name: goal[name]))
    found += [name for name in goal if name[0] == "to beat"]
    return sorted(dict.fromkeys(found), key=lambda name: -goal[name])


if __name__ == "__main__":
    raise SystemExit(main())
