"""`gateau export` writes the chosen samples as trainers read them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateau_dagster.data.trainer_records import FORMS, trainer_records, trainer_schema, trainer_table
from tests.cli.command import Command
from tests.project import change_config, make_project
from tests.training.builders import save_model
from tests.training.test_encode import HERMES


@pytest.fixture
def finished(whole_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_run.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "gateau.yaml"


def expected(row: dict[str, Any], form: str) -> dict[str, Any]:
    """The slow obvious twin of `trainer_records`."""
    context, instruction, response = (row[name] for name in ("context", "instruction", "response"))
    user = f"{context}\n\n{instruction}" if context else instruction
    turns = [{"role": "user", "content": user}], [{"role": "assistant", "content": response}]
    forms: dict[str, dict[str, Any]] = {
        "messages": {"messages": turns[0] + turns[1]},
        "prompt": {"prompt": turns[0], "completion": turns[1]},
        "sharegpt": {"conversations": [{"from": "human", "value": user}, {"from": "gpt", "value": response}]},
        "alpaca": {"instruction": instruction, "input": context, "output": response},
        "fields": {"context": context, "instruction": instruction, "response": response},
    }
    return forms[form] | {name: row[name] for name in ("sample_id", "source", "score", "rank")}


ROWS = [
    {
        "sample_id": "b",
        "source": "x",
        "context": "a\n\nb",
        "instruction": "q?",
        "response": "r",
        "score": 0.5,
        "rank": 2,
    },
    {
        "sample_id": "a",
        "source": "y",
        "context": "",
        "instruction": "only\nthis",
        "response": "é",
        "score": 0.75,
        "rank": 1,
    },
]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_its_twin(form: str) -> None:
    found = [*trainer_records(pl.DataFrame(ROWS), form)]
    assert found == [expected(row, form) for row in reversed(ROWS)]
    schema = trainer_schema(FORMS[form].columns, conversations=False)
    assert trainer_table(found, schema).to_pylist() == found


CALLS = [
    {"id": name, "type": "function", "function": {"name": name, "arguments": {name: [1, None], "é": "x"}}}
    for name in "fg"
]
TRACE = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what?"},
    {"role": "assistant", "content": "I look", "tool_calls": CALLS},
    {"role": "tool", "content": "one", "tool_call_id": "f"},
    {"role": "tool", "content": "two", "tool_call_id": "g"},
    {"role": "assistant", "content": "wrong", "loss": False},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "17"},
]
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def traces() -> pl.DataFrame:
    """The rows, one of them with several exchanges; its calls have their arguments as text, as OpenAI writes them."""
    given = json.loads(json.dumps(TRACE))
    for each in given[2]["tool_calls"]:
        each["function"]["arguments"] = json.dumps(each["function"]["arguments"])
    given[5]["trained"] = given[5].pop("loss")
    text = json.dumps({"messages": given, "tools": TOOL})
    return pl.DataFrame([ROWS[0] | {"conversation": None}, ROWS[1] | {"conversation": text}])


def test_a_conversation_keeps_its_turns_and_tools() -> None:
    about = {name: ROWS[1][name] for name in ("sample_id", "source", "score", "rank")}
    forms: dict[str, Any] = {form: [*trainer_records(traces(), form)] for form in FORMS}
    assert forms["messages"][0] == about | {"messages": TRACE, "tools": json.dumps(TOOL)}
    assert forms["prompt"][0] == about | {"prompt": TRACE[:-1], "completion": TRACE[-1:], "tools": json.dumps(TOOL)}
    called = [{"name": name, "arguments": CALLS[place]["function"]["arguments"]} for place, name in enumerate("fg")]
    told = forms["sharegpt"][0]["conversations"]
    assert [each["from"] for each in told] == ["system", "human", "function_call", "observation", "gpt", "human", "gpt"]
    text, calls = told[2]["value"].removesuffix("</tool_call>").split("\n<tool_call>")
    assert (text, json.loads(calls)) == ("I look", called) and "one" in told[3]["value"] and "two" in told[3]["value"]
    assert forms["fields"][0] == expected(ROWS[1], "fields") and forms["messages"][1] == expected(ROWS[0], "messages")
    (last, *_) = trainer_records(traces(), "messages", "last")
    assert [turn["content"] for turn in last["messages"] if turn.get("loss") is False] == ["I look", "wrong"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_selection_of_traces_is_read_back(command: Command, finished: Path, tmp_path: Path, name: str) -> None:
    traces().sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, out, err = command("export", "messages", "--out", name)
    assert (status, err) == (0, "") and "message_field_training: loss" in out
    file = tmp_path / name
    if file.suffix == ".jsonl":
        found = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        found = pq.read_table(file).to_pylist()
        assert pq.read_schema(file).field("messages").type == pa.list_(pa.json_())
        for record in found:
            record["messages"] = [json.loads(turn) for turn in record["messages"]]
    by_rank = [*trainer_records(traces()[::-1], "messages")]
    assert found == [record | {"tools": record.get("tools")} for record in by_rank]


def test_tokenised_samples_are_those_of_the_training_mix(command: Command, finished: Path, tmp_path: Path) -> None:
    status, out, err = command("export", "tokenised", "--out", "out.parquet")
    assert (status, err) == (0, "") and "axolotl: - {path: out.parquet, ds_type: parquet, type: }" in out
    found = pl.read_parquet(tmp_path / "out.parquet")
    mix = pl.read_parquet(tmp_path / "store" / "training_mix.parquet").filter(pl.col("origin") == "long")
    wanted = mix.select("sample_id", "input_ids", "labels").unique()
    assert found.select(wanted.columns).sort("sample_id").equals(wanted.sort("sample_id"))
    assert found["attention_mask"].list.len().to_list() == found["input_ids"].list.len().to_list()
    status, out, _ = command("export", "tokenised", "--max-tokens", "40")
    rows = [json.loads(line) for line in Path("selected.jsonl").read_text().splitlines()]
    assert status == 0 and max(len(row["input_ids"]) for row in rows) <= 40 and "Shortened" in out


@pytest.mark.parametrize("name", ["out.jsonl", "new/out.parquet"])
def test_the_chosen_samples_best_first(command: Command, finished: Path, tmp_path: Path, name: str) -> None:
    status, out, err = command("export", "messages", "--out", name)
    chosen = pl.read_parquet(tmp_path / "store" / "selected_subset.parquet").sort("rank")
    assert (status, err) == (0, "") and f"{chosen.height} samples" in out and "!" not in out
    file = tmp_path / name
    found = (
        [json.loads(line) for line in file.read_text().splitlines()]
        if file.suffix == ".jsonl"
        else pl.read_parquet(file).to_dicts()
    )
    assert found == [expected(row, "messages") for row in chosen.iter_rows(named=True)]


def test_a_selection_that_is_out_of_date_is_written_with_a_warning(command: Command, finished: Path) -> None:
    change_config(finished, selection={"fraction": 0.5})
    status, out, _ = command("export", "fields")
    assert status == 0 and "changed after this selection" in out and Path("selected.jsonl").exists()
    shutil.rmtree(finished.parent / "long")
    status, out, _ = command("export", "fields")
    assert status == 0 and "is not known" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("export", "mesages"), "export.format"),
        (("export", "messages", "--out", "x.csv"), "export.ending"),
        (("export", "messages", "--out", "gateau.yaml/x.jsonl"), "storage."),
    ],
)
def test_what_cannot_be_written_is_refused(command: Command, finished: Path, words: tuple[str, ...], code: str) -> None:
    status, _, err = command(*words)
    assert status == 1 and f"[{code}" in err


def test_a_data_set_that_is_not_configured_is_not_published(command: Command, finished: Path) -> None:
    status, _, err = command("publish")
    assert status == 1 and "[publish.not_configured]" in err


def test_nothing_is_selected_yet(command: Command, project: Path) -> None:
    status, _, err = command("export", "messages")
    assert status == 1 and "[storage.not_computed]" in err


def test_long_samples_are_cut_at_the_start_of_the_context(command: Command, finished: Path, tmp_path: Path) -> None:
    chosen = pl.read_parquet(tmp_path / "store" / "selected_subset.parquet").sort("rank")
    long = chosen.row(0, named=True)
    impossible = {"response": "coin-6 " * 100}
    chosen = pl.concat(
        [chosen[:1], chosen[1:2].with_columns(**{name: pl.lit(text) for name, text in impossible.items()})]
    )
    chosen.write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, out, err = command("export", "fields", "--max-tokens", "64")
    (record,) = map(json.loads, Path("selected.jsonl").read_text().splitlines())
    assert (status, err) == (0, "") and "1 sample " in out and f"Left out {chosen['sample_id'][1]}" in out
    assert long["context"].endswith(record["context"]) and 40 < len(record["context"].split()) < 64
    assert record | {"context": long["context"]} == expected(long, "fields")


def test_counting_tokens_needs_a_model(command: Command, finished: Path) -> None:
    lines = (
        "storage: {root: store}",
        "long_sft: {path: long/*}",
        "selection: {method: length}",
        "training: {enabled: false}",
    )
    finished.write_text("\n".join(lines))
    status, _, err = command("export", "fields", "--max-tokens", "64")
    assert status == 1 and "[export.model" in err and not Path("selected.jsonl").exists()


_TRL = ("trl==1.16.0", "datasets==5.2.0", "dill", "multiprocess", "xxhash", "pandas", "pytz", "python-dateutil", "six")
_TRAIN = """
import json, sys
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
model, kind, file, assistant = sys.argv[1:]
data = load_dataset(kind, data_files=file, split="train")
args = SFTConfig(
    output_dir="trained", max_length=None, assistant_only_loss=bool(assistant), max_steps=1, report_to="none",
    per_device_train_batch_size=1, gradient_checkpointing=False, bf16=False, use_cpu=True,
)
trainer = SFTTrainer(model=model, train_dataset=data, args=args)
trainer.train()
rows = [{name: row[name] for name in ("input_ids", "labels")} for row in trainer.train_dataset]
print("ROWS" + json.dumps(rows))
"""


@pytest.mark.long
def test_trl_learns_the_tokens_that_training_here_learns(command: Command, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    installed = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), *_TRL]
    subprocess.run(installed, check=True)
    config = make_project(tmp_path, scoring={"template": "chat"})
    save_model(tmp_path / "long")
    # TRL finds the answers by these marks; ours finds them without.
    marked = HERMES.replace("<|assistant|>\n{{ m.content }}", "<|assistant|>\n{% generation %}{{ m.content }}")
    marked = marked.replace(
        "{% endfor %}<|end|>\n{% else %}", "{% endfor %}<|end|>{% endgeneration %}{{ '\n' }}{% else %}"
    )
    (tmp_path / "long" / "chat_template.jinja").write_text(marked)
    given = traces().with_columns(
        pl.col("conversation").str.replace('"trained": false, ', "").str.replace(', "trained": false', "")
    )
    (tmp_path / "store").mkdir()
    given.sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")

    def exported(form: str, name: str) -> list[str]:
        status, _, err = command("export", form, "--out", name, "--config", str(config))
        assert status == 0, err
        return [{".jsonl": "json", ".parquet": "parquet"}[Path(name).suffix], name]

    def learned(file: list[str], *, assistant: bool) -> list[dict[str, list[int]]]:
        done = subprocess.run(
            [sys.executable, "-c", _TRAIN, str(tmp_path / "long"), *file, "yes" if assistant else ""],
            env={**os.environ, "PYTHONPATH": str(packages), "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rpartition("ROWS")[2])

    for trained, form in (("all", "messages"), ("last", "prompt")):
        change_config(config, training={"trained_turns": trained})
        ours = learned(exported("tokenised", "tokens.parquet"), assistant=False)
        assert ours == pq.read_table("tokens.parquet", columns=["input_ids", "labels"]).to_pylist()
        for name in ("out.jsonl", "out.parquet"):
            for own, theirs in zip(ours, learned(exported(form, name), assistant=form == "messages"), strict=True):
                count = len(own["input_ids"])
                assert theirs["input_ids"][:count] == own["input_ids"] and theirs["labels"][:count] == own["labels"]
                # The line feed after the last answer, on which a completion has loss.
                assert len(theirs["input_ids"]) == count + 1
