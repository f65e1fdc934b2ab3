"""lm-eval's tasks on the model in process: its values question by question, against the model's own likelihoods."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmarks import short_tasks
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.storage.remote import filesystem
from tests.features.evaluation.builders import chosen, materials, project, write_jsonl
from tests.kit.error_codes import refused

from .builders import loaded, vocabulary

_INSTALLED = short_tasks.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.skipif(not _INSTALLED, reason="lm-eval, of the extra evaluation, is not installed")
ROWS = [
    {"question": f"the {one} of the", "choices": [f"{two}", f"{three} {two}"], "label": number % 2}
    for number, (one, two, three) in enumerate(zip(*[iter(vocabulary()[30:60])] * 3, strict=True))
]


def _task(folder: Path) -> dict[str, Any]:
    """A task file of our own over data of our own."""
    write_jsonl(folder / "rows.jsonl", ROWS)
    task = {
        "task": "own_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (folder / "own").mkdir()
    (folder / "own" / "choice.yaml").write_text(json.dumps(task))
    return {"include": "own", "tasks": [{"task": "own_choice"}], "batch_size": 4}


def _likelihood(question: str, choice: str) -> float:
    model = loaded()
    before = model.tokenizer.encode(question, add_special_tokens=False)
    ids = torch.tensor([[*before, *model.tokenizer.encode(f" {choice}", add_special_tokens=False)]])
    with torch.no_grad():
        logs = torch.log_softmax(model.model(input_ids=ids).logits[0].double(), -1)
    return sum(logs[place - 1, ids[0, place]].item() for place in range(len(before), ids.shape[1]))


@needs_lm_eval
@pytest.mark.long
def test_values_are_those_of_the_model_s_likelihoods(tmp_path: Path) -> None:
    config = project(tmp_path, "short_tasks", **_task(tmp_path))
    found = chosen(config).measure(materials(config, model=lambda _: loaded()), "variant")
    assert found.table.schema == tables.schema(tables.SCORES)
    expected = []
    for row in ROWS:
        first, second = (_likelihood(row["question"], choice) for choice in row["choices"])
        expected.append(100.0 * ((second > first) == row["label"]))
    assert found.table["value"].to_list() == expected and 0 < sum(expected) < 1000
    assert found.table["question_id"].to_list() == [f"own_choice/{place}" for place in range(len(ROWS))]
    assert found.table["group"].unique().to_list() == ["own_choice"]


@needs_lm_eval
@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"task": "own_choice", "metric": "f1"}, "no metric 'f1', but acc"),
        ({"task": "own_choice", "filter": "strict"}, "no filter 'strict', but none"),
        ({"task": "unknown_task"}, "lm-eval has no task 'unknown_task'"),
    ],
)
def test_what_lm_eval_does_not_have_is_named(task: dict[str, Any], words: str, tmp_path: Path) -> None:
    config = project(tmp_path, "short_tasks", **{**_task(tmp_path), "tasks": [task], "rows": 2})
    with pytest.raises(GateauError, match=words):
        chosen(config).measure(materials(config, model=lambda _: loaded()), "variant")


@needs_lm_eval
@pytest.mark.long
@pytest.mark.parametrize("remote", [False, True])
def test_published_tasks_read_copies_of_their_data(remote: bool, tmp_path: Path, bucket: str) -> None:
    """HellaSwag from a folder that lies as the hub has it, here or on S3; every sentence ends as the label says."""
    rows = [
        {"ind": n, "activity_label": "a", "ctx_a": f"the {word}", "ctx_b": "of", "ctx": f"the {word} of"}
        | {"endings": ["the", word, "note", "recall"], "label": "1", "source_id": "x", "split": "val"}
        for n, word in enumerate(vocabulary()[40:52])
    ]
    for split in ("train", "validation"):
        write_jsonl(tmp_path / "copies" / "Rowan" / "hellaswag" / f"{split}.jsonl", rows)
    where = f"s3://{bucket}/copies" if remote else "copies"
    if remote:
        filesystem(where).put(str(tmp_path / "copies" / "Rowan"), f"{where}/Rowan", recursive=True)
        shutil.rmtree(tmp_path / "copies")
    options = {
        "data": where,
        "rows": 3,
        "tasks": [{"task": "hellaswag", "metric": "acc_norm", "shots": 2, "data": "Rowan/hellaswag"}],
    }
    config = project(tmp_path, "short_tasks", **options)
    settings = chosen(config).settings()
    assert {*settings} == {"lm-eval", short_tasks.DATA}
    found = chosen(config).measure(materials(config, model=lambda _: loaded()), "variant")
    assert found.table["question_id"].to_list() == [f"hellaswag/{place}" for place in range(3)]


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_tasks, "find_spec", lambda _: None)
    with refused("evaluation.package", r"evaluation\.short_tasks"):
        scored_benchmarks(project(tmp_path, "short_tasks"))
    monkeypatch.setattr(short_tasks, "find_spec", lambda _: True)
    with refused("evaluation.benchmark_files", r"short_tasks\.data.*Rowan/hellaswag"):
        scored_benchmarks(project(tmp_path, "short_tasks", data="nowhere"))
    with pytest.raises(GateauError, match=r"short_tasks\.include: .*nowhere does not exist: give"):
        scored_benchmarks(project(tmp_path, "short_tasks", include="nowhere"))


def test_other_task_files_are_another_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_tasks, "find_spec", lambda _: True)
    monkeypatch.setattr(short_tasks, "version", lambda _: "1")
    given = _task(tmp_path)
    config = project(tmp_path, "short_tasks", **given)

    def settings() -> Any:
        return chosen(config).settings()

    before = settings()
    cache = tmp_path / "own" / "__pycache__"
    cache.mkdir()
    (cache / "utils.pyc").write_bytes(b"made by the run itself")
    assert settings() == before
    file = tmp_path / "own" / "choice.yaml"
    file.write_text(file.read_text().replace("{{question}}", "Say: {{question}}"))
    assert settings() != before


def test_data_on_s3_that_are_not_there_are_named(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_tasks, "find_spec", lambda _: True)
    config = project(tmp_path, "short_tasks", data=f"s3://{bucket}/none")
    options = chosen(config).options
    assert isinstance(options, short_tasks.ShortTasksOptions)
    with pytest.raises(GateauError, match=r"short_tasks\.data: .*Rowan/hellaswag.*hf download Rowan/hellaswag"):
        short_tasks.local_data(options.tasks[0], options, config)
