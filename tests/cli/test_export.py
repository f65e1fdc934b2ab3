"""`gateau export` writes the chosen samples as trainers read them."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.data.trainer_records import RECORDS, trainer_records
from tests.cli.command import Command
from tests.project import change_config


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


@pytest.mark.parametrize("form", RECORDS)
def test_each_form_is_its_twin(form: str) -> None:
    rows = [
        {"sample_id": "b", "source": "x", "context": "a\n\nb", "instruction": "q?", "response": "r", "score": 0.5},
        {"sample_id": "a", "source": "y", "context": "", "instruction": "only\nthis", "response": "é", "score": 0.75},
    ]
    rows = [row | {"digest": "", "rank": rank} for row, rank in zip(rows, (2, 1), strict=True)]
    assert trainer_records(pl.DataFrame(rows), form).to_dicts() == [expected(row, form) for row in reversed(rows)]


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
