"""From selection to effect: when does a choice teach a model more far facts than a random one of equal size?

    .venv/bin/python benchmarks/effect.py --out build/benchmarks/effect.json

The model is theta_A of the demo's pair with a rotary base (THETA) that extends its window a part of the way: it recalls
near facts and about half of the far ones, so that data can teach it and can harm it. The pools hold 2 to 45 % samples
that need far text, by their labels. They are parts of one set per seed, whose tables are made once. Every arm fills the
same number of samples by the product's own rules, and its model differs in nothing else: equal weights at the start,
and common samples in the same order. `mix` keeps what `random` drew of its other classes, as far as there is room.

Every gain is set beside its forecast: what a learning curve of two pilot seeds, fitted before, expects in each pool.

A model that was trained is a line of --runs. It is not trained again unless what decides it has changed: the sequences
and their order, the pair, or a setting. Arms that choose the same samples share it. Seeds are run one after the other,
first with the arms of the forecast, then with all others: a run that is stopped leaves complete seeds.
"""

import hashlib
import json
import math
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import cycle, islice
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from common import benchmark_parser, estimate_text, machine, say, settings_of, show, table, write_json
from common_selection import LabelledCase, Record, Tables, asked, method_scores
from kinds import KINDS, groups, harder_samples, needs_far_context
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.features.demo.config import RECIPE_VERSION
from gateau_dagster.features.demo.language import (
    BOS,
    SENTENCE_WORDS,
    WORD_IDS,
    document,
    random_facts,
    recall_instruction,
)
from gateau_dagster.features.demo.pair import LONG_WINDOW, build_pair, pair_config, pair_is_current, rate_factor
from gateau_dagster.features.demo.prepare import KINDS as BASE_KINDS
from gateau_dagster.features.demo.prepare import demo_samples
from gateau_dagster.features.evaluation.statistics.compare import Interval
from gateau_dagster.selection.evidence import CLASS_OF, FAR, dependencies, token_sums
from gateau_dagster.selection.forecast import Forecast, forecast, mismatch
from gateau_dagster.selection.rules import chosen_ids
from gateau_dagster.selection.trim import trim_figures, trims
from gateau_dagster.training.encode import Encoded, encode_long

FAR_SHARES = (0.02, 0.05, 0.1, 0.2, 0.45)
MOST_SAMPLES, MOST_FAR = 1200, 216  # of a pool
LONGEST = 800  # words of a context; they are tokens
DEFICIT_SAMPLES = 60  # of each label, for the far deficit of the model before training
DATA_SEEDS = {True: 1000, False: 2000}  # added to a pair's seed: of the far samples, and of the others
USE = 0.5  # of far text
TAU = 1.0
THETA = 2e4  # theta_A's own is 1e4, theta_B's 1e6
DISTANCES = {"far": (400, 550, 700), "near": (64,)}
QUESTIONS = 100  # per distance
SEEDS = (60, 61, 62, 63, 64, 65, 66, 67)
CORE = ("untrained", "random", "mix", "mix_tau")  # of the forecast
OTHERS = ("top", "oracle", "clean", "mix_trim", "random_again")
DRAWS = {"random": "drawn", "random_again": "drawn_again"}  # an arm, and the column of its order
OTHER_DRAW = 1000  # added to a seed
SAME_EVERYWHERE = 0.0  # the share of the pool in a key of a run that no pool decides


@dataclass(frozen=True, kw_only=True)
class Case(LabelledCase):
    """One pair of the synthetic language and the samples of its pools: far ones first, kinds in turns."""

    seed: int
    most_samples: int = MOST_SAMPLES
    most_far: int = MOST_FAR

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"pair {self.seed}"

    @property
    def pair(self) -> Path:
        """Return the folder of the pair."""
        return self.folder / "pairs" / f"seed{self.seed}"

    def records(self) -> list[Record]:
        """Return the far samples, then the others."""
        sizes = [pool_size(share, self.most_samples, self.most_far) for share in FAR_SHARES]
        most = {True: max(far for far, _ in sizes), False: max(rest for _, rest in sizes)}
        return [record for far in (True, False) for record in _samples(most[far], self.seed, far=far)]

    def models(self) -> dict[str, Any]:
        """Return the pair, theta_A within its window."""
        short, long = ({"path": str((self.pair / name).absolute())} for name in ("short", "long"))
        return {"short": short | {"context": "window"}, "long": long}

    def scoring(self) -> dict[str, Any]:
        """Return the length that theta_B reads."""
        return {"max_length": 2048}


@dataclass(frozen=True, kw_only=True)
class ExtendedCase(Case):
    """Some samples of a case, scored by the model that is trained in place of theta_B: for its far deficit."""

    theta: float

    def records(self) -> list[Record]:
        """Return the first far samples and the first others."""
        each = min(DEFICIT_SAMPLES, self.most_far)
        return [record for far in (True, False) for record in _samples(each, self.seed, far=far)]

    def models(self) -> dict[str, Any]:
        """Return the pair with the extended theta_A as the long model."""
        return super().models() | {"long": {"path": str(self.extended.absolute())}}

    @property
    def extended(self) -> Path:
        """Return the folder of the model before training."""
        return self.folder / "extended" / f"seed{self.seed}-{self.theta:g}"


def pool_size(share: float, most_samples: int, most_far: int) -> tuple[int, int]:
    """Return the far samples and the others of the largest pool of this share that the limits allow."""
    far = min(round(share * most_samples), most_far)
    return far, min(round(far / share), most_samples) - far


def _samples(count: int, seed: int, *, far: bool) -> list[Record]:
    """Return `count` samples of one label, all kinds that the pair can read in turns, contexts of at most LONGEST."""
    kinds = [kind for kind in groups()["within reach"] if needs_far_context(kind) == far]
    harder = [kind for kind in kinds if kind in KINDS]
    each, by_kind = -(-count // len(kinds)), dict[str, list[Record]]()
    seed += DATA_SEEDS[far]
    many = 6 * each + 40  # of each kind, of which a quarter has a context that is short enough
    made = demo_samples(many * len(BASE_KINDS), seed) + harder_samples(many * len(harder), seed, kinds=harder)
    for record in made:
        if record["source"] in kinds and len(record["context"].split()) <= LONGEST:
            by_kind.setdefault(record["source"], []).append(record)
    turns = {kind: iter(by_kind[kind]) for kind in kinds}
    return [next(turns[kind]) for kind in islice(cycle(kinds), count)]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The choice of one arm from a pool: ids, and the tokens of trimmed contexts by id."""

    ids: list[str]
    shown: Mapping[str, int]


class Pools:
    """The scored set of a seed, and what each arm chooses from each pool."""

    def __init__(self, case: Case) -> None:
        self.case, self.known = case, Tables(case)

    @cached_property
    def samples(self) -> pl.DataFrame:
        """Return the columns that rules read, `far` bool (the label), `drawn` and `drawn_again` f64 (method random)."""
        known, seed = self.known, self.case.seed
        long, cam = known["perplexity/long"], known["cam"]
        drawn, again = (
            method_scores(known, asked(self.case, "random", {"seed": each})) for each in (seed, seed + OTHER_DRAW)
        )
        labels = pl.DataFrame({
            "sample_id": [record["id"] for record in known.records],
            "source": [record["source"] for record in known.records],
            "far": [needs_far_context(record["source"]) for record in known.records],
            "drawn": drawn,
            "drawn_again": again,
        })  # fmt: skip
        return (
            labels.join(known["combined_scores"].select("sample_id", "score", "rank"), on="sample_id", how="left")
            .join(dependencies(cam, long).select("sample_id", "dependency"), on="sample_id", how="left")
            .join(known["raw_long_sft"].select("sample_id", "digest"), on="sample_id")
            .join(long.select("sample_id", "context_tokens", "response_tokens"), on="sample_id", how="left")
            .join(token_sums(cam, long).select("sample_id", "far_tokens"), on="sample_id", how="left")
            .with_columns(tokens=pl.col("context_tokens") + pl.col("response_tokens"))
            .sort("sample_id")
        )

    def pool(self, share: float) -> pl.DataFrame:
        """Return the samples of a pool: the first of either label, in the order of the set."""
        sizes = pool_size(share, self.case.most_samples, self.case.most_far)
        first = {True: sizes[0], False: sizes[1]}
        ids = list[str]()
        for record in self.known.records:
            far = needs_far_context(record["source"])
            if first[far]:
                first[far] -= 1
                ids.append(record["id"])
        return self.samples.filter(pl.col("sample_id").is_in(ids))

    def chosen(self, arm: str, share: float, count: int) -> Arm:
        """Return the choice of an arm. Its rules are the product's; only `oracle` sees labels, as dependencies."""
        pool = self.pool(share)
        mix = RuleConfig(rule="mix", count=count, use={"far": USE}, seed=self.case.seed)
        if arm in DRAWS:
            rank = pl.col(DRAWS[arm]).rank("ordinal", descending=True)
            drawn = pool.with_columns(score=DRAWS[arm], rank=rank)
            return Arm(ids=chosen_ids(drawn, RuleConfig(rule="top", count=count)), shown={})
        if arm == "mix_trim":
            return self._trimmed(pool, mix)
        if arm == "oracle":
            missed = pl.when(pl.col("dependency").is_in(FAR)).then(pl.lit("closed_book")).otherwise("dependency")
            pool = pool.with_columns(dependency=pl.when("far").then(pl.lit("one_far")).otherwise(missed))
        rules = {
            "mix": mix,
            "oracle": mix,
            "mix_tau": mix.model_copy(update={"tau": TAU}),
            "clean": RuleConfig(rule="clean", count=count, seed=self.case.seed),
            "top": RuleConfig(rule="top", count=count),
        }
        return Arm(ids=chosen_ids(pool, rules[arm]), shown={})

    def deficit_sums(self, theta: float) -> pl.DataFrame:
        """Return the terms of the far deficit of the model before training, for `forecast`."""
        case = ExtendedCase(**{each.name: getattr(self.case, each.name) for each in fields(self.case)}, theta=theta)
        if not case.extended.is_dir():
            AutoTokenizer.from_pretrained(case.pair / "long").save_pretrained(case.extended)
            extended(case.pair, theta).save_pretrained(case.extended)
        known = Tables(case)
        return token_sums(known["cam"], known["perplexity/long"])

    def forecast(self, share: float, count: int, sums: pl.DataFrame) -> Forecast:
        """Return the product's forecast of `mix` in a pool, with its verdict. `sums`: from deficit_sums."""
        rule = RuleConfig(rule="mix", count=count, use={"far": USE}, seed=self.case.seed)
        return forecast(self.pool(share), rule, sums, use=USE, seed=self.case.seed)

    def _trimmed(self, pool: pl.DataFrame, mix: RuleConfig) -> Arm:
        """Return the choice of `mix` for as many tokens as its choice of untrimmed samples has."""
        tokens = int(pool.filter(pl.col("sample_id").is_in(chosen_ids(pool, mix)))["tokens"].sum())
        figures = trim_figures(self.known["cam"], self.known["perplexity/long"], self.known["perplexity/short"])
        cut = trims(figures.filter(pl.col("sample_id").is_in(pool["sample_id"].implode())), seed=self.case.seed)
        left = pl.coalesce(pl.col("shown_tokens") + pl.col("response_tokens"), "tokens")
        shorter = pool.join(cut, on="sample_id", how="left").with_columns(tokens=left)
        rule = RuleConfig(rule="mix", budget=tokens, use={"far": USE}, seed=self.case.seed)
        return Arm(ids=chosen_ids(shorter, rule), shown=dict(cut.iter_rows()))


@cache
def pools_of(case: Case) -> Pools:
    """Return the pools of a case, which it takes ten seconds to make."""
    return Pools(case)


def extended(pair: Path, theta: float) -> LlamaForCausalLM:
    """Return theta_A with theta_B's window and the rotary base `theta`."""
    model = LlamaForCausalLM(pair_config(LONG_WINDOW, theta))
    model.load_state_dict(LlamaForCausalLM.from_pretrained(pair / "short").state_dict())
    return model


def last_states(model: LlamaForCausalLM, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the final hidden states of the last `rows` tokens, [batch, rows, hidden].

    The last layer computes only these, which halves the time of a model of two layers.
    """
    decoder: Any = model.model
    states = decoder.embed_tokens(ids)
    places = torch.arange(ids.shape[1])[None]
    cos, sin = decoder.rotary_emb(states, places)
    for layer in decoder.layers[:-1]:
        states = layer(states, attention_mask=None, position_ids=places, position_embeddings=(cos, sin))
    layer = decoder.layers[-1]
    attention, normed = layer.self_attn, layer.input_layernorm(states)

    def heads(values: torch.Tensor) -> torch.Tensor:
        return values.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    query, key = heads(attention.q_proj(normed[:, -rows:])), heads(attention.k_proj(normed))
    query, _ = apply_rotary_pos_emb(query, query, cos[:, -rows:], sin[:, -rows:])
    key, _ = apply_rotary_pos_emb(key, key, cos, sin)
    causal = torch.ones(rows, ids.shape[1], dtype=torch.bool).tril(ids.shape[1] - rows)
    mixed = functional.scaled_dot_product_attention(query, key, heads(attention.v_proj(normed)), attn_mask=causal)
    states = states[:, -rows:] + attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return decoder.norm(states + layer.mlp(layer.post_attention_layernorm(states)))


def loss_of(model: LlamaForCausalLM, one: Encoded) -> torch.Tensor:
    """Return the summed NLL of the tokens with a label, which are the last ones: scalar."""
    labels = torch.from_numpy(one.labels[one.labels >= 0]).long()
    ids = torch.from_numpy(one.input_ids).long()
    assert (one.labels[-len(labels) :] >= 0).all()
    logits = model.lm_head(last_states(model, ids[None], len(labels) + 1)[0, :-1])
    return functional.cross_entropy(logits, labels, reduction="sum")


def train(model: LlamaForCausalLM, data: Sequence[Encoded], options: Namespace) -> None:
    """Train `model` in place, each sample once in the given order, by AdamW with the rates of the pair's recipe.

    The loss of a step is the mean over the response tokens of its samples.
    """
    steps = [data[begin : begin + options.batch] for begin in range(0, len(data), options.batch)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, len(steps)))
    for step in steps:
        tokens = sum(int((one.labels >= 0).sum()) for one in step)
        for one in step:
            (loss_of(model, one) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)


def questions(distance: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts that ask for a fact `distance` tokens before the context's end, int64 [count, n], and values."""
    rng = np.random.default_rng((seed, distance))
    after, rows, values = distance // SENTENCE_WORDS, [], []
    for _ in range(count):
        (fact,) = random_facts(rng, 1)
        words = [BOS, "###", "Input:", *document(rng, after + 2, {2: [fact]})]
        words += ["###", "Instruction:", *recall_instruction([fact]), "###", "Response:", fact.attribute]
        rows.append([WORD_IDS[word] for word in words])
        values.append(WORD_IDS[fact.value])
    return torch.tensor(rows), torch.tensor(values)


@torch.no_grad()
def recall(model: LlamaForCausalLM, options: Namespace, seed: int) -> dict[str, float]:
    """Return the share of far and near facts whose value is the likeliest word, and its mean NLL. Chance is 1/8."""
    values = dict[str, float]()
    for name, distances in DISTANCES.items():
        right, nll = list[float](), list[float]()
        for distance in distances:
            ids, value = questions(distance, options.questions, seed)
            logits = torch.cat([model.lm_head(last_states(model, some, 1))[:, 0] for some in ids.split(10)])
            right.append(float((logits.argmax(-1) == value).float().mean()))
            nll.append(float(functional.cross_entropy(logits, value)))
        values |= {name: float(np.mean(right)), f"{name}_nll": float(np.mean(nll))}
    return values


def run(pools: Pools, arm: str, share: float, options: Namespace, done: dict[str, Any]) -> dict[str, Any] | None:
    """Return the recall of a model trained on an arm's choice; None if it is missing under --finished.

    It is trained unless `done` has a model of the same sequences; `done` and --runs then gain a line.
    """
    case, began = pools.case, time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(case.pair / "long")
    choice = Arm(ids=[], shown={}) if arm == "untrained" else pools.chosen(arm, share, options.count)
    samples = {sample.sample_id: sample for sample in pools.known.samples}
    # The order of a sample does not depend on which others are chosen.
    order = sorted(choice.ids, key=lambda name: hashlib.sha256(f"{case.seed}/{name}".encode()).digest())
    data = [
        encode_long(
            tokenizer,
            samples[name],
            template="gateau",
            max_length=LONG_WINDOW,
            context_tokens=choice.shown.get(name),
        )
        for name in order
    ]
    key = _key(data, case, options)
    if key not in done:
        if options.finished:
            return None
        model = extended(case.pair, options.theta)
        torch.manual_seed(case.seed)
        train(model, data, options)
        line = {"key": key, "seed": case.seed, "recall": recall(model, options, DATA_SEEDS[True] + case.seed)}
        done[key] = line | {"seconds": time.perf_counter() - began}
        options.runs.parent.mkdir(parents=True, exist_ok=True)
        add_run(options.runs, done[key])
        recalls = " ".join(f"{name} {done[key]['recall'][name]:.3f}" for name in DISTANCES)
        say(f"{case.name}, {arm} at {share:.0%}: {recalls}, {done[key]['seconds']:.0f} s")
    chosen = pools.samples.filter(pl.col("sample_id").is_in(choice.ids))
    shown = chosen["dependency"].replace_strict(CLASS_OF, default=None, return_dtype=pl.String)
    return {
        "seed": case.seed,
        "arm": arm,
        "pool": share,
        "samples": chosen.height,
        "tokens": sum(len(one.input_ids) for one in data),
        "response_tokens": sum(int((one.labels >= 0).sum()) for one in data),
        "far": int(chosen["far"].sum()),
        "shown_far": int((shown == "far").sum()),
        "far_tokens": int(chosen["far_tokens"].sum()),
        "unpredictable": int((shown == "unpredictable").sum()),
        "kinds": dict(Counter(chosen["source"].to_list()).most_common()),
        "trimmed": sum(name in choice.shown for name in choice.ids),
        "recall": done[key]["recall"],
    }


def _key(data: Sequence[Encoded], case: Case, options: Namespace) -> str:
    """Return a digest of what decides a trained model and what it is asked."""
    names = ("batch", "rate", "questions")
    settings = [{name: getattr(options, name) for name in names}, case.seed, RECIPE_VERSION, options.theta, DISTANCES]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for one in data:
        digest.update(one.input_ids.tobytes() + one.labels.tobytes() + b"|")
    return digest.hexdigest()[:24]


def kept_runs(file: Path) -> dict[str, Any]:
    """Return the trained models of the file by key, without the incomplete lines that killed runs left."""
    entries = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        with suppress(json.JSONDecodeError):
            entry = json.loads(line)
            entries[entry["key"]] = entry
    return entries


def add_run(file: Path, entry: Mapping[str, Any]) -> None:
    """Append a trained model as a line of the file, which several processes may do at once."""
    with file.open("ab+") as lines:
        lines.seek(max(0, lines.seek(0, SEEK_END) - 1))
        begin = "" if lines.read(1) in (b"", b"\n") else "\n"  # a killed run's last line stays apart
        lines.write(f"{begin}{json.dumps(entry)}\n".encode())


def all_runs(options: Namespace, arms: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield every run of the seeds, one seed after the other; with --finished, of the arms with a run in every pool."""
    done = kept_runs(options.runs)
    for seed in seeds:
        pools = pools_of(case_of(options, seed))
        if not pair_is_current(pools.case.pair, seed=seed):
            say(f"pair {seed}: building, about a minute")
            build_pair(pools.case.pair, seed=seed)
        for arm in arms:
            shares = options.shares if arm != "untrained" else (SAME_EVERYWHERE,)
            made = [each for share in shares if (each := run(pools, arm, share, options, done))]
            yield from made if len(made) == len(shares) else ()


def case_of(options: Namespace, seed: int) -> Case:
    """Return the case of a seed."""
    return Case(folder=options.folder, seed=seed, most_samples=options.pool, most_far=options.pool_far)


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, 0.975))


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean over seeds with mean ± t(n - 1)·s/√n. So few values cannot be resampled."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(value=mean, low=None, high=None)
    half = t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(value=mean, low=mean - half, high=mean + half)


Cell = tuple[int, float]  # seed, far share of the pool


def cells_of(runs: Sequence[Mapping[str, Any]], arm: str) -> dict[Cell, Mapping[str, Any]]:
    """Return the runs of an arm by seed and pool."""
    return {(each["seed"], each["pool"]): each for each in runs if each["arm"] == arm}


def differences(runs: Sequence[Mapping[str, Any]], arm: str, share: float, recall: str) -> list[float]:
    """Return the recall of an arm minus that of random, seed by seed."""
    random = cells_of(runs, "random")
    return [
        each["recall"][recall] - random[cell]["recall"][recall]
        for cell, each in cells_of(runs, arm).items()
        if cell[1] == share and cell in random
    ]


def tests_of(options: Namespace, seeds: Sequence[int]) -> dict[str, Any]:
    """Return how often `dependency` is right about far text in the scored sets: counts by label."""
    parts = [pools_of(case_of(options, seed)).samples for seed in seeds]
    whole = pl.concat(parts).with_columns(
        shown=pl.col("dependency").replace_strict(CLASS_OF, default=None, return_dtype=pl.String) == "far"
    )
    of_far, of_others = whole.filter("far"), whole.filter(~pl.col("far"))
    by_kind = of_far.group_by("source").agg(pl.col("shown").mean()).sort("shown", "source")
    return {
        "far": [int(of_far["shown"].sum()), of_far.height],
        "others": [int((~of_others["shown"]).sum()), of_others.height],
        "worst": {source: round(shown, 3) for source, shown in by_kind.head(4).iter_rows()},
    }


def pools_hold(options: Namespace, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the counts of each pool: its samples, those that show far text, and their tokens that depend on it."""
    rows = list[dict[str, Any]]()
    for seed in seeds:
        pools = pools_of(case_of(options, seed))
        for share in options.shares:
            pool = pools.pool(share)
            far, tokens = pool["dependency"].is_in(FAR).sum(), pool["far_tokens"].sum()
            rows.append({"seed": seed, "pool": share, "samples": pool.height, "shown_far": far, "far_tokens": tokens})
    return rows


def with_auto(options: Namespace, runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the runs with those of `auto`, and the product's verdicts: it takes mix where that is `pays`, else clean.

    A verdict is given for the model before training, so its far deficit is that of the extended theta_A.
    """
    rows, verdicts = [*runs], list[dict[str, Any]]()
    mix, clean = cells_of(runs, "mix"), cells_of(runs, "clean")
    both = mix.keys() == clean.keys()  # else only the seeds of one verdict would be there
    sums = {seed: pools_of(case_of(options, seed)).deficit_sums(options.theta) for seed in {seed for seed, _ in mix}}
    for seed, share in sorted(mix):
        made = pools_of(case_of(options, seed)).forecast(share, options.count, sums[seed])
        follows = mix if made.verdict == "pays" else clean
        if both:
            rows.append({**follows[seed, share], "arm": "auto"})
        names = ("verdict", "reasons", "mismatch", "enrichment", "supply", "far", "far_change", "use_change")
        verdicts.append({"seed": seed, "pool": share, "deficit": made.deficit,
                         **{name: getattr(made, name) for name in names}})  # fmt: skip
    return rows, verdicts


def outcome(runs: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each arm and pool the recalls, and their difference to random's, seed by seed."""
    rows = list[dict[str, Any]]()
    for arm in arms:
        for share in sorted({each["pool"] for each in runs if each["arm"] == arm}):
            some = [each for each in runs if each["arm"] == arm and each["pool"] == share]
            row = {"arm": arm, "pool": share, "bits": mismatch(USE, share), "seeds": len(some)}
            names = ("samples", "far", "shown_far", "far_tokens", "unpredictable", "trimmed")
            row["choice"] = {name: float(np.mean([each[name] for each in some])) for name in names}
            for name in (*DISTANCES, *(f"{name}_nll" for name in DISTANCES)):
                row[name] = mean_of([each["recall"][name] for each in some])
                if arm != "random":
                    row[f"{name}_gain"] = mean_of(differences(runs, arm, share, name))
            rows.append(row)
    return rows


def _options(given: list[str] | None) -> Namespace:
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=list(SEEDS), help="of pairs and data")
    add("--arms", nargs="+", default=None, choices=[*CORE, *OTHERS], help="only these arms")
    add("--count", type=int, default=160, help="samples that each model is trained on")
    add("--pool", type=int, default=MOST_SAMPLES, help="most samples of a pool")
    add("--pool-far", type=int, default=MOST_FAR, help="most far samples of a pool")
    add("--shares", type=float, nargs="+", default=list(FAR_SHARES), help="far shares of the pools")
    add("--theta", type=float, default=THETA, help="rotary base of the model that is trained")
    add("--batch", type=int, default=4, help="samples per step")
    add("--rate", type=float, default=2e-3)
    add("--questions", type=int, default=QUESTIONS, help="facts asked at each distance")
    add("--folder", type=Path, default=Path("build/benchmarks/effect"), help="for pairs and tables")
    add("--runs", type=Path, help="trained models, one a line; default: runs.jsonl in --folder")
    add("--forecast", type=Path, default=Path("docs/evidence/figures/effect_forecast.json"), help="the forecast's file")
    add("--finished", action="store_true", help="train nothing: report the seeds whose runs are complete")
    options = parser.parse_args(given)
    options.runs = options.runs or options.folder / "runs.jsonl"
    return options


def main(given: list[str] | None = None) -> int:
    """Parse, run what is missing, print, write."""
    options = _options(given)
    torch.set_num_threads(1)
    began = time.perf_counter()
    parts = [options.arms] if options.arms else [CORE, OTHERS]
    runs = [made for arms in parts for made in all_runs(options, arms, options.seeds)]
    runs, verdicts = with_auto(options, runs)
    arms = list(dict.fromkeys(each["arm"] for each in runs if each["arm"] != "untrained"))
    expected = json.loads(options.forecast.read_text()) if options.theta == THETA else {"cells": {}}
    rows, untrained = outcome(runs, arms), [each for each in runs if each["arm"] == "untrained"]
    held = {law: [_held(rows, cell) for cell in cells] for law, cells in expected["cells"].items()}
    show(_printed(rows) + "\n\n" + _expected(expected, held))
    write_json(options.out, {
        "settings": settings_of(options, "arms"),
        "machine": machine(),
        "seconds": time.perf_counter() - began,
        "test": tests_of(options, options.seeds),
        "untrained": {name: mean_of([each["recall"][name] for each in untrained]) for name in DISTANCES if untrained},
        "forecast": expected,
        "held": held,
        "pools": pools_hold(options, options.seeds),
        "verdicts": verdicts,
        "cells": rows,
        "runs": [{name: each[name] for name in each if name != "kinds"} for each in runs],
    })  # fmt: skip
    return 0


def _held(rows: Sequence[Mapping[str, Any]], cell: Mapping[str, Any]) -> bool | None:
    """Return whether the measured gain in far recall is within the cell's forecast; None if it was not measured."""
    for row in rows:
        if (row["arm"], row["pool"]) == (cell["arm"], cell["pool"]):
            return cell["low"] <= row["far_gain"].value <= cell["high"]
    return None


def _printed(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["arm", "pool", "bits", "seeds", "samples", "far", "far recall", "near recall", "far gain", "near gain"]
    lines = []
    for row in rows:
        gains = [_signed(row[f"{name}_gain"]) if f"{name}_gain" in row else "" for name in DISTANCES]
        recalls = [f"{row[name].value:.3f}" for name in DISTANCES]
        sizes = [f"{row['choice']['samples']:.0f}", f"{row['choice']['far']:.1f}"]
        lines.append([row["arm"], f"{row['pool']:.0%}", f"{row['bits']:.2f}", row["seeds"], *sizes, *recalls, *gains])
    return table(header, lines)


def _signed(estimate: Interval) -> str:
    return estimate_text((estimate.value, estimate.low, estimate.high), between=" to ", sign="+")


def _expected(expected: Mapping[str, Any], held: Mapping[str, Sequence[bool | None]]) -> str:
    lines = list[str]()
    for law, cells in expected["cells"].items():
        lines.append(f"The law of {law} holds {sum(map(bool, held[law]))} of {len(cells)} cells")
        for cell, right in zip(cells, held[law], strict=True):
            of = Interval(**{name: cell[name] for name in ("value", "low", "high")})
            lines.append(f"  {cell['arm']} at {cell['pool']:.0%}: {_signed(of)} {'' if right is None else right}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
