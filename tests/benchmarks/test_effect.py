"""The curve of gain against mismatch: exact losses, pools and gains, and runs that are not repeated."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

import effect
import numpy as np
import polars as pl
import pytest
import torch
from kinds import needs_far_context
from scipy.stats import t
from torch.nn import functional
from transformers import LlamaForCausalLM

from gateau_dagster.features.demo.config import RECIPE_VERSION
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.demo.pair import pair_config
from gateau_dagster.selection.forecast import VERDICTS
from gateau_dagster.training.encode import Encoded

SEED = 3
SMALL = ["--count", "8", "--pool", "40", "--pool-far", "8", "--questions", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained pair, which benchmarks take for the pair of SEED."""
    folder = tmp_path_factory.mktemp("effect")
    pair = folder / "pairs" / f"seed{SEED}"
    for name, window in (("short", 256), ("long", 2048)):
        torch.manual_seed(SEED)
        LlamaForCausalLM(pair_config(window, 1e4)).save_pretrained(pair / name)
        build_tokenizer(window).save_pretrained(pair / name)
    (pair / "recipe.json").write_text(json.dumps({"recipe": RECIPE_VERSION, "seed": SEED}))
    return folder


def test_the_narrowed_last_layer_changes_no_loss_and_no_gradient() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(pair_config(2048, effect.THETA))
    ids = np.arange(8, 68, dtype=np.int32)
    labels = np.where(np.arange(60) >= 53, ids, -100).astype(np.int32)
    one = Encoded(input_ids=ids, labels=labels, block_tokens=np.array([53, 7], np.int32), truncated_tokens=0)
    loss = effect.loss_of(model, one)
    loss.backward()
    found = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    logits = model(input_ids=torch.from_numpy(ids).long()[None]).logits[0]
    plain = sum(-functional.log_softmax(logits[place - 1], -1)[ids[place]] for place in range(53, 60))
    assert isinstance(plain, torch.Tensor)
    plain.backward()
    torch.testing.assert_close(loss, plain)
    for ours, weight in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, weight.grad, rtol=1e-4, atol=1e-5)


def test_a_pool_is_as_large_as_both_limits_allow() -> None:
    assert effect.pool_size(0.02, 1200, 216) == (24, 1176)
    assert effect.pool_size(0.45, 1200, 216) == (216, 264)
    for share in effect.FAR_SHARES:
        far, others = effect.pool_size(share, 1200, 216)
        assert far <= 216 and far + others <= 1200 and far / (far + others) == pytest.approx(share, abs=1e-3)


def test_arms_choose_from_the_pool_and_mix_keeps_what_random_drew(folder: Path) -> None:
    """An untrained pair predicts nothing, so the classes of dependency are set here."""
    pools = copy(effect.pools_of(effect.Case(folder=folder, seed=SEED, most_samples=40, most_far=8)))
    classes = ["near", "one_far", "closed_book", "unpredictable"]
    pools.samples = pools.samples.with_columns(
        dependency=pl.Series([classes[row % 4] for row in range(pools.samples.height)])
    )
    assert sum(needs_far_context(record["source"]) for record in pools.known.records) == 8
    pool = pools.pool(0.2)
    assert pool["far"].sum() == 8 and pool.height == 40
    chosen = {arm: pools.chosen(arm, 0.2, 12).ids for arm in ("random", "top", "oracle", "clean")}
    drawn = pool.sort("drawn", descending=True)["sample_id"].to_list()
    assert set(chosen["random"]) == set(drawn[:12])
    assert set(chosen["top"]) == set(pool.sort("rank")["sample_id"].head(12))
    far = set(pool.filter("far")["sample_id"])
    noise = set(pool.filter(dependency="unpredictable")["sample_id"])
    left = [name for name in drawn if name not in far and name not in noise]
    assert len(far & set(chosen["oracle"])) == 6 and set(chosen["oracle"]) - far == set(left[:6])
    assert set(chosen["clean"]) == set([name for name in drawn if name not in noise][:12])
    shown_far, mixed = {*pool.filter(dependency="one_far")["sample_id"]}, {*pools.chosen("mix", 0.2, 12).ids}
    assert len(mixed & shown_far) == 6 and mixed - shown_far == {
        *[name for name in drawn if name not in noise | shown_far][:6]
    }
    sums = pools.deficit_sums(effect.THETA)
    told = pools.forecast(0.2, 12, sums)
    assert told.use == 0.5 and told.chosen_far == 6 and told.verdict in VERDICTS
    assert sums.height == 16


def _runs() -> list[dict[str, Any]]:
    rng, runs = np.random.default_rng(4), list[dict[str, Any]]()
    for seed in (1, 2):
        for arm, many in (("random", 4), ("mix", 40), ("mix_tau", 40), ("top", 60)):
            for share in effect.FAR_SHARES:
                far, noise = many + int(100 * share), 8 if arm == "random" else 0
                recall = {"far": round(0.4 + 0.04 * math.log2(far) + 0.02 * rng.normal(), 2), "near": 0.9}
                recall |= {"far_nll": 1.0, "near_nll": 0.2}
                runs.append({"seed": seed, "arm": arm, "pool": share, "recall": recall, "samples": 160,
                             "far": far, "shown_far": far, "far_tokens": 2 * far, "unpredictable": noise,
                             "trimmed": 0})  # fmt: skip
    return runs


def test_a_gain_is_the_mean_of_differences_seed_by_seed() -> None:
    rows = effect.outcome(_runs(), ["random", "mix"])
    row = next(row for row in rows if (row["arm"], row["pool"]) == ("mix", 0.1))
    by_arm = {
        arm: [each["recall"]["far"] for each in _runs() if each["arm"] == arm and each["pool"] == 0.1]
        for arm in ("mix", "random")
    }
    ours = [a - b for a, b in zip(by_arm["mix"], by_arm["random"], strict=True)]
    half = float(t.ppf(0.975, 1)) * float(np.std(ours, ddof=1)) / math.sqrt(2)
    assert row["far_gain"].value == pytest.approx(np.mean(ours))
    assert row["far_gain"].high == pytest.approx(np.mean(ours) + half)


def test_a_finished_run_is_not_run_again_unless_what_decides_it_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, kept = tmp_path / "runs.jsonl", tmp_path / "forecast.json"
    given = [
        *SMALL,
        "--shares",
        "0.2",
        "--folder",
        str(folder),
        "--seeds",
        str(SEED),
        "--runs",
        str(runs),
        "--forecast",
        str(kept),
    ]
    cells = [{"arm": "top", "pool": 0.2, "value": 0.0, "low": -1.0, "high": 1.0}]
    kept.write_text(json.dumps({"seeds": 8, "cells": {"tokens": cells}}))
    arms = ["--arms", "untrained", "random", "top"]
    assert effect.main([*given, *arms, "--out", str(tmp_path / "effect.json")]) == 0
    lines = runs.read_text().splitlines()
    found = json.loads((tmp_path / "effect.json").read_text())
    assert len(lines) == 3 and found["held"] == {"tokens": [True]}
    assert [each["samples"] for each in found["runs"][:2]] == [0, 8]
    runs.write_text("\n".join([*lines[:2], lines[2][:50]]))  # killed while it wrote
    assert effect.main([*given, *arms]) == 0
    assert len(effect.kept_runs(runs)) == 3 and runs.read_text().splitlines()[:3] == [*lines[:2], lines[2][:50]]
    assert effect.main([*given, *arms, "--rate", "1e-3", "--finished"]) == 0
    again = effect.main([*given, "--arms", "untrained", "random", "--rate", "1e-3"])
    assert again == 0 and runs.read_text().count('"recall"') == 5
    assert "pair 3, random at 20%" in capsys.readouterr().err


def test_an_incomplete_line_hides_no_other_model_and_none_is_lost(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    effect.add_run(runs, {"key": "first", "seed": 1})
    for number in range(2):  # killed twice while it wrote
        with runs.open("a") as file:
            file.write('{"key": "broken", "se')
        effect.add_run(runs, {"key": f"next-{number}", "seed": 1})
    assert [*effect.kept_runs(runs)] == ["first", "next-0", "next-1"] and len(runs.read_text().splitlines()) == 5
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: effect.add_run(runs, {"key": f"at-once-{number}"}), range(64)))
    assert len(effect.kept_runs(runs)) == 3 + 64


def test_the_test_of_dependencies_is_counted_by_label(folder: Path) -> None:
    options = effect._options([*SMALL, "--folder", str(folder), "--seeds", str(SEED)])
    found = effect.tests_of(options, [SEED])
    samples = effect.pools_of(effect.case_of(options, SEED)).samples
    shown = samples.filter(pl.col("far") & pl.col("dependency").is_in(["one_far", "several_far"])).height
    assert found["far"] == [shown, samples.filter("far").height]
    assert found["others"][1] == samples.filter(~pl.col("far")).height


def test_what_a_pool_holds_is_counted_sample_by_sample(folder: Path) -> None:
    options = effect._options([*SMALL, "--folder", str(folder), "--seeds", str(SEED)])
    rows = effect.pools_hold(options, [SEED])
    pools = effect.pools_of(effect.case_of(options, SEED))
    assert [row["pool"] for row in rows] == list(effect.FAR_SHARES)
    for row in rows:
        samples = pools.pool(row["pool"]).rows(named=True)
        assert row["samples"] == len(samples)
        assert row["shown_far"] == sum(each["dependency"] in {"one_far", "several_far"} for each in samples)
        assert row["far_tokens"] == sum(each["far_tokens"] or 0 for each in samples)
