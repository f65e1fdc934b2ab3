"""`gateau export` writes the chosen samples as trainers read them."""

import json
import os
import random
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from secret_table import KINDS

from gateau_dagster.data.secret_scan import secret_hash
from gateau_dagster.data.trainer_records import (
    FORMS,
    TOGETHER,
    trainer_records,
    trainer_schema,
    trainer_table,
    write_parquet,
)
from gateau_dagster.pipeline import model_checks
from tests.cli.command import Command
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project, try_here
from tests.training.builders import save_model, tokenizer
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


COLUMNS = ("sample_id", "source", "context", "instruction", "response", "score", "rank")
ROWS: list[dict[str, Any]] = [
    dict(zip(COLUMNS, row, strict=True))
    for row in [("b", "x", "a\n\nb", "q?", "r", 0.5, 2), ("a", "y", "", "only\nthis", "é", 0.75, 1)]
]


def test_a_large_selection_has_several_row_groups(tmp_path: Path) -> None:
    """A reader of the hub scans no gigabytes for one sample."""
    rows = pl.DataFrame([{**ROWS[0], "rank": rank} for rank in range(TOGETHER + 1)])
    schema = trainer_schema(FORMS["messages"].columns, conversations=False)
    write_parquet(trainer_records(rows, "messages"), schema, tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 2
    assert pq.read_table(tmp_path / "out.parquet")["rank"].to_pylist() == rows["rank"].to_list()


@pytest.mark.parametrize("form", [form for form in FORMS if not FORMS[form].of_evidence])
def test_each_form_is_its_twin(form: str) -> None:
    found = [*trainer_records(pl.DataFrame(ROWS), form)]
    assert found == [expected(row, form) for row in reversed(ROWS)]
    schema = trainer_schema(FORMS[form].columns, conversations=False)
    assert trainer_table(found, schema).to_pylist() == found


SPANS = pl.DataFrame(
    [
        ROWS[0] | {"context": "0123456789" * 3, "evidence": [{"start": 4, "end": 8}, {"start": 8, "end": 12}]},
        ROWS[1] | {"context": "alone", "evidence": []},
        ROWS[1] | {"sample_id": "c", "context": "ab  cd", "evidence": [{"start": 0, "end": 2}, {"start": 4, "end": 6}]},
    ]
)


def test_preference_has_the_whole_context_and_the_evidence_alone() -> None:
    second, first = trainer_records(SPANS.reverse(), "preference")
    assert (first["sample_id"], second["sample_id"]) == ("b", "c")  # the one without evidence is left out
    assert first["prompt"][0]["content"] == "0123456789" * 3 + "\n\nq?"
    assert first["short_prompt"] == [{"role": "user", "content": "45678901\n\nq?"}]
    assert second["short_prompt"][0]["content"] == "ab\n\ncd\n\nonly\nthis"
    assert first["chosen"] == [{"role": "assistant", "content": "r"}]


def test_chunks_are_the_context_cut_at_its_evidence() -> None:
    second, first = trainer_records(SPANS.reverse(), "chunks")
    texts = [(chunk["text"], chunk["grounding"]) for chunk in first["chunks"]]
    assert "".join(text for text, _ in texts) == "0123456789" * 3
    assert [text for text, grounding in texts if grounding] == ["4567", "8901"]
    assert len(texts) == 4
    assert [chunk["text"] for chunk in second["chunks"]] == ["ab", "  ", "cd"]
    for form in ("preference", "chunks"):
        found = [*trainer_records(SPANS, form)]
        assert trainer_table(found, trainer_schema(FORMS[form].columns, conversations=False)).to_pylist() == found


def test_short_and_empty_evidence_does_not_cut_a_context_to_crumbs() -> None:
    spans = [{"start": 7, "end": 7}, {"start": 900, "end": 905}]
    (record,) = trainer_records(pl.DataFrame([ROWS[0] | {"context": "0123456789" * 1000, "evidence": spans}]), "chunks")
    lengths = [len(chunk["text"]) for chunk in record["chunks"]]
    assert sum(lengths) == 10_000 and [chunk["grounding"] for chunk in record["chunks"]].count(True) == 1
    assert sorted(lengths)[0] == 5 and 400 < sorted(lengths)[1] <= max(lengths) < 600


def test_without_the_column_such_forms_are_refused() -> None:
    with refused("export.no_evidence"):
        next(trainer_records(pl.DataFrame(ROWS), "chunks"))


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
    {"role": "assistant", "content": "wrong"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "17"},
]
LOSSES = [False, False, True, False, False, False, False, True]
"""Whether each turn of TRACE is learned."""
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def traces() -> pl.DataFrame:
    """Return rows, one of them with several exchanges. Its calls have their arguments as text, as in OpenAI's form."""
    given = json.loads(json.dumps(TRACE))
    for each in given[2]["tool_calls"]:
        each["function"]["arguments"] = json.dumps(each["function"]["arguments"])
    given[5]["trained"] = False
    text = json.dumps({"messages": given, "tools": TOOL})
    return pl.DataFrame([ROWS[0] | {"conversation": None}, ROWS[1] | {"conversation": text}])


def told(*messages: tuple[str, str]) -> pl.DataFrame:
    """Return rows, one of them with a conversation of these roles and texts."""
    text = json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]})
    return pl.DataFrame([ROWS[0] | {"conversation": None}, ROWS[1] | {"conversation": text}])


def test_a_conversation_keeps_its_turns_and_tools() -> None:
    about = {name: ROWS[1][name] for name in ("sample_id", "source", "score", "rank")}
    trace = [turn | {"loss": loss} for turn, loss in zip(TRACE, LOSSES, strict=True)]
    plain = expected(ROWS[0], "messages")
    plain["messages"] = [turn | {"loss": turn["role"] == "assistant"} for turn in plain["messages"]]
    forms: dict[str, Any] = {form: [*trainer_records(traces(), form)] for form in FORMS if not FORMS[form].of_evidence}
    assert forms["messages"][0] == about | {"messages": trace, "tools": json.dumps(TOOL)}
    assert forms["prompt"][0] == about | {"prompt": trace[:-1], "completion": trace[-1:], "tools": json.dumps(TOOL)}
    called = [{"name": name, "arguments": CALLS[place]["function"]["arguments"]} for place, name in enumerate("fg")]
    said = forms["sharegpt"][0]["conversations"]
    assert [each["from"] for each in said] == ["system", "human", "function_call", "observation", "gpt", "human", "gpt"]
    text, calls = said[2]["value"].removesuffix("</tool_call>").split("\n<tool_call>")
    assert (text, json.loads(calls)) == ("I look", called) and "one" in said[3]["value"] and "two" in said[3]["value"]
    assert forms["fields"][0] == expected(ROWS[1], "fields") and forms["messages"][1] == plain | {"tools": "[]"}
    (last, *_) = trainer_records(traces(), "messages", "last")
    assert [turn["content"] for turn in last["messages"] if turn["loss"]] == ["17"]


@pytest.mark.parametrize("form", ["messages", "prompt", "sharegpt"])
def test_json_lines_have_the_same_fields_throughout(
    command: Command, finished: Path, tmp_path: Path, form: str
) -> None:
    """Check the fields of each line: `datasets` takes them from the first 10 MB, and fails on others."""
    chosen = told(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    chosen.sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, _, err = command("export", form, "--out", "out.jsonl")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    turns = {name for record in records for value in record.values() if isinstance(value, list) for name in value[0]}
    assert (status, err, len(records)) == (0, "", 2) and records[0].keys() == records[1].keys()
    assert turns == ({"from", "value"} if form == "sharegpt" else {"role", "content", "loss"})
    assert {record["tools"] for record in records} == {"" if form == "sharegpt" else "[]"}


def test_tool_calls_are_refused_as_json_lines(command: Command, finished: Path, tmp_path: Path) -> None:
    traces().sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    for form in ("messages", "prompt"):
        status, _, err = command("export", form, "--out", "out.jsonl")
        assert status == 1 and "[export.turn_fields]" in err and ".parquet" in err
    assert not (tmp_path / "out.jsonl").exists()
    assert command("export", "sharegpt", "--out", "out.jsonl")[0] == 0  # its turns are texts


def test_what_llama_factory_would_skip_is_left_out_of_sharegpt(
    command: Command, finished: Path, tmp_path: Path
) -> None:
    interrupted = told(
        ("system", "s"), ("user", "a"), ("assistant", "f()"), ("tool", "1"), ("user", "b"), ("assistant", "c")
    )
    interrupted.sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, out, err = command("export", "sharegpt", "--out", "out.jsonl")
    assert (status, err) == (0, "") and "Left out a: the turn human follows observation" in out
    assert [json.loads(line)["sample_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["b"]
    with pytest.warns(UserWarning, match="Left out a: the turn human"):
        assert [record["sample_id"] for record in trainer_records(interrupted, "sharegpt")] == ["b"]
    only = interrupted.filter(sample_id="a")
    only.write_parquet(tmp_path / "store" / "selected_subset.parquet")
    assert "[export.empty]" in command("export", "sharegpt", "--out", "out.jsonl")[2]


def test_trl_is_given_the_form_whose_loss_is_on_the_last_turn(command: Command, finished: Path, tmp_path: Path) -> None:
    """Check the form that is named: TRL ignores `loss`, so it would learn the earlier answers of messages."""
    traces().sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    for trained, advised in (("all", "assistant_only_loss=True"), ("last", "gateau export prompt")):
        change_config(finished, training={"trained_turns": trained})
        out = command("export", "messages", "--out", "out.parquet")[1]
        assert ("assistant_only_loss" in out) == (trained == "all") and advised in out


def test_samples_without_evidence_are_left_out_and_counted(command: Command, finished: Path, tmp_path: Path) -> None:
    SPANS.sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, out, err = command("export", "chunks", "--out", "out.jsonl")
    assert (status, err) == (0, "") and "Left out 1 sample without evidence" in out and "Wrote 2 samples" in out
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    status, _, err = command("export", "preference", "--max-tokens", "40")
    assert status != 0 and "[export.whole]" in err
    lacking = SPANS.with_columns(evidence=pl.lit(None, SPANS.schema["evidence"])).sort("rank")
    lacking.write_parquet(tmp_path / "store" / "selected_subset.parquet")
    for form in ("chunks", "preference"):
        status, _, err = command("export", form, "--out", "out.jsonl")
        assert status == 1 and "[export.empty]" in err and "3 of them for lack of evidence" in err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2  # the earlier export stays


def test_a_selection_of_traces_is_read_back(command: Command, finished: Path, tmp_path: Path) -> None:
    traces().sort("rank").write_parquet(tmp_path / "store" / "selected_subset.parquet")
    status, out, err = command("export", "messages", "--out", "out.parquet")
    assert (status, err) == (0, "") and "message_field_training: loss" in out
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert pq.read_schema(tmp_path / "out.parquet").field("messages").type == pa.list_(pa.json_())
    for record in found:
        record["messages"] = [json.loads(turn) for turn in record["messages"]]
    assert found == [*trainer_records(traces()[::-1], "messages")]


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


def test_it_is_told_that_a_trainer_may_read_control_tokens(command: Command, finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "store" / "selected_subset.parquet"
    chosen = pl.read_parquet(file)
    spelled = pl.when(pl.int_range(pl.len()) < 2).then(pl.col("response") + " </s>").otherwise("response")
    chosen.with_columns(response=spelled).write_parquet(file)
    out = {form: command("export", form, "--out", "out.parquet")[1] for form in ("messages", "tokenised")}
    assert "2 written samples spell control tokens" in out["messages"] and "control" not in out["tokenised"]


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
    assert status == 0 and "selected_subset is out of date" in out and Path("selected.jsonl").exists()
    shutil.rmtree(finished.parent / "long")
    status, out, _ = command("export", "fields")
    assert status == 0 and "is not known" in out
    Path("selected.jsonl").unlink()
    status, _, errors = command("export", "messages", "--require-current", "--config", str(finished))
    assert status == 1 and "[storage.out_of_date]" in errors and not Path("selected.jsonl").exists()


@pytest.mark.parametrize("form", ["messages", "tokenised"])
def test_a_secret_is_named_by_sample_and_field_and_the_file_is_written(
    command: Command, finished: Path, tmp_path: Path, form: str
) -> None:
    (secret,) = (make(random.Random(0)) for make in KINDS["xAI"])
    path = tmp_path / "store" / "selected_subset.parquet"
    table = pl.read_parquet(path).sort("rank")
    texts = [f'printed {{"key": "a\\n{secret}"}}', *table["response"][1:]]
    pq.write_table(table.with_columns(response=pl.Series(texts)).to_arrow(), path)
    status, out, _ = command("export", form, "--out", "out.parquet")
    said = " ".join(out.split())
    assert status == 0 and pq.read_metadata(tmp_path / "out.parquet").num_rows == table.height
    assert f"secrets in {table['sample_id'][0]} (response: key of a service)" in said and secret[-9:] not in said
    change_config(finished, publish={"repository": "a/b", "license": "mit"})
    change_config(finished, publish={"accepted_findings": [secret_hash(secret)]})
    assert "secrets in" not in command("export", form, "--out", "out.parquet")[1]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("export", "mesages"), "export.format"),
        (("export", "messages", "--out", "x.csv"), "export.ending"),
        (("export", "messages", "--out", "gateau.yaml/x.jsonl"), "storage."),
        (("export", "messages", "--out", "long.jsonl"), "storage.file_in_use"),
        (("export", "messages", "--out", "store/../long.jsonl"), "storage.file_in_use"),
        (("export", "messages", "--out", "store/selected_subset.parquet"), "storage.file_in_use"),
        (("export", "messages", "--out", ".gateau/history/x.jsonl"), "storage.file_in_use"),
        (("export", "messages", "--out", "file:{}/long.jsonl"), "storage.file_in_use"),
        (("export", "messages", "--out", "file://{}/long.jsonl"), "storage.file_in_use"),
        (("export", "messages", "--out", "s3://bucket/x.jsonl"), "config.address"),
        (("export", "messages", "--out", ""), "config.path"),
    ],
)
def test_what_cannot_be_written_is_refused(command: Command, finished: Path, words: tuple[str, ...], code: str) -> None:
    files = [file for file in finished.parent.rglob("*.*") if not file.is_relative_to(finished.parent / ".gateau")]
    before = {file: file.stat().st_mtime_ns for file in files}
    status, _, err = command(*(word.format(finished.parent) for word in words))
    assert status == 1 and f"[{code}" in err, err
    assert {file: file.stat().st_mtime_ns for file in files} == before


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


_PACKAGES = (
    *("trl==1.16.0", "datasets==5.2.0", "dill", "multiprocess", "xxhash", "pandas", "pytz", "python-dateutil", "six"),
    *("llamafactory==0.9.5", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3"),
    *("axolotl==0.19.0", "colorama", "addict"),
)
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


_AXOLOTL = """
import json, sys
from datasets import load_dataset
from transformers import AutoTokenizer
from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
model, file = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
prompter = ChatTemplatePrompter(
    tokenizer, chat_template=tokenizer.chat_template, max_length=100001, message_field_training="loss"
)
strategy = ChatTemplateStrategy(
    prompter, tokenizer=tokenizer, train_on_inputs=False, sequence_len=100000, roles_to_train=["assistant"],
    train_on_eos="turn",
)
rows = map(strategy.tokenize_prompt, load_dataset("parquet", data_files=file, split="train"))
print("ROWS" + json.dumps([{name: [*row[name]] for name in ("input_ids", "labels")} for row in rows]))
"""
_LLAMA_FACTORY = """
import json, sys
from types import ModuleType
from unittest.mock import Mock
sys.modules["torchaudio"] = ModuleType("torchaudio")  # no sound is read
sys.modules["torchaudio"].__spec__ = Mock()
from pathlib import Path
from transformers import AutoTokenizer
from llamafactory.data.loader import get_dataset
from llamafactory.data.template import get_template_and_fix_tokenizer
from llamafactory.hparams import DataArguments, ModelArguments, TrainingArguments
model, file, entry = sys.argv[1:]
folder = Path(file).resolve().parent
(folder / "dataset_info.json").write_text(entry)
options = DataArguments(dataset="gateau", dataset_dir=str(folder), template="qwen", cutoff_len=100000)
tokenizer = AutoTokenizer.from_pretrained(model)
template = get_template_and_fix_tokenizer(tokenizer, options)
training = TrainingArguments(output_dir="trained", do_train=True, use_cpu=True, report_to="none")
models = ModelArguments(model_name_or_path=model)
made = get_dataset(template, models, options, training, stage="sft", tokenizer=tokenizer)["train_dataset"]
print("ROWS" + json.dumps([dict(input_ids=row["input_ids"], labels=row["labels"]) for row in made]))
"""


class Trainers:
    """Install other trainers' packages into a folder of their own, and run programs with them."""

    def __init__(self, folder: Path) -> None:
        self.packages, self._cache = folder / "packages", folder / "cache"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(self.packages)]
        subprocess.run([*install, *_PACKAGES], check=True)

    def rows(self, program: str, *words: object) -> list[dict[str, list[int]]]:
        """Run a program with the packages; return the rows that it prints."""
        # LLaMA-Factory 0.9.5 refuses the installed transformers unless its version check is off.
        added = {"PYTHONPATH": str(self.packages), "HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, words)],
            env={**os.environ, **added, "HF_HOME": str(self._cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rpartition("ROWS")[2])


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Trainers:
    return Trainers(tmp_path_factory.mktemp("trainers"))


def trace_project(folder: Path, chosen: pl.DataFrame, template: str, own: Any = None) -> Path:
    """Write a project with a selection whose model has this chat template; return its configuration."""
    config = make_project(folder, scoring={"template": "chat"})
    change_config(config, training={"max_length": 4096})
    save_model(folder / "long")
    if own is not None:
        own.save_pretrained(folder / "long")
    (folder / "long" / "chat_template.jinja").write_text(template)
    (folder / "store").mkdir()
    chosen.sort("rank").write_parquet(folder / "store" / "selected_subset.parquet")
    return config


def test_a_conversation_loses_its_oldest_turns_to_fit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_checks, "try_chat_template", try_here)
    config = trace_project(tmp_path, traces(), HERMES)
    words = ("export", "messages", "--max-tokens", "250", "--out", "out.parquet", "--config", str(config))
    status, out, _ = command(*words)
    short, whole = (map(json.loads, record["messages"]) for record in pq.read_table("out.parquet").to_pylist())
    assert status == 0 and "Shortened 1 sample " in out and len([*whole]) == 2
    kept = [turn | {"loss": loss} for turn, loss in zip(TRACE, LOSSES, strict=True)]
    assert [*short] == [*kept[:2], *kept[5:]]
    tokenizer(chat=None).save_pretrained(tmp_path / "long")
    (tmp_path / "long" / "chat_template.jinja").unlink()
    status, _, err = command(*words)
    assert status == 1 and "[models.chat_template" in err


@pytest.mark.long
def test_trl_learns_the_tokens_that_training_here_learns(command: Command, tmp_path: Path, trainers: Trainers) -> None:
    # TRL finds the answers by these marks; training here needs none.
    marked = HERMES.replace("<|assistant|>\n{{ m.content }}", "<|assistant|>\n{% generation %}{{ m.content }}")
    marked = marked.replace(
        "{% endfor %}<|end|>\n{% else %}", "{% endfor %}<|end|>{% endgeneration %}{{ '\n' }}{% else %}"
    )
    chosen = traces().with_columns(pl.col("conversation").str.replace_all(', "trained": false', ""))
    config = trace_project(tmp_path, chosen, marked)
    for trained, form in (("all", "messages"), ("last", "prompt")):
        change_config(config, training={"trained_turns": trained})
        for given, name in (("tokenised", "tokens.parquet"), (form, "out.parquet")):
            status, _, err = command("export", given, "--out", name, "--config", str(config))
            assert status == 0, err
        ours = trainers.rows(_TRAIN, tmp_path / "long", "parquet", "tokens.parquet", "")
        assert ours == pq.read_table("tokens.parquet", columns=["input_ids", "labels"]).to_pylist()
        assistant = "yes" if form == "messages" else ""
        learned = trainers.rows(_TRAIN, tmp_path / "long", "parquet", "out.parquet", assistant)
        for own, theirs in zip(ours, learned, strict=True):
            count = len(own["input_ids"])
            assert theirs["input_ids"][:count] == own["input_ids"] and theirs["labels"][:count] == own["labels"]
            # TRL's completion includes the line feed after the last answer, so it has loss.
            assert len(theirs["input_ids"]) == count + 1


@pytest.mark.long
def test_axolotl_and_llama_factory_learn_the_same_tokens(command: Command, tmp_path: Path, trainers: Trainers) -> None:
    """Compare by the trainers' own loaders. LLaMA-Factory learns the line feed after a turn's end, too."""
    qwen = deepcopy(tokenizer(chat=None))
    qwen.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    qwen.eos_token = "<|im_end|>"
    template = (trainers.packages / "trl" / "chat_templates" / "qwen2_5.jinja").read_text()
    config = trace_project(tmp_path, traces(), template, qwen)
    said = {}
    for form, name in (("tokenised", "tokens.parquet"), ("messages", "out.parquet"), ("sharegpt", "out.jsonl")):
        status, said[form], err = command("export", form, "--out", name, "--config", str(config))
        assert status == 0, err
    ours = pq.read_table("tokens.parquet", columns=["input_ids", "labels"]).to_pylist()
    feed = qwen("\n")["input_ids"]
    for own, theirs in zip(ours, trainers.rows(_AXOLOTL, tmp_path / "long", "out.parquet"), strict=True):
        assert theirs == {"input_ids": own["input_ids"] + feed, "labels": [*own["labels"], -100]}
    entry = said["sharegpt"].partition("dataset_info.json: ")[2]
    for own, theirs in zip(ours, trainers.rows(_LLAMA_FACTORY, tmp_path / "long", "out.jsonl", entry), strict=True):
        assert theirs["input_ids"] == own["input_ids"] + feed
        others = {
            token for token, label in zip(theirs["labels"], [*own["labels"], -100], strict=True) if token != label
        }
        # LLaMA-Factory has no flag for a turn without loss.
        assert others <= {*feed, *qwen("wrong<|im_end|>")["input_ids"]}
