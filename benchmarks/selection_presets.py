"""How well each preset finds the samples that need far context: several pairs and data sets of the synthetic language.

    .venv/bin/python benchmarks/selection_presets.py --seeds 5 6 7 --out build/benchmarks/presets.json

Prints a table and writes JSON. Pairs are kept in --folder, where selection.py keeps them too, and the scores of every
sample beside them (presets/scores-seed5.parquet). Seeds 0 to 4 were looked at when `robust` was chosen; report others.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from common_case import DATA_SEEDS, Case, ready_pair_of
from common_measure import machine, say, show, write_json
from transformers import AutoModelForCausalLM

from gateau_dagster import tables
from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.config.selection import PRESETS
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.demo.recall import recall_at
from gateau_dagster.demo.samples import FAR_KINDS, demo_samples
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import effective_max_length, load_model
from gateau_dagster.scoring.scorer import Request, score_samples
from gateau_dagster.selection.combine import combine
from gateau_dagster.selection.degeneration import check_all
from gateau_dagster.selection.statistics import auroc

DISTANCES = (64, 128, 512, 1000, 1500)
SECONDS_PER_SEED = 80  # pair, recall and 200 samples, on two free cores
SCORING = ScoringConfig(max_length=2048, dtype="float32", device="cpu")


def recalls(pair: Path, repeats: int) -> dict[str, dict[int, float]]:
    """Recall by distance of both models."""
    found = {}
    for name in ("short", "long"):
        model = AutoModelForCausalLM.from_pretrained(pair / name)
        found[name] = {distance: recall_at(model, distance, repeats=repeats) for distance in DISTANCES}
    return found


def scores(
    pair: Path, records: list[dict[str, str]], *, context: str, alpha: float | None, segment_length: int
) -> pl.DataFrame:
    """`combined_scores` of the records, with theta_A's `context` full or window."""
    names = {"id": "sample_id"}
    samples = [Sample(**{names.get(key, key): value for key, value in record.items()}) for record in records]
    scoring = SCORING.model_copy(update={"segment_length": segment_length})
    frames: dict[str, pl.DataFrame] = {}
    border: int | None = None  # tokens of a prompt that theta_A is shown
    for name, sight in (("short", context), ("long", "full")):
        config = ModelConfig.model_validate({"path": str(pair / name), "context": sight})
        loaded = load_model(config, dtype=scoring.dtype, device=scoring.device, folder=Path())
        length = effective_max_length(loaded, config, scoring)
        requests = [Request(sample=sample, perplexity=True, cam=name == "long") for sample in samples]
        border = length if sight == "window" else border
        given = {"max_length": length, "scoring": scoring, "visible_tokens": border}
        outcomes = list(score_samples(loaded, requests, **given, meter=Meter()))
        frames[name] = table([outcome.perplexity for outcome in outcomes], tables.PERPLEXITY)
        if name == "long":
            frames["cam"] = table([outcome.cam for outcome in outcomes], tables.CAM)
    tables_of_pair = (frames["short"], frames["long"], frames["cam"])
    return combine(*tables_of_pair, preset="robust", alpha=alpha)


def table(rows: list[Any], columns: tuple[tables.Column, ...]) -> pl.DataFrame:
    """A promised table of the rows; the synthetic samples give no rejects."""
    assert not any(isinstance(row, Reject) for row in rows)
    return pl.DataFrame([asdict(row) for row in rows], schema=tables.schema(columns))


def figures(combined: pl.DataFrame, records: list[dict[str, str]], alpha: float | None) -> dict[str, Any]:
    """AUROC of each preset's score, HMP and CAS for "needs far context", and the verdict on its normalisation."""
    kinds = pl.DataFrame({"sample_id": [r["id"] for r in records], "kind": [r["source"] for r in records]})
    joined = combined.join(kinds, on="sample_id")
    labels = joined["kind"].is_in(FAR_KINDS).to_list()
    verdicts = {found.preset: found.sentence for found in check_all(combined, alpha=alpha)}
    return {
        preset: {
            **{part: auroc(joined[f"{part}_{preset}"].to_list(), labels) for part in ("score", "hmp", "cas")},
            "verdict": verdicts[preset],
        }
        for preset in PRESETS
    }


def measure(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything for one seed, of the pair and of the data."""
    case = Case(folder=arguments.folder, pair_seed=seed, data_seed=DATA_SEEDS + seed, untrained=arguments.tiny)
    started = time.process_time()
    ready_pair_of(case, seed)
    built = time.process_time() - started
    say(f"seed {seed}: recall and scores")
    records = demo_samples(arguments.samples, case.data_seed)
    given = {"context": arguments.context, "alpha": arguments.alpha, "segment_length": arguments.segment_length}
    combined = scores(case.pair, records, **given)
    kept = arguments.folder / "presets" / f"scores-seed{seed}.parquet"
    kept.parent.mkdir(parents=True, exist_ok=True)
    combined.write_parquet(kept)
    return {
        "seed": seed,
        "build_cpu_seconds": built,
        "recall": recalls(case.pair, arguments.repeats),
        "presets": figures(combined, records, arguments.alpha),
    }


def printed(results: list[dict[str, Any]]) -> str:
    """Lines of each seed: its presets, then what its models recall."""
    lines = ["seed  preset    AUROC: score    hmp    cas"]
    for result in results:
        for preset, found in result["presets"].items():
            values = "  ".join(f"{found[part]:.3f}" for part in ("score", "hmp", "cas"))
            lines.append(f"{result['seed']:>4}  {preset:<9}        {values}   {found['verdict']}")
        for model, recall in result["recall"].items():
            shown = "  ".join(f"{distance}: {share:.2f}" for distance, share in recall.items())
            lines.append(f"{result['seed']:>4}  recall of {model:<5}  {shown}")
    return "\n".join(lines)


def parse(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--alpha", type=float, help="default: each preset's own")
    parser.add_argument("--segment-length", type=int, default=128)
    parser.add_argument("--context", choices=["window", "full"], default="window", help="what theta_A may see")
    parser.add_argument("--repeats", type=int, default=100, help="facts asked at each distance")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/selection"), help="for pairs and scores")
    parser.add_argument("--tiny", action="store_true", help="untrained pairs: tests the benchmark, measures nothing")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Parse, announce the time, measure, print."""
    arguments = parse(given)
    minutes = len(arguments.seeds) * SECONDS_PER_SEED / 60
    say(f"{len(arguments.seeds)} seeds, about {minutes:.0f} minutes on two free cores")
    results = [measure(seed, arguments) for seed in arguments.seeds]
    settings = {key: value for key, value in vars(arguments).items() if key not in {"out", "folder"}}
    show(printed(results))
    write_json(arguments.out, {"settings": settings, "machine": machine(), "seeds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
