"""`gateau init` writes a configuration that loads, fits data and model, and says why; `gateau schema` describes it."""

import json
from pathlib import Path

import click
import jsonschema
import pytest
import yaml

from gateau_dagster.cli.init import GOALS, Answers, ask
from gateau_dagster.pipeline.project import configuration_schema, load_project
from tests.cli.command import Command
from tests.kit.project import sample, write_model, write_samples
from tests.kit.tiny_models import tokenizer


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Samples of about 300 tokens, and a model that reads 512."""
    folder = tmp_path / "sources"
    folder.mkdir()
    write_samples(folder / "long.jsonl", [sample(number, sentences=40) for number in range(12)])
    write_model(folder / "model", seed=2)
    write_model(folder / "small", seed=1, window=64)
    return folder


def options(sources: Path, *more: str) -> tuple[str, ...]:
    return ("init", "--data", f"{sources}/long.jsonl", "--model", f"{sources}/model", "--device", "cpu", *more)


@pytest.mark.parametrize("goal", GOALS)
def test_the_file_loads_passes_validate_and_fits_its_schema(
    command: Command, tmp_path: Path, sources: Path, goal: str
) -> None:
    status, out, err = command(*options(sources, "--goal", goal))
    assert status == 0 and "gateau validate" in out and "gateau export messages" in out, err
    text = (tmp_path / "gateau.yaml").read_text()
    config = load_project(tmp_path / "gateau.yaml")
    assert config.models["short"].path == config.models["long"].path == str(sources / "model")
    assert config.training.enabled == (goal != "select") and (config.variants is not None) == (goal == "compare")
    assert (tmp_path / ".gitignore").read_text().split() == ["/.gateau/", "/gateau_store/"]
    first, *_ = text.splitlines()
    schema = json.loads((tmp_path / first.partition("$schema=")[2]).read_text())
    jsonschema.validate(yaml.safe_load(text), schema)
    status, _, err = command("validate")
    assert status == 0, err


def test_the_proposed_lengths_fit_prompts_and_model(command: Command, tmp_path: Path, sources: Path) -> None:
    command(*options(sources))
    config = load_project(tmp_path / "gateau.yaml")
    length, window = config.scoring.max_length, config.models["short"].window
    # 40 sentences and a fact: 281 to 372 tokens, of 512 that the model reads.
    assert (length, window, config.scoring.segment_length, config.scoring.dtype) == (384, 64, 16, "float32")
    write_samples(sources / "long.jsonl", [sample(number, sentences=200) for number in range(600)])
    command(*options(sources, "--force", "--short-model", f"{sources}/small"))
    config = load_project(tmp_path / "gateau.yaml")
    assert config.scoring.max_length == 512, "the model reads no more"
    assert (config.models["short"].path, config.models["short"].window) == (str(sources / "small"), 64), (
        "its own window"
    )
    assert config.long_sft.shards == 3
    text = (tmp_path / "gateau.yaml").read_text()
    assert "the start is cut" in text and "its own window" in text and "600 usable samples" in text


def test_the_template_follows_the_model_and_the_sources_are_offered_as_ground_truth(
    command: Command, tmp_path: Path, sources: Path
) -> None:
    (sources / "model" / "chat_template.jinja").unlink()
    command(*options(sources))
    text = (tmp_path / "gateau.yaml").read_text()
    assert "template: gateau  # plain text: the model has no chat template" in text and "ground_truth" in text
    write_model(sources / "model", seed=2, tokenizer=tokenizer())
    write_samples(sources / "long.jsonl", [sample(number) | {"source": "a"} for number in range(6)])
    command(*options(sources, "--force"))
    assert load_project(tmp_path / "gateau.yaml").scoring.template == "chat"
    assert "ground_truth" not in (tmp_path / "gateau.yaml").read_text(), "one source"
    assert command("validate")[0] == 0


def test_relative_paths_start_at_the_new_folder(
    command: Command, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    status, out, _ = command("init", str(tmp_path / "project"), "--data", "*.jsonl", "--model", "model")
    assert status == 0 and f"cd {tmp_path}/project" in out
    config = load_project(tmp_path / "project" / "gateau.yaml")
    assert (config.long_sft.path, config.models["long"].path) == ("../sources/*.jsonl", "../sources/model")


def test_a_file_is_replaced_only_by_force_and_gitignore_grows(command: Command, tmp_path: Path, sources: Path) -> None:
    (tmp_path / "gateau.yaml").write_text("long_sft: {path: mine.jsonl}\n")
    (tmp_path / ".gitignore").write_text("data/")
    status, _, err = command(*options(sources))
    assert status == 1 and "[init.exists]" in err
    assert (tmp_path / "gateau.yaml").read_text() == "long_sft: {path: mine.jsonl}\n"
    assert [command(*options(sources, "--force"))[0] for _ in range(2)] == [0, 0]
    assert (tmp_path / ".gitignore").read_text() == "data/\n/.gateau/\n/gateau_store/\n"


def test_wrong_answers_write_nothing(command: Command, tmp_path: Path, sources: Path) -> None:
    assert "[init.goal]" in command(*options(sources, "--goal", "trian"))[2]
    assert "did you mean train?" in command(*options(sources, "--goal", "trian"))[2]
    assert command("init", "--data", "x")[0] == 2, "without a terminal"
    assert command("init", "--data", "nothing.jsonl", "--model", "m")[0] == 1
    assert not (tmp_path / "gateau.yaml").exists()


def test_it_says_what_of_the_data_is_rejected_or_has_no_context(
    command: Command, tmp_path: Path, sources: Path
) -> None:
    good = [sample(number, sentences=40) for number in range(6)]
    bad = [{"id": f"b{number}", "context": "a b", "instruction": "c", "response": ""} for number in range(6)]
    write_samples(sources / "long.jsonl", [*good[:4], *(one | {"context": ""} for one in good[4:]), *bad])
    out = command(*options(sources))[1]
    assert "6 of 12 records rejected (50 %): 6 x " in out and "2 of 6 samples have no context" in out


def test_a_configuration_for_a_gpu_is_written_without_one(command: Command, tmp_path: Path, sources: Path) -> None:
    status, _, err = command(*options(sources, "--device", "cuda"))
    config = load_project(tmp_path / "gateau.yaml")
    assert status == 0, err
    assert (config.scoring.device, config.scoring.dtype) == ("cuda", "bfloat16")
    assert "[scoring.device]" in command(*options(sources, "--force", "--device", "tpux"))[2]


def test_it_asks_for_what_no_option_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["d.jsonl", "m", "", "cuda", "train"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *words, **named: next(answers))
    assert ask(None, None, None, None, None) == Answers(
        data="d.jsonl", model="m", short=None, device="cuda", goal="train"
    )


def test_schema_prints_what_editors_read(command: Command) -> None:
    status, out, _ = command("schema")
    schema = json.loads(out)
    assert status == 0 and schema == configuration_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    good = {"long_sft": {"path": "x"}, "selection": {"options": {"ladm": {"span_length": 64}}}}
    jsonschema.validate(good, schema)
    for wrong in (
        {"long_sft": {"path": "x"}, "scoring": {"max_lenght": 5}},
        {"long_sft": {"path": "x"}, "selection": {"options": {"ladm": {"spam": 64}}}},
        {"long_sft": {"path": "x"}, "folder": "y"},
        {"long_sft": {"path": "x"}, "evaluation": {"heldout": {"samples": "many"}}},
        {},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_data_are_none_of_the_files_that_are_written(command: Command, tmp_path: Path, sources: Path) -> None:
    data = tmp_path / ".gateau" / "gateau.schema.json"
    data.parent.mkdir()
    data.write_text(json.dumps([sample(number, sentences=40) for number in range(12)]))
    before = data.read_bytes()
    (tmp_path / "link.json").hardlink_to(data)
    for link in (data, tmp_path / "link.json"):
        status, _, err = command(*options(sources, "--data", str(link)))
        assert status == 1 and "[storage.file_in_use]" in err
        assert data.read_bytes() == before and not (tmp_path / "gateau.yaml").exists()


@pytest.mark.parametrize("text", ["", "caf\xe9\n", "/.gateau/\r\ncaf\xe9"])
def test_lines_are_added_to_an_ignore_file_of_any_encoding(
    command: Command, tmp_path: Path, sources: Path, text: str
) -> None:
    (tmp_path / ".gitignore").write_bytes(text.encode("latin-1"))
    status, _, err = command(*options(sources))
    assert status == 0, err
    written = (tmp_path / ".gitignore").read_bytes()
    assert written.startswith(text.encode("latin-1"))
    assert [written.splitlines().count(line) for line in (b"/.gateau/", b"/gateau_store/")] == [1, 1]


def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_is(
    command: Command, tmp_path: Path, sources: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "ignored" / ".gitignore").mkdir(parents=True)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / ".gateau").write_text("")
    for folder, code in {
        "file/below": "storage.path",
        "/proc/below": "storage.path",
        "/sys/below": "storage.permission",
        "ignored": "storage.path",
        "taken": "storage.path",
        "x" * 300: "storage.path",
        "caf\udce9": "data.path_encoding",
    }.items():
        status, out, err = command(*options(sources), folder)
        assert status == 1 and f"[{code}]" in err and "defect" not in out + err, (folder, err)
    assert not [*tmp_path.rglob("gateau.yaml")] and not (tmp_path / ".gateau" / "error.log").exists()
    for more in (("--data", "half\udce9.jsonl"), ("--model", "half\udce9")):
        status, _, err = command(*options(sources, *more))
        assert status == 1 and "[data.path_encoding]" in err
