"""Run agent traces of several dialects through the whole pipeline, with the model's own chat template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.assets.trained_model import TrainingRequest, specification
from gateau_dagster.pipeline import model_checks
from gateau_dagster.pipeline.recipes import MIX, recipe_of
from gateau_dagster.pipeline.selection_reads import CHOSEN
from tests.assets.harness import Pipeline, pipeline_on
from tests.data.inputs import SESSIONS
from tests.kit.project import change_config, make_project, try_here, write_model
from tests.training.builders import tokenizer
from tests.training.test_encode import HERMES

QUESTION, RESULT, ANSWER = "Which port does the ledger's server use?", "port = 8417", "It uses port 8417."
ARGUMENTS = {"path": "ledger.toml"}
TOOL = {"name": "read", "description": "Read a file.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": json.dumps(ARGUMENTS)}}
RECORDS: dict[str, dict[str, Any]] = {
    "openai": {
        "tools": [{"type": "function", "function": TOOL}],
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
            {"role": "assistant", "content": ANSWER},
        ],
    },
    "anthropic": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": ARGUMENTS}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULT}]},
            {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
        ],
    },
    "sharegpt": {
        "tools": json.dumps([TOOL]),
        "conversations": [
            {"from": "human", "value": QUESTION},
            {"from": "function_call", "value": json.dumps({"name": "read", "arguments": ARGUMENTS})},
            {"from": "observation", "value": RESULT},
            {"from": "gpt", "value": ANSWER},
        ],
    },
}
"""The same conversation in each dialect of records."""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """Yield a project of which nothing has run: a folder of records and session files, and a model with a template."""
    monkeypatch.setattr(model_checks, "try_chat_template", try_here)
    file = make_project(
        tmp_path,
        samples=0,
        long_sft={"path": "traces", "turns": "last", "shards": 1},
        scoring={"template": "chat", "max_length": 1024},
        selection={"fraction": 1.0, "evidence": True},
        training=True,
        evaluation={"benchmarks": []},
    )
    change_config(file, training={"max_length": 1024})
    spelling = tokenizer(chat=HERMES)
    for name, window, seed in (("short", 64, 1), ("long", 1024, 2)):
        write_model(tmp_path / name, seed=seed, window=window, tokenizer=spelling)
    (tmp_path / "traces").mkdir()
    for name, record in RECORDS.items():
        lines = [{"id": name, "source": name, **record}]
        write(tmp_path / "traces" / f"{name}.jsonl", lines)
    for agent, lines in SESSIONS.items():
        write(tmp_path / "traces" / f"{agent}.jsonl", lines)
    with pipeline_on(file) as pipeline:
        yield pipeline


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def check_tracked(traces: Pipeline) -> None:
    """Check that a tracker would receive the chosen samples and the mix."""
    change_config(traces.file, training={"report_to": ["wandb"], "report_data": True})
    state, stamp = traces.state(), traces.stamp("checkpoint")
    recipe = recipe_of(state.config, None)
    names: Any = {"folder": "checkpoint", "mix": recipe.table(MIX), "subset": recipe.table(CHOSEN), "model": "long"}
    wanted = TrainingRequest(**names, training=state.config.training)
    data = specification(state, stamp, wanted, traces.file.parent / "scratch").data
    assert {name: path.name for name, path in data.items()} == {name: name for name in data} and len(data) == 2
    assert all(path.is_file() for path in data.values())


@pytest.mark.long
def test_traces_of_all_dialects_reach_a_trained_checkpoint_and_the_report(traces: Pipeline) -> None:
    assert {"evidence", "checkpoint", "report"} <= {asset for asset, _ in traces.made()}
    state, folder = traces.state(), traces.file.parent / "store"
    assert not state.plan()
    raw = state.read("raw_long_sft")
    assert dict(raw.select("sample_id", "source").iter_rows()) == {name: name for name in (*RECORDS, *SESSIONS)}
    of_records = raw.filter(pl.col("sample_id").is_in([*RECORDS]))
    texts = of_records["instruction"].to_list(), of_records["response"].to_list()
    assert texts == ([QUESTION] * 3, [ANSWER] * 3) and all(RESULT in text for text in of_records["context"])
    # The model learns each call and each answer, with their ends, and nothing else.
    spelling = AutoTokenizer.from_pretrained(folder / "checkpoint")
    assert spelling.chat_template == HERMES
    for sample_id, ids, labels in state.read("training_mix", ["sample_id", "input_ids", "labels"]).iter_rows():
        learned = "".join(
            spelling.decode([each]) if label >= 0 else "\0" for each, label in zip(ids, labels, strict=True)
        )
        path, text = ("ledger.toml", ANSWER) if sample_id in RECORDS else ("a.py", "Fixed.")
        before = "" if sample_id in RECORDS else "Let me look."
        call = f'{before}<tool_call>\n{{"name": "read", "arguments": {{"path": "{path}"}}}}\n</tool_call><|end|>'
        assert [each for each in learned.split("\0") if each] == [call, f"{text}<|end|>"]
    trained, untrained = (
        AutoModelForCausalLM.from_pretrained(each) for each in (folder / "checkpoint", folder.parent / "long")
    )
    assert any((one != other).any() for one, other in zip(trained.parameters(), untrained.parameters(), strict=True))
    page = (folder / "report.html").read_text()
    check_tracked(traces)
    assert "What the responses depend on" in page and all(name in page for name in (*RECORDS, *SESSIONS))
