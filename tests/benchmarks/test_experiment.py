"""The experiment: benchmarks that measure what they promise, and a run on a tiny model that ends with its tables."""

import copy
import importlib
import json
import math
import shutil
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import experiment
import figures
import numpy as np
import polars as pl
import pytest
import torch
import yaml

from gateau_dagster.api import Project
from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.evaluation.benchmark import Measured
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.compare import holm
from gateau_dagster.features.evaluation.statistics.experiment import reference_of
from gateau_dagster.models.forward import response_nll
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.loading import load_model
from gateau_dagster.models.prompt import build_prompt, response_offsets
from gateau_dagster.pipeline.project import load_project
from tests.benchmarks.questions import answer, write_questions
from tests.features.evaluation.builders import materials
from tests.kit import tiny_models
from tests.kit.project import write_model

QUESTIONS = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.add_tokens([answer(number) for number in range(1, QUESTIONS, 2)])  # or no answer is short
    write_model(folder / "tiny", seed=1, window=4096, tokenizer=tokenizer)
    write_questions(folder / "nq.jsonl", QUESTIONS)
    return folder / "tiny"


SIZE = experiment.Size(
    name="tiny",
    tokens=1500,
    window=600,
    pools={"main": {"far": 10, "near": 7, "none": 4}, "control": {"far": 8, "near": 7, "none": 4}},
    arms={"control": ["mix"]},
    heldout={"far": 8, "near": 7, "none": 4},
    seeds=2,
    seconds={"step": 3.0, "heldout": 2.0, "scored": 1.0},
    short=2,
    benchmarks=["answer_loss", "answers"],
    scoring={"max_length": 2048},
    selection={"budget": 8000},
    training={"max_length": 2048, "pack_length": 2048, "max_steps": 1},
)


@pytest.fixture(scope="module")
def prepared(model: Path) -> Path:
    nq = str(model.with_name("nq.jsonl"))
    return experiment.prepare(model.with_name("made"), model=str(model), nq=nq, size=SIZE, pool="main")


def test_no_page_is_in_both_files(prepared: Path) -> None:
    pool, heldout = (prepared.with_name(name).read_text().splitlines() for name in ("pool.jsonl", "questions.jsonl"))
    assert (len(pool), len(heldout)) == (21, 19)
    titles = [
        {line for each in file for line in json.loads(each)["context"].split("\n") if line.startswith("Page ")}
        for file in (pool, heldout)
    ]
    assert titles[0] and titles[1] and not titles[0] & titles[1]


def test_other_samples_need_another_folder(prepared: Path, model: Path) -> None:
    nq = str(model.with_name("nq.jsonl"))
    with pytest.raises(SystemExit, match="another --folder"):
        experiment.prepare(prepared.parent, model=str(model), nq=nq, size=SIZE, pool="control")


def test_losses_are_those_of_the_response_of_its_answer_and_with_the_evidence_only(prepared: Path) -> None:
    config = load_project(prepared)
    loaded = load_model(config.models["long"], dtype="float32", device="cpu", folder=Path())
    benchmark: Any = scored_benchmarks(config)["answer_loss"]
    found: Measured = benchmark.measure(materials(config, model=lambda _: loaded), "base")
    assert dict(found.table["group"].value_counts().iter_rows()) == {
        "far text": 8,
        "far text: answer": 8,
        "far text: answer, evidence only": 8,
        "near text": 7,
        "near text: answer": 6,
        "near text: answer, evidence only": 6,
        "no text": 4,
        "no text: answer": 1,
    }
    check_losses(found, prepared, loaded, config.scoring.max_length)


def check_losses(found: Measured, config: Path, loaded: LoadedModel, most: int) -> None:
    """Against slow_losses, for every third of the held-out samples."""
    values = dict(found.table.select("question_id", "value").iter_rows())
    for line in config.with_name("questions.jsonl").read_text().splitlines()[::3]:
        record = json.loads(line)
        slow = slow_losses(record, loaded, most)
        names = [record["sample_id"], *(f"{record['sample_id']} {form}" for form in ("answer", "evidence"))]
        slow[2] = None if "follows" in record else slow[2]
        expected = {name: value for name, value in zip(names, slow, strict=True) if value is not None}
        assert {name: values[name] for name in names if name in values} == pytest.approx(expected, rel=1e-4)


def test_a_context_that_is_read_once_gives_the_losses_of_each_of_its_questions(model: Path) -> None:
    size = replace(SIZE, heldout={"far": 2, "near": 1, "none": 1}, follow_ups=2)
    folder, nq = model.with_name("followed"), str(model.with_name("nq.jsonl"))
    prepared = experiment.prepare(folder, model=str(model), nq=nq, size=size, pool="main")
    config = load_project(prepared)
    loaded = load_model(config.models["long"], dtype="float32", device="cpu", folder=Path())
    benchmark: Any = scored_benchmarks(config)["answer_loss"]
    found: Measured = benchmark.measure(materials(config, model=lambda _: loaded), "base")
    records = [json.loads(line) for line in prepared.with_name("questions.jsonl").read_text().splitlines()]
    assert len(records) > 12 and sum("follows" in each for each in records) == len(records) - 4
    check_losses(found, prepared, loaded, config.scoring.max_length)


@pytest.mark.parametrize("template", ["gateau", "chat"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text", "mamba", "mamba2"])
def test_a_shared_beginning_changes_no_loss(monkeypatch: pytest.MonkeyPatch, kind: str, template: Template) -> None:
    """Against a pass for each prompt. The context is longer than the window of sliding layers; Mamba has no cache."""
    monkeypatch.syspath_prepend(experiment.EXAMPLE)
    own_answers = importlib.import_module("own_answers")
    heads = {"num_heads": 8, "n_groups": 1, "state_size": 4, "chunk_size": 16}  # 8 heads of 16: twice hidden_size
    loaded = tiny_models.loaded_model(kind, **(heads if kind == "mamba2" else {}))
    texts = [(tiny_models.text(seed, 9), tiny_models.text(seed + 10, words)) for seed, words in ((1, 3), (2, 40))]
    prompts = [
        build_prompt(
            loaded.tokenizer,
            Sample(
                sample_id="", source="", context=tiny_models.text(0, 200), instruction=instruction, response=response
            ),
            max_length=2048,
            template=template,
        )
        for instruction, response in texts
    ]
    assert len(prompts[0].context) > 150
    for prompt, losses in zip(prompts, own_answers.shared_nll(loaded, prompts), strict=True):
        torch.testing.assert_close(losses, response_nll(loaded, [prompt]), atol=1e-5, rtol=1e-5)


def slow_losses(record: dict[str, Any], loaded: LoadedModel, most: int) -> list[float | None]:
    """The mean NLL of the response, of the tokens with a character of the answers, and of these with the evidence."""
    asked = f"\n\n### Instruction: {record['instruction']}\n\n### Response: "
    evidence = "\n\n".join(record["context"][begin:end] for begin, end in record["evidence"])
    golden = {len(asked) + place for begin, end in record["gold"] for place in range(begin, end)}
    found = []
    for context, only_gold in ((record["context"], False), (record["context"], True), (evidence, True)):
        before = [loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("### Input: ", context)]
        last = loaded.tokenizer(asked + record["response"], add_special_tokens=False, return_offsets_mapping=True)
        space = most - 1 - len(before[0]) - len(last["input_ids"])
        ids = [loaded.tokenizer.bos_token_id, *before[0], *before[1][-space:], *last["input_ids"]]
        logits = loaded.model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        first, nll = len(ids) - len(last["input_ids"]), []
        for place, (begin, end) in enumerate(last["offset_mapping"], start=first):
            if end > len(asked) and (not only_gold or golden & {*range(begin, end)}):
                nll.append(-float(logits[place - 1, ids[place]]))
        found.append(sum(nll) / len(nll) if nll and context else None)
    return found


def test_an_answer_is_right_if_it_contains_a_right_one(prepared: Path) -> None:
    config = load_project(prepared)
    chosen: Any = scored_benchmarks(config)["answers"]
    asked = {each.question_id.split("-")[0]: each for each in chosen.questions(materials(config))}
    assert {name: each.group for name, each in asked.items()} == {
        **dict.fromkeys(("far_one", "far_hard", "far_paraphrase", "far_two_hop", "far_short"), "far"),
        **dict.fromkeys(("near", "near_short", "near_repeated_far", "near_hard"), "near"),
    }
    question = asked["far_one"]
    right = question.references[0]
    assert right in question.turns[0]
    said = {f"It is the {right.upper()}.": 100.0, f"x{right}": 0.0, "": 0.0}
    assert {text: chosen.value(question, text) for text in said} == said


def test_the_arms_of_the_plan_are_trained_for_the_same_steps(prepared: Path) -> None:
    plan, sizes = experiment.read_plan(experiment.EXAMPLE / "plan.yaml")
    for name, size in sizes.items():
        content = experiment.configuration(experiment.EXAMPLE, size, "main", size.seeds)
        assert content["training"]["max_steps"] and content["training"]["seed"] == content["variants"]["seeds"][0]
        assert content["models"]["short"]["window"] == size.window and len(content["variants"]["seeds"]) == size.seeds
        assert name == "smoke" or size.pools["control"]["far"] >= size.pools["main"]["far"]
    arms = experiment.arms_of(Project(prepared))
    assert arms[0] == plan["reference"] == reference_of(load_project(prepared))
    assert {*plan["primary"]["comparisons"], plan["noise"]} <= {*arms}
    control = experiment.configuration(experiment.EXAMPLE, sizes["cpu"], "control", 4)["variants"]
    assert [each["name"] for each in control["also"]] == ["mix"]


def test_the_hours_count_each_model_and_each_scored_sample_once() -> None:
    found = 0.0
    for arms in (6, 2):
        for _ in range(2 * arms + 1):  # each arm with two seeds, and the single run
            found += 1 * 3.0 + 19 * 2.0
        found += 19 * 2.0  # the base model
    found += 10 + 7 + 4
    assert experiment.hours(SIZE, {"main": 6, "control": 2}) == pytest.approx(found / 3600)


# What the values show.


def made_values(shift: dict[str, float], seeds: int = 3) -> experiment.Values:
    """Four models: the loss of each is a page's, plus `shift` of the arm on far text, plus a little of each seed."""
    rng, records = np.random.default_rng(0), []
    for number in range(60):
        kind = ("far_one", "far_summary", "near", "continuation", "chat")[number % 5]
        records.append({"sample_id": f"q{number:02d}", "source": kind, "page": f"p{number // 2}"})
    hard, scores = rng.normal(3, 1, 60), {}
    for arm in ("base", *shift):
        for seed in range(1 if arm == "base" else seeds):
            values = {}
            for number, each in enumerate(records):
                loss = hard[number] + rng.normal(0, 0.05) + (1.0 if arm == "base" else 0.0)
                loss += shift.get(arm, 0.0) * each["source"].startswith("far")
                values[each["sample_id"]] = loss
                if each["source"] not in {"continuation", "chat"}:
                    values |= {f"{each['sample_id']} answer": 2 * loss, f"{each['sample_id']} evidence": hard[number]}
            scores["base" if arm == "base" else f"{arm}-s{seed}"] = values
    return experiment.Values(records=records, scores=scores, seeds=seeds)


PLAN: dict[str, Any] = {
    "reference": "random",
    "primary": {"comparisons": ["mix", "other"], "level": 0.05},
    "guard": {"margin": 0.1, "use": 0.5},
    "noise": "random_b",
    "control": {"within": 0.08},
}
POOL = {"far": 1, "near": 6, "none": 3}


def test_each_arm_is_compared_as_the_plan_says() -> None:
    values = made_values({"random": 0.0, "random_b": 0.0, "mix": -0.3, "other": 0.0})
    found = experiment.compared(values, PLAN, POOL, ["random_b", "mix", "other"])

    def slow(arm: str, form: str, kinds: tuple[str, ...]) -> float:
        """The mean over seeds and samples of the difference to random data of the same seed."""
        apart = []
        for seed in range(3):
            one, two = (values.scores["base" if name == "base" else f"{name}-s{seed}"] for name in (arm, "random"))
            ids = [each["sample_id"] + form for each in values.records if each["source"] in kinds]
            apart += [one[each] - two[each] for each in ids]
        return statistics.fmean(apart)

    far, near = ("far_one", "far_summary"), ("near", "continuation")
    parts = {arm: [slow(arm, "", kinds) for kinds in (far, near, ("chat",))] for arm in ("base", "mix")}
    mix = {name: each["difference"] for name, each in found["mix"].items() if "difference" in each}
    assert mix["primary"][0] == pytest.approx(slow("mix", " answer", far))
    assert mix["near_answers"][0] == pytest.approx(slow("mix", " answer", ("near",)))
    weights = {"use": (0.5, 0.5 * 6 / 9, 0.5 * 3 / 9), "pool": (0.1, 0.6, 0.3)}
    for total, shares in weights.items():
        slow_total = sum(share * part for share, part in zip(shares, parts["mix"], strict=True))
        assert mix[total][0] == pytest.approx(slow_total)
    gained = sum(share * part for share, part in zip(weights["use"], parts["base"], strict=True))
    assert mix["guard"][0] == pytest.approx(mix["use"][0] - 0.1 * gained)
    assert found["mix"]["far_answers_by_kind"]["far_one"]["difference"][0] == pytest.approx(
        slow("mix", " answer", ("far_one",))
    )
    assert [*found["mix"]["by_kind"]] == ["far_one", "far_summary", "near", "chat", "continuation"]
    # The losses on answers are twice those of all tokens; with the evidence only, they are the page's own.
    added = [2 * values.matrix("mix")[:, [n for n in range(60) if n % 5 in places]] for places in ((0, 1), (2,))]
    alone = [values.matrix("base", " evidence")[0][[n for n in range(36) if n % 3 in p]] for p in ((0, 1), (2,))]
    gaps = [float((each - own).mean()) for each, own in zip(added, alone, strict=True)]
    assert found["mix"]["gap"]["far"][0] == pytest.approx(gaps[0])
    assert found["mix"]["gap"]["far_less_near"][0] == pytest.approx(gaps[0] - gaps[1])
    whole_text, evidence_only = (
        [[values.matrix(arm, form)[:, [n for n in range(36) if n % 3 in p]].mean() for p in ((0, 1), (2,))]
         for arm in ("mix", "random")]
        for form in (" answer", " evidence")
    )  # fmt: skip
    far_less_near = [(a[0] - e[0]) - (a[1] - e[1]) for a, e in zip(whole_text, evidence_only, strict=True)]
    assert found["mix"]["gap_difference"][0] == pytest.approx(far_less_near[0] - far_less_near[1])
    apart = {
        each["sample_id"]: [
            values.scores[f"mix-s{seed}"][f"{each['sample_id']} answer"]
            - values.scores[f"random-s{seed}"][f"{each['sample_id']} answer"]
            for seed in range(3)
        ]
        for each in values.records
        if each["source"] in far
    }
    spread = found["mix"]["spread"]
    assert spread["by_seed"] == pytest.approx([statistics.fmean(of) for of in zip(*apart.values(), strict=True)])
    assert statistics.fmean(spread["by_seed"]) == pytest.approx(mix["primary"][0])
    assert spread["questions"] == pytest.approx(statistics.stdev(map(statistics.fmean, apart.values())))
    raw = [found[arm]["primary"]["p"] for arm in ("mix", "other")]
    assert [found[arm]["primary"]["corrected_p"] for arm in ("mix", "other")] == list(holm(np.array(raw)))
    said = experiment.verdicts(found, found, PLAN)
    assert said["lower_beyond_chance"] == ["mix"] and said["keeps_the_guard"] == ["mix", "other"]
    assert said["noise"] == found["random_b"]["primary"]["difference"] and said["control"] == "beyond"
    for ends, expected in {(-0.07, 0.05): "within", (-0.2, 0.01): "undecided", (None, None): "undecided"}.items():
        control = {"mix": {"primary": {"difference": [0.0, *ends]}}}
        assert experiment.verdicts(found, control, PLAN)["control"] == expected


def test_p_values_are_corrected_for_the_arms_that_were_run() -> None:
    """Holm's procedure by hand: the smaller of two p-values counts twice, and the larger is no smaller than that."""
    values = made_values({"random": 0.0, "mix": -0.06, "other": -0.02})
    plan = PLAN | {"primary": {"comparisons": ["other", "not_run", "mix"], "level": 0.05}}
    found = experiment.compared(values, plan, POOL, ["random", "mix", "other"])
    p = {arm: found[arm]["primary"]["p"] for arm in ("mix", "other")}
    assert p["mix"] < p["other"] and 2 * p["mix"] < 1 and "not_run" not in found
    corrected = {arm: found[arm]["primary"].get("corrected_p") for arm in ("base", "random", "mix", "other")}
    larger = max(2 * p["mix"], p["other"])
    assert corrected == {"base": None, "random": None, "mix": pytest.approx(2 * p["mix"]), "other": larger}


def test_the_power_is_the_difference_beyond_both_spreads() -> None:
    """Two seeds: the Student's t of one degree of freedom is 12.706; that of many questions is 1.960."""
    plan = {"assumed": {"usual": {"questions": 0.6, "seeds": 0.04}, "other": {"questions": 0.3, "seeds": 0.02}}}
    usual, other = experiment.power(plan, replace(SIZE, heldout={"far": 144, "near": 1, "none": 1}))
    of_questions, of_seeds = 0.6**2 / 144, 2 * 0.04**2 / 2
    width = math.sqrt(1.960**2 * of_questions + 12.706**2 * of_seeds)
    expected = width + 0.84 * math.sqrt(of_questions + of_seeds)
    assert usual.pop("half_width") == pytest.approx(width, rel=1e-4)
    assert usual == {"spread": "usual", "questions": 144, "seeds": 2, "difference": pytest.approx(expected, rel=1e-4)}
    assert other["difference"] == pytest.approx(expected / 2, rel=1e-4), "half of each spread"
    asked = replace(SIZE, seeds=5, questions={"far": 144, "near": 1, "none": 1})
    of_seeds = 2 * 0.04**2 / 5  # 2.776: of four degrees of freedom
    expected = math.sqrt(1.960**2 * of_questions + 2.776**2 * of_seeds) + 0.84 * math.sqrt(of_questions + of_seeds)
    assert experiment.power(plan, asked)[0]["difference"] == pytest.approx(expected, rel=1e-3)


def test_the_tables_of_the_page_have_every_arm() -> None:
    found = {"results": {"main": experiment.compared(made_values({"random": 0.0, "mix": -0.3}), PLAN, POOL, ["mix"])}}
    rows = figures.arms_differences(found, "main").splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["base", "mix"]
    low, high = found["results"]["main"]["mix"]["primary"]["difference"][1:]
    assert f"({low:.3f} to {high:.3f})" in rows[1] and rows[0].endswith("|  |")
    kinds = figures.arms_kinds(found, "main").splitlines()
    assert kinds[0] == "| held-out samples | `mix` |" and len(kinds) == 2 + 5
    one = {"samples": 10, "tokens": 5000, "far": 0.5}
    found["trained_on"] = {"main": {"mix-s0": one, "mix-s1": one | {"samples": 12}, "random-s0": one}}
    arms = [found["results"]["main"][arm] for arm in ("base", "mix")]
    gaps = [(arm["gap"]["far_less_near"], arm["gap_difference"]) for arm in arms]
    before, after = (" | ".join(f"{value:.3f} ({low:.3f} to {high:.3f})" for value, low, high in each) for each in gaps)
    assert figures.arms_trained(found, "main").splitlines()[2:] == [
        f"| `base` |  |  |  | {before} |",
        f"| `mix` | 11 | 5,000 | 50 % | {after} |",
        "| `random` | 10 | 5,000 | 50 % |  |  |",
    ]
    found["plan"] = PLAN | {"assumed": {"usual": {"questions": 0.6, "seeds": 0.04}}}
    found["power"] = [{"spread": "usual", "half_width": 0.25}]
    mix = found["results"]["main"]["mix"]
    numbers = [(high - low) / 2, mix["spread"]["questions"], statistics.stdev(mix["spread"]["by_seed"])]
    of_mix = [
        " | ".join(f"{number:.3f}" for number in numbers),
        ", ".join(f"{x:.3f}" for x in mix["spread"]["by_seed"]),
    ]
    assert figures.arms_spread(found, "main").splitlines()[2:] == [
        "| the plan, usual spread | 0.250 | 0.600 | 0.057 |  |",  # 0.04 times the root of 2
        f"| `mix` | {of_mix[0]} | {of_mix[1]} |",
    ]


def test_a_lower_loss_on_far_text_does_not_hide_a_loss_elsewhere() -> None:
    values = made_values({"random": 0.0, "random_b": 0.0, "mix": -0.3, "other": 0.0})
    other = {each["sample_id"] for each in values.records if not each["source"].startswith("far")}
    worse = {
        name: {each: loss + 0.8 * (name.startswith("mix") and each in other) for each, loss in losses.items()}
        for name, losses in values.scores.items()
    }
    found = experiment.compared(replace(values, scores=worse), PLAN, POOL, ["mix", "other"])
    said = experiment.verdicts(found, None, PLAN)
    assert said["lower_beyond_chance"] == ["mix"] and said["keeps_the_guard"] == ["other"] and said["noise"] is None


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_is_continued_and_ends_with_what_the_plan_asks(tmp_path: Path, model: Path) -> None:
    example = tmp_path / "example"
    shutil.copytree(experiment.EXAMPLE, example)
    settings = yaml.safe_load((example / "gateau.yaml").read_text())
    settings["training"] |= {"dtype": "float32", "lora": {"rank": 2}}
    settings["scoring"] |= {"dtype": "float32"}
    for each in settings["variants"]["also"]:  # to a random model, every response is noise, which `mix` leaves out
        each["selection"] = {"method": "length"} if each["selection"].get("rule") else each["selection"]
    (example / "gateau.yaml").write_text(yaml.safe_dump(settings))
    plan = yaml.safe_load((example / "plan.yaml").read_text())
    plan["sizes"] = {"tiny": {name: value for name, value in asdict(SIZE).items() if name != "name"}}
    (example / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))  # `main` is the first pool
    given = ["--nq", str(model.with_name("nq.jsonl")), "--model", str(model), "--folder", str(tmp_path / "made")]
    given += ["--size", "tiny", "--example", str(example), "--out", str(tmp_path / "experiment.json")]
    assert experiment.main(given) == 0
    found = json.loads((tmp_path / "experiment.json").read_text())
    assert found["plan"]["reference"] == "random" and {*found["results"]} == {"main", "control"}
    assert {*plan["primary"]["comparisons"]} <= {*found["results"]["main"]}
    assert found["trained_on"]["main"]["random_longce-s1"]["nested"] == 1.0, "the same samples, weighed"
    made = {file: file.stat().st_mtime_ns for file in (tmp_path / "made").rglob("*.parquet")}
    assert experiment.main(given) == 0
    assert made == {file: file.stat().st_mtime_ns for file in made}, "nothing is trained or measured again"


def test_samples_of_ones_own_have_their_far_tokens_as_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(experiment.EXAMPLE)
    heldout_file = importlib.import_module("heldout_file")
    loaded = tiny_models.tokenizer()
    texts = {"source": "own", "context": "a long text", "instruction": "what is it", "response": "it is the big town"}
    ids = ["far", "near", "noise", "unread"]
    raw = pl.DataFrame([{"sample_id": name, **texts} for name in ids])
    span = [{"start": 2, "end": 6, "gain": 1.0, "tokens": 1}]
    kinds = ["one_far", "near", "unpredictable"]
    evidence = pl.DataFrame({"sample_id": ids[:3], "evidence": [span, span, None], "dependency": kinds})
    sample = Sample.of_row({"sample_id": "far", **texts})
    offsets = response_offsets(loaded, sample, "gateau")
    far = [0.9 if place in {1, 2, 4} else 0.3 for place in range(len(offsets))]
    cam = pl.DataFrame({"sample_id": ids, "far_probability": [far] * 4, "near_probability": [[0.15] * len(far)] * 4})
    found = [*heldout_file.records(raw, evidence, cam, loaded)]
    assert [(each["sample_id"], each["needs_far"]) for each in found] == [("far", True), ("near", False)]
    assert found[0]["evidence"] == [[2, 6]] and found[0]["page"] == found[1]["page"]
    slow = {place for token in (1, 2, 4) if token < len(offsets) for place in range(*offsets[token])}
    assert {place for begin, end in found[0]["gold"] for place in range(begin, end)} == slow
