"""The experiment: benchmarks that measure what they promise, and a run on a tiny model that ends with its tables."""

import copy
import json
from pathlib import Path
from typing import Any

import experiment
import figures
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from gateau_dagster.evaluation.benchmark import Measured
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.models.loading import LoadedModel, load_model
from gateau_dagster.pipeline.project import load_project
from tests import tiny_models
from tests.benchmarks.questions import answer, write_questions
from tests.evaluation.builders import materials
from tests.project import ROOT

QUESTIONS = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    torch.manual_seed(1)
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.add_tokens([answer(number) for number in range(1, QUESTIONS, 2)])  # or no answer is short
    config = tiny_models.model_config("llama", max_position_embeddings=4096, vocab_size=len(tokenizer))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    write_questions(folder / "nq.jsonl", QUESTIONS)
    return folder / "tiny"


@pytest.fixture(scope="module")
def prepared(model: Path) -> Path:
    sizes = {"per_kind": {"choose": 1, "report": 1}, "tokens": 1500, "window": 600}
    nq = str(model.with_name("nq.jsonl"))
    return experiment.prepare(model.with_name("made"), model=str(model), nq=nq, **sizes)


def test_no_page_is_in_both_files(prepared: Path) -> None:
    pool, heldout = (prepared.with_name(name).read_text().splitlines() for name in experiment.SAMPLES)
    assert len(pool) == len(heldout) == len(experiment.KINDS)
    titles = [
        {line for each in file for line in json.loads(each)["context"].split("\n") if line.startswith("Page ")}
        for file in (pool, heldout)
    ]
    assert titles[0] and titles[1] and not titles[0] & titles[1]


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
    values = dict(found.table.select("question_id", "value").iter_rows())
    for line in prepared.with_name("questions.jsonl").read_text().splitlines()[::3]:
        record = json.loads(line)
        slow = slow_losses(record, loaded, config.scoring.max_length)
        names = [record["sample_id"], *(f"{record['sample_id']} {form}" for form in ("answer", "evidence"))]
        expected = {name: value for name, value in zip(names, slow, strict=True) if value is not None}
        assert {name: values[name] for name in names if name in values} == pytest.approx(expected, rel=1e-4)


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


def test_selections_and_all_data_are_trained_for_the_same_steps(prepared: Path) -> None:
    config = load_project(prepared)
    assert {name.rsplit("-", 1)[0] for name in config.variant_set} == {
        "base",
        "checkpoint",
        "gateau",
        "random",
        "length",
        "full",
    }
    assert config.training.max_steps is not None and config.evaluation.reference == "random"
    assert config.variants is not None and config.variants.seeds is not None
    assert config.training.seed == config.variants.seeds[0], "the single run is one of the variants"


def test_a_value_without_an_interval_is_shown_alone() -> None:
    group = {"questions": 3, "models": {"base": {"value": [0.0, None, None]}, "gateau": {"value": [12.5, 0.0, 40.0]}}}
    found = {"reference": "base", "results": {"answers": {"all": group}}}
    rows = figures.experiment_values(found, "answers", "value").splitlines()
    assert rows[2:] == ["| `base` | 0.0 |", "| `gateau` | 12.5 (0.0 to 40.0) |"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_ends_with_the_tables_of_the_page(tmp_path: Path, model: Path, prepared: Path) -> None:
    settings = yaml.safe_load(prepared.read_text())
    settings["selection"]["budget"], settings["training"]["max_steps"] = 8000, 1
    settings["training"] |= {"dtype": "float32", "lora": {"rank": 2}}
    settings["scoring"] |= {"dtype": "float32", "max_length": 2048}
    example = tmp_path / "example"
    example.mkdir()
    (example / "gateau.yaml").write_text(yaml.safe_dump(settings))
    (example / "own_answers.py").write_text((ROOT / "examples/experiment/own_answers.py").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "EXAMPLE", example)
        given = ["--nq", str(model.with_name("nq.jsonl")), "--model", str(model), "--folder", str(prepared.parent)]
        sizes = ["--tokens", "1500", "--window", "600", "--pool", "1", "--heldout", "1"]
        assert experiment.main([*given, *sizes, "--out", str(tmp_path / "experiment.json")]) == 0
    found = json.loads((tmp_path / "experiment.json").read_text())
    assert [each["benchmark"] for each in found["power"]] == ["answer_loss", "answers"]
    tables = {name: make(found) for name, (files, make) in figures.TABLES.items() if files == ("experiment",)}
    assert len(tables) == 5 and all("gateau" in table for table in tables.values())
    assert "| `random` |" in tables["experiment_loss"] and "| `random` |" not in tables["experiment_differences"]
