"""Measure how well the check `needed` finds questions that need every passage: AUROC by model, on real text.

    .venv/bin/python benchmarks/needed_passages.py --nq natural_questions.jsonl.gz --models MODEL [MODEL ...] \
        --out build/benchmarks/needed_passages.json

Questions with known passages are put together (real_text.py tells where --nq comes from). `both`: two questions, and a
passage answers each. `two_hop`: a question about another one's answer, without its name. Of the others one passage is
enough: `one_holds_both`: the questions of `both`, whose two passages stand in one, beside one that looks alike.
`one_asked`: the passages of `both`, and one of the questions. The score of a sample is its least gain, as
`synthesis.checks.needed` takes it. Intervals (95 %) resample samples. `answerable` leaves out the samples whose
answer has a mean probability below KNOWN with all passages: what theta_B cannot answer, it cannot check.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from common import benchmark_parser, machine, say, settings_of, show, table, write_json
from common_ranking import FIGURES, evaluated, named_estimates, tasks_of
from real_text_passages import FOLDS, SEPARATOR, Passages, Question, read_questions, stands_in

from gateau_dagster.config import ScoringConfig
from gateau_dagster.config.models import ModelConfig
from gateau_dagster.config.synthesis import SynthesisChecksConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.models.loading import LoadedModel, load_model
from gateau_dagster.synthesis.checks import Given, answer_probabilities, gain, without_each

ALL = "all kinds"
NEEDS_ALL = {"both": True, "two_hop": True, "one_holds_both": False, "one_asked": False}
KNOWN = 0.1  # least mean probability of an answer that theta_B can give


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A question about passages."""

    kind: str
    passages: tuple[str, ...]
    question: str
    answer: str


def composed(known: Passages, count: int, seed: int) -> Iterator[Composed]:
    """Yield `count` samples of each kind, of `two_hop` as many as there are."""
    rng = Random(seed)
    for _ in range(count):
        first, second = _apart(known, rng)
        asked = f"Answer two questions. First: {first.asked} Second: {second.asked}"
        answers = f"First: {first.answer}. Second: {second.answer}."
        passages = [first.shown, second.shown]
        yield Composed(kind="both", passages=tuple(passages), question=asked, answer=answers)
        beside = next(
            each.shown
            for each in known.hard_distractors(second, 20)
            if not stands_in(first.aliases, each.words) and each != first
        )
        whole = [SEPARATOR.join(passages), beside]
        rng.shuffle(whole)
        yield Composed(kind="one_holds_both", passages=tuple(whole), question=asked, answer=answers)
        yield Composed(kind="one_asked", passages=tuple(passages), question=first.asked, answer=f"{first.answer}.")
    for first, second, entity in rng.sample(known.hops, min(count, len(known.hops))):
        lowered, name = second.text.lower(), entity.lower()
        if name in lowered:
            veiled = lowered.replace(name, "X", 1).rstrip(" ?")
            asked = f"Let X be the answer to the question “{first.asked}” {veiled[0].upper()}{veiled[1:]}?"
            both = (first.shown, second.shown)
            yield Composed(kind="two_hop", passages=both, question=asked, answer=f"{second.answer}.")


def _apart(known: Passages, rng: Random) -> tuple[Question, Question]:
    """Return two questions; neither's passage answers the other."""
    while True:
        first, second = rng.sample(known.askable, 2)
        mixed = stands_in(first.aliases, second.words) or stands_in(second.aliases, first.words)
        if not mixed and known.hard_distractors(second, 1):
            return first, second


def measured(loaded: LoadedModel, samples: Sequence[Composed], scoring: ScoringConfig, draws: int) -> dict[str, Any]:
    """Return AUROC of the least gain by kind, and the share of each kind that the default threshold accepts."""
    given = (
        Given(context=context, question=each.question, answer=each.answer)
        for each in samples
        for context in without_each(each.passages)
    )
    found = answer_probabilities(loaded, given, scoring, max_length=scoring.max_length)
    least, known = list[float](), list[float]()
    for number, each in enumerate(samples, start=1):
        whole, *others = (_scored(next(found)) for _ in range(len(each.passages) + 1))
        least.append(min(gain(whole, other) for other in others))
        known.append(float(whole.mean()))
        if number % 50 == 0:
            say(f"  {number} of {len(samples)} samples")
    kinds = [each.kind for each in samples]
    sources = [kinds, [kind if p >= KNOWN else "" for kind, p in zip(kinds, known, strict=True)]]
    figures = [
        evaluated(
            tasks_of([of], NEEDS_ALL, {ALL: list(NEEDS_ALL)}, set(NEEDS_ALL)), {"needed": [np.array(least)]}, draws
        )
        for of in sources
    ]
    bound = SynthesisChecksConfig().needed
    assert bound is not None
    there = [kind for kind in NEEDS_ALL if kind in kinds]
    accepted = {kind: [value >= bound for value, of in zip(least, kinds, strict=True) if of == kind] for kind in there}
    return {
        "samples": {kind: kinds.count(kind) for kind in NEEDS_ALL},
        "answerable_samples": {kind: sources[1].count(kind) for kind in NEEDS_ALL},
        "figures": named_estimates(figures[0])["needed"],
        "answerable": named_estimates(figures[1])["needed"],
        "accepted": {kind: sum(of) / len(of) for kind, of in accepted.items()},
        "probability": {kind: float(np.mean([p for p, of in zip(known, kinds, strict=True) if of == kind]))
                        for kind in accepted},
    }  # fmt: skip


def _scored(found: Any) -> Any:
    if isinstance(found, Reject):
        raise RuntimeError(found.reason)  # without the sample it would be another set
    return found


def parse(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--nq", required=True, help="questions with passages: see the help of real_text.py")
    add("--models", nargs="+", required=True, help="folders or hub names")
    add("--count", type=int, default=150, help="samples of each kind; of two_hop as many as there are")
    add("--fold", choices=FOLDS, default="report", help="half of the questions")
    add("--seed", type=int, default=0)
    capable = torch.cpu.get_capabilities()
    fast = "bfloat16" if capable.get("avx512_bf16") or capable.get("amx_bf16") else "float32"
    add("--dtype", choices=["float32", "bfloat16"], default=fast, help="default: bfloat16 where the processor has it")
    add("--device", default="cpu", help="as scoring.device")
    add("--draws", type=int, default=1000, help="of the bootstrap")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Parse, measure each model, print, write."""
    arguments = parse(given)
    started = time.perf_counter()
    known = Passages(read_questions(Path(arguments.nq)), arguments.fold)
    samples = list(composed(known, arguments.count, arguments.seed))
    scoring = ScoringConfig(dtype=arguments.dtype, device=arguments.device, max_length=8192)
    results = {}
    for path in arguments.models:
        name = Path(path).name
        say(f"{name}: {len(samples)} samples")
        loaded = load_model(ModelConfig(path=path), dtype=scoring.dtype, device=scoring.device, folder=Path())
        results[name] = measured(loaded, samples, scoring, arguments.draws)
        write_json(arguments.out, {
            "settings": settings_of(arguments, "nq", "models"),
            "machine": machine(),
            "seconds": time.perf_counter() - started,
            "results": results,
        }, announce=False)  # fmt: skip
    for title in ("figures", "answerable"):
        rows = [
            [kind, *(_shown(found[title], kind) for found in results.values())] for kind in (ALL, *NEEDS_ALL)
        ]  # fmt: skip
        show(f"\nAUROC of the least gain, {title} (95 %)\n" + table(["kind", *results], rows))
    there = next(iter(results.values()))["accepted"]
    rows = [[kind, *(f"{found['accepted'][kind]:.0%}" for found in results.values())] for kind in there]
    show("\naccepted by the default threshold\n" + table(["kind", *results], rows))
    return 0


def _shown(figures: dict[str, Any], task: str) -> str:
    return figures[task][FIGURES[0]].show() if task in figures else ""


if __name__ == "__main__":
    raise SystemExit(main())
