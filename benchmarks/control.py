"""Compare the control, which needs no labels, with the AUROC by labels: does its interval hold the truth?

    .venv/bin/python benchmarks/control.py --pair FOLDER --seeds 3 --noise 0 0.05 0.1 0.2 --out build/control.json
    .venv/bin/python benchmarks/control.py --data real_text.jsonl --model MODEL --window 288 --out build/control.json

--pair is the demo's pair of models (the work folder's `demo/…/pair`), whose samples have known needs. --noise damages
theta_B's weights by so many of their standard deviations, so that the ranking errs. --data takes the samples of
real_text.py or qmsum.py. A configuration is a data set, a model and a score. The truth is the AUROC over the labels of
the same samples. Each line has it beside the control's AUROC with its interval.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import torch
from common import benchmark_parser, say, write_json

from gateau_dagster import tables
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.features.control.design import DRAWN, EXCHANGED, DrawnSample, Words, drawn, exchanged
from gateau_dagster.features.control.result import compared
from gateau_dagster.features.demo.prepare import FAR_KINDS, write_demo_samples
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.loading import effective_max_length, load_model
from gateau_dagster.models.model_facts import visible_tokens
from gateau_dagster.models.prompt import token_offsets
from gateau_dagster.scoring.pair_tables import pair_tables
from gateau_dagster.scoring.sample_table import RequestedRow, Running
from gateau_dagster.selection.combine import join_shard, ranked
from gateau_dagster.selection.statistics import auroc_of_all

TEXTS = ("sample_id", "source", "context", "instruction", "response")
ALPHAS = {"robust": (0.5, 1.0, 0.0), "paper": (None,), "official": (None,)}
"""The scores by preset: with both terms of `robust`, and with each of them."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both models, and the function that scores samples."""

    config: Config
    loaded: dict[str, LoadedModel]

    @classmethod
    def of(cls, short: str, long: str, window: int, *, segment: int, dtype: str) -> "Pair":
        """Load theta_A, which is shown `window` tokens, and theta_B."""
        models = {"short": {"path": short, "context": "window", "window": window}, "long": {"path": long}}
        scoring = {"max_length": 4096, "segment_length": segment, "dtype": dtype, "device": "cpu"}
        config = Config.model_validate({"long_sft": {"path": "none.jsonl"}, "models": models, "scoring": scoring})
        options = {"dtype": config.scoring.dtype, "device": "cpu", "folder": Path()}
        return cls(config=config, loaded={name: load_model(config.models[name], **options) for name in models})

    def damage(self, noise: float, seed: int) -> None:
        """Add noise of so many standard deviations of each of theta_B's matrices."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.loaded["long"].model.parameters():
                if weight.dim() > 1:
                    weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator).to(weight.dtype))

    def measures(self, samples: Sequence[Sample]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return MEASURES, and `sample_id` with the tokens of the context that theta_A and theta_B do not see."""
        made = {table.asset: table for table in pair_tables(self.config)}
        rows: dict[str, list[dict[str, Any]]] = {asset: [] for asset in made}
        own = made["perplexity/short"].score(self.loaded["short"], samples, self._running("short"))
        rows["perplexity/short"] += [dict(row) for row in own if not isinstance(row, Reject)]
        both = frozenset({"perplexity/long", "cam"})
        shared, running = made["cam"].shared, self._running("long")
        assert shared is not None
        asked = (RequestedRow(sample=each, assets=both) for each in samples)
        for outcome in shared.score(self.loaded["long"], asked, dict.fromkeys(both, running)):
            for asset, row in outcome.items():
                if not isinstance(row, Reject):
                    rows[asset].append(dict(row))
        frames = {
            asset: pl.DataFrame(rows[asset], schema=tables.schema(tuple(made[asset].columns)), orient="row")
            for asset in made
        }
        cut = (
            frames[f"perplexity/{name}"].select("sample_id", pl.col("truncated_tokens").alias(name))
            for name in ("short", "long")
        )
        return join_shard(frames).frame, next(cut).join(next(cut), on="sample_id")

    def _running(self, name: str) -> Running:
        config = self.config
        longest = effective_max_length(self.loaded[name], config.models[name], config.scoring)
        visible = visible_tokens(config)
        return Running(max_length=longest, scoring=config.scoring, work=ForwardWork(), visible_tokens=visible)


def compare(pair: Pair, records: Sequence[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Yield the truth and the control of each score on labelled records."""
    samples = {
        each["sample_id"]: Sample(
            **{key: each[key] for key in ("sample_id", "source", "context", "instruction", "response")}
        )
        for each in records
    }
    needs = {each["sample_id"]: bool(each["needs_far"]) for each in records}
    data, cut = pair.measures([*samples.values()])
    places = {key: (short, long) for key, short, long in cut.filter(pl.col("short") > pl.col("long")).iter_rows()}
    shown = []
    for key in drawn([*places], DRAWN):
        begins = [begin for begin, _ in token_offsets(pair.loaded["long"].tokenizer, samples[key].context)]
        border, start = (begins[token] if token else 0 for token in places[key])
        shown.append(DrawnSample(sample=samples[key], start=start, border=border))
    by_words = Words(shown)
    needing = [place for place in range(len(shown)) if by_words.needs_far(place)]
    others = [place for place in range(len(shown)) if place not in {*needing}]
    made, _ = pair.measures([exchanged(shown, place, by_words) for place in [*others, *needing][:EXCHANGED]])
    far = pl.Series([shown[place].sample.sample_id for place in needing], dtype=pl.String)
    for preset in PRESETS:
        for alpha in ALPHAS[preset]:
            scores = ranked(data, preset=preset, alpha=alpha).select("sample_id", "score").drop_nulls()
            truth = auroc_of_all(scores["score"].to_numpy(), np.array([needs[key] for key in scores["sample_id"]]))
            found = compared(data, far, made, preset=preset, alpha=alpha)
            yield {
                "data": name,
                "score": preset if alpha is None else f"{preset}, alpha {alpha:g}",
                "truth": truth,
                "control": found.auroc,
                "low": found.low,
                "high": found.high,
                "holds": found.low <= truth <= found.high,
                "far": found.far,
                "right": sum(needs[key] for key in far),
                "exchanged": found.exchanged,
            }


def main() -> None:
    """Compare the control with the labels in every configuration."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--pair", type=Path, default=None, help="folder of the demo's pair")
    parser.add_argument("--seeds", type=int, default=2, help="data sets of the demo's language")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0], help="damage of theta_B")
    parser.add_argument("--samples", type=int, default=120, help="of each data set")
    parser.add_argument("--data", type=Path, help="labelled samples")
    parser.add_argument("--model", help="of --data")
    parser.add_argument("--window", type=int, default=256, help="theta_A's, in tokens")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.data is not None:
        records = [json.loads(line) for line in options.data.read_text().splitlines()]
        kept = {*drawn([each["sample_id"] for each in records], options.samples)}
        pair = Pair.of(options.model, options.model, options.window, segment=64, dtype="bfloat16")
        rows += compare(pair, [each for each in records if each["sample_id"] in kept], options.data.stem)
    for seed in range(options.seeds if options.pair is not None else 0):
        for noise in options.noise:
            with TemporaryDirectory() as folder:
                write_demo_samples(Path(folder) / "samples.jsonl", options.samples, 100 * seed + round(1000 * noise))
                lines = (Path(folder) / "samples.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            records = [{**each, "sample_id": each["id"], "needs_far": each["source"] in FAR_KINDS} for each in records]
            pair = Pair.of(
                f"{options.pair}/short", f"{options.pair}/long", options.window, segment=128, dtype="float32"
            )
            pair.damage(noise, seed)
            rows += compare(pair, records, f"demo, seed {seed}, noise {noise:g}")
            for row in rows[-5:]:
                found = [f"{row[name]:.3f}" for name in ("truth", "control", "low", "high") if row[name] is not None]
                say(f"{row['data']}, {row['score']}: truth, control and interval {', '.join(found)}")
            write_json(options.out, {"rows": rows})
    held = sum(row["holds"] for row in rows)
    say(f"The interval holds the truth in {held} of {len(rows)} configurations.")
    write_json(options.out, {"rows": rows})


if __name__ == "__main__":
    main()
