"""From selection to effect, at the demo's scale: one model trained on what each method chooses, then asked far facts.

    .venv/bin/python benchmarks/selection_effect.py --seeds 5 6 7 --out build/benchmarks/selection_effect.json

The pool is the labelled set of selection.py, larger. The model is theta_A with a rotary base that extends its window a
part of the way (THETA): it recalls near facts and about half of the far ones, so that data can teach it and can harm
it. theta_B, and theta_A with theta_B's base, recall nearly all of them before any training; theta_A with its own base
recalls none, and this budget does not change that. Every method fills the same budget of samples; `all` takes the whole
pool, and as many more steps; `labels` is the budget drawn from the samples that need far context.

Training is a plain loop in this process: the pipeline's own encoding and loss mask (training/encode.py), AdamW, one
sample a pass. Budgets are of samples: their tokens differ. A finished run is a line of --runs, and is not run again
unless what decides it has changed: options, data, the pairs' recipe, THETA, or a version of the code it goes through.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common_case import Case, add_case_options, cases_of, ready_pair
from common_effect import HEADER, Key, add, finished, rows_of
from common_harder import needs_far_context
from common_measure import machine, say, show, table, write_json
from common_methods import code_of, labelled, method_scores
from common_selection import Tables
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM

from gateau_dagster.config.inputs import RECIPE_VERSION
from gateau_dagster.demo.pair import LONG_WINDOW, pair_config, rate_factor
from gateau_dagster.demo.recall import recall_at
from gateau_dagster.pipeline.pipeline import pipeline_of
from gateau_dagster.training.encode import Encoded, encode_long

THETA = 4e4  # theta_A's own is 1e4, theta_B's 1e6
SECONDS_PER_SAMPLE = 0.06  # of training, on one free core
DISTANCES = {"near": (64,), "far": (512, 1000, 1500)}
SECONDS_PER_TABLE_ROW = 0.12  # of all tables of a sample, once
METHODS = ("gateau[robust]", "hmg[official]", "gateau[paper]", "gateau[official]", "perplexity", "ifd", "ladm[scaled]",
           "delta_perplexity", "length", "response_length")  # fmt: skip
BASELINES = ("untrained", "random", "labels", "all")
_DECIDE_NOTHING = {"out", "folder", "runs", "methods", "baselines", "seeds", "finished"}
_READING = """far, near: mean over the seeds [smallest, largest]. Minus random's: the mean of the differences, seed by
seed, to random choice with the same pair and pool (95 % t interval over the seeds); none without two seeds."""


def chosen(known: Tables, method: str, count: int, seed: int) -> list[int]:
    """Rows of `known.samples` that a method chooses; `labels` draws among those that need far context."""
    size = len(known.samples)
    order = np.random.default_rng((seed, 7)).permutation(size)
    if method == "untrained":
        return []
    if method == "all":
        return order.tolist()
    if method == "random":
        return order[:count].tolist()
    if method == "labels":
        return [row for row in order.tolist() if needs_far_context(known.records[row]["source"])][:count]
    scores = method_scores(known, labelled(known.case, method))
    return sorted(order.tolist(), key=lambda row: -scores[row])[:count]


def extended(case: Case) -> LlamaForCausalLM:
    """theta_A with theta_B's window and the base THETA."""
    model = LlamaForCausalLM(pair_config(LONG_WINDOW, THETA))
    short = LlamaForCausalLM.from_pretrained(case.pair / "short")
    model.load_state_dict(short.state_dict())
    return model


def batches(count: int, *, epochs: int, size: int, seed: int) -> Iterator[list[int]]:
    """Places of samples, `size` a step, every epoch in an order of its own."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(count).tolist()
        yield from (order[begin : begin + size] for begin in range(0, count, size))


def train(model: LlamaForCausalLM, data: Sequence[Encoded], arguments: argparse.Namespace, seed: int) -> None:
    """AdamW as the pair's own recipe; the loss is the mean over a step's response tokens. Changes `model`."""
    steps = list(batches(len(data), epochs=arguments.epochs, size=arguments.batch, seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, len(steps)))
    model.train()
    for step in steps:
        tokens = sum(int((data[place].labels >= 0).sum()) for place in step)
        for place in step:
            (loss_of(model, data[place]) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()


def loss_of(model: LlamaForCausalLM, one: Encoded) -> torch.Tensor:
    """Summed NLL of the tokens with a label, scalar."""
    ids = torch.from_numpy(one.input_ids).long()
    labels = torch.from_numpy(one.labels).long()
    logits = model(input_ids=ids[None]).logits[0, :-1]
    return functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")


def run(known: Tables, method: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose, train, ask."""
    case, started = known.case, time.perf_counter()
    rows = chosen(known, method, count, case.data_seed)
    tokenizer = AutoTokenizer.from_pretrained(case.pair / "long")
    data = [encode_long(tokenizer, known.samples[row], template="gateau", max_length=LONG_WINDOW) for row in rows]
    torch.manual_seed(case.pair_seed)
    model = extended(case)
    if data:
        train(model, data, arguments, case.pair_seed)
    model.eval()
    recall = {
        name: float(np.mean([recall_at(model, each, repeats=arguments.repeats, seed=case.data_seed) for each in some]))
        for name, some in DISTANCES.items()
    }
    kinds = Counter(known.records[row]["source"] for row in rows)
    labels = [needs_far_context(kind) for kind in kinds.elements()]
    return {
        "seed": case.pair_seed,
        "method": method,
        "samples": len(rows),
        "need_far": float(np.mean(labels)) if labels else 0.0,
        "kinds": dict(kinds.most_common()),
        "recall": recall,
        "seconds": time.perf_counter() - started,
    }


def settings_of(known: Tables, method: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that decides a run but its seed, as JSON gives it back."""
    mix = pipeline_of(known.case.config()).by_key["training_mix"]
    code, chosen = {mix.key: mix.code_version}, {}
    if method not in BASELINES:
        what = labelled(known.case, method)
        code, chosen = code | code_of(what), what.chosen.options.model_dump(mode="json")
    return {
        **{name: value for name, value in vars(arguments).items() if name not in _DECIDE_NOTHING},
        "data": known.data,
        "recipe": RECIPE_VERSION,
        "theta": THETA,
        "distances": {name: list(some) for name, some in DISTANCES.items()},
        "options": chosen,
        "code": code,
    }


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    # Many samples, each seen once: a few, seen often, are learned by heart, and recall falls.
    parser.set_defaults(per_kind=80, base=400)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--baselines", nargs="*", default=list(BASELINES), choices=BASELINES)
    parser.add_argument("--share", type=float, default=0.15, help="of the pool: the budget")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="samples of a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--repeats", type=int, default=100, help="facts asked at each distance")
    parser.add_argument("--runs", type=Path, help="finished runs, one a line; default: in --folder")
    parser.add_argument("--finished", action="store_true", help="run nothing: print the table of the finished runs")
    parser.add_argument("--out", type=Path)
    return parser


def main(given: list[str] | None = None) -> int:
    """Parse, announce the time, run what is missing, print."""
    arguments = _options().parse_args(given)
    tables = {case.pair_seed: Tables(case) for case in cases_of(arguments)}
    labels = [*arguments.baselines, *arguments.methods]
    wanted = {(seed, label): settings_of(tables[seed], label, arguments) for seed in tables for label in labels}
    file = arguments.runs or arguments.folder / "effect_runs.jsonl"
    done = finished(file, wanted)
    missing = [key for key in wanted if key not in done]
    minutes = _minutes(missing, tables, arguments)
    say(f"{len(missing)} of {len(wanted)} runs are missing: about {minutes:.0f} minutes on a free core")
    to_run = [] if arguments.finished else missing
    for seed in dict(to_run):
        ready_pair(tables[seed].case)
    for seed, label in to_run:
        known = tables[seed]
        found = run(known, label, round(arguments.share * len(known.samples)), arguments)
        say(f"pair {seed}, {label}: far {found['recall']['far']:.3f}, {found['seconds']:.0f} s")
        done[seed, label] = found
        add(file, wanted[seed, label], found)
    runs = [done[key] for key in wanted if key in done]
    show(f"Recall after training; chance is 0.125\n{table(HEADER, rows_of(runs))}\n{_READING}")
    settings = [{"seed": seed, "method": label, **wanted[seed, label]} for seed, label in wanted]
    write_json(arguments.out, {"settings": settings, "machine": machine(), "runs": runs})
    return 0


def _minutes(missing: Sequence[Key], tables: Mapping[int, Tables], arguments: argparse.Namespace) -> float:
    """Of the missing runs, on one free core."""
    pools = {seed: len(tables[seed].records) for seed, _ in missing}
    total = sum(pools.values()) * SECONDS_PER_TABLE_ROW if arguments.methods else 0.0
    for seed, label in missing:
        samples = {"all": pools[seed], "untrained": 0}.get(label, arguments.share * pools[seed])
        total += samples * arguments.epochs * SECONDS_PER_SAMPLE + 5
    return total / 60


if __name__ == "__main__":
    raise SystemExit(main())
