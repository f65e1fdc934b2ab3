"""The command line in this process, and a few times in one of its own; what a user reads."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gateau_dagster.cli import commands, main
from gateau_dagster.pipeline import model_checks
from tests.cli.command import Command
from tests.kit.project import change_config, gateau, make_project, sample, try_here, write_samples
from tests.kit.tiny_models import tokenizer


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command(command: Command, option: str) -> None:
    status, out, _ = command(option)
    assert status == 0
    assert all(name in out for name in ("validate", "plan", "run", "dev", "clean", "Exit status"))
    for name in ("validate", "plan", "run", "dev", "clean"):
        status, out, _ = command(name, option)
        assert status == 0 and "--config" in out and "GATEAU_CONFIG" in out


@pytest.mark.parametrize("arguments", [("fly",), ("plan", "--fast"), ("plan", "--until"), ("validate", "extra")])
def test_wrong_usage_ends_with_2(command: Command, arguments: tuple[str, ...]) -> None:
    status, _, err = command(*arguments)
    assert status == 2 and ("Usage: gateau" in err or "requires an argument" in err) and "Traceback" not in err


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spins: str | None
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, given.get(name, ""))
        if name not in given:
            monkeypatch.delenv(name)
    seen = []
    monkeypatch.setattr(commands, "command_line", lambda: seen.append(os.environ.get("GOMP_SPINCOUNT")))
    main()
    assert seen == [spins]


@pytest.mark.parametrize("name", ["validate", "plan", "run", "dev", "clean"])
def test_a_wrong_key_is_named_with_its_line(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "g.yaml").write_text("long_sft: {path: x}\nmodels: {short: {path: s}, long: {path: l}}\nscorring: {}\n")
    status, _, err = command(name, "--config", "g.yaml")
    assert status == 1
    mistake = "g.yaml:3: scorring: unknown key; did you mean scoring? [config.unknown_key]"
    assert err == f"Error: The configuration is wrong:\n  {mistake}\n"


@pytest.mark.parametrize("name", ["validate", "plan", "run", "dev", "clean"])
def test_a_schedule_that_never_comes_is_named_with_its_line(command: Command, project: Path, name: str) -> None:
    text = project.read_text() + "execution:\n  schedule: 0 0 31 4 *\n"
    project.write_text(text)
    status, _, err = command(name, "--config", str(project))
    assert status == 1
    assert (
        f"  gateau.yaml:{len(text.splitlines())}: execution.schedule: '0 0 31 4 *' names a date that does not exist"
        in err
    )


def test_a_plan_names_a_missing_model(command: Command, project: Path) -> None:
    change_config(project, models={"long": {"path": "no_such_model"}})
    status, _, err = command("plan", "--config", str(project))
    assert status == 1 and "models.long.path: there is no folder" in err and "Traceback" not in err


def test_an_unknown_asset_is_answered_with_the_known_ones(command: Command, project: Path) -> None:
    status, _, err = command("plan", "--config", str(project), "--until", "reprot")
    assert status == 1 and "there is no asset reprot; did you mean report?" in err


def test_validate_says_where_and_why(command: Command, project: Path, tmp_path: Path) -> None:
    good, bad = sample(1), {**sample(2), "response": ""}
    lines = [json.dumps(good), "{not json", json.dumps(bad)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines) + "\n")
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0
    assert "1 usable" in out and "long.jsonl:2" in out and "response" in out


def test_validate_shows_a_sample_of_the_border_that_most_samples_have(
    command: Command, project: Path, tmp_path: Path
) -> None:
    turns = ["a document of many words . " * 20 + end for end in ("\n\nWhat is said?", "\nWhat is it?", "\nWho is it?")]
    messages = [
        [{"role": "user", "content": turn}, {"role": "assistant", "content": "It is a word."}] for turn in turns
    ]
    lines = [json.dumps({"id": f"s{place}", "messages": each}) for place, each in enumerate(messages)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines) + "\n")
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0 and "how s1 is read (border: last line):" in out and "how s0" not in out


def test_validate_tells_a_tokenizer_without_chat_template_from_one_that_is_missing(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_checks, "try_chat_template", try_here)
    for name in ("short", "long"):
        tokenizer(chat=False).save_pretrained(project.parent / name)
        (project.parent / name / "chat_template.jinja").unlink(missing_ok=True)
    change_config(project, scoring={"max_length": 512, "template": "chat", "device": "cpu"})
    status, out, err = command("validate", "--config", str(project))
    said = " ".join(out.split())
    assert status == 1 and "its tokenizer cannot build prompts from these samples" in said
    assert "tokenizer is not on this machine" not in said and "chat template cannot be used" in " ".join(err.split())
    status, _, err = command("plan", "--config", str(project))
    assert status == 1 and "chat template cannot be used" in " ".join(err.split())


def test_validate_counts_short_conversations(command: Command, project: Path, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    (tmp_path / "chat.json").write_text(
        json.dumps([{"id": "1", "conversations": turns}, {"id": "2", "conversations": []}])
    )
    change_config(project, short_chat={"path": "chat.json"})
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0 and "short_chat\n  1 usable, 1 rejected" in out


def mostly_bad(folder: Path) -> None:
    """3 samples among 53 lines that are none."""
    good, empty = [sample(number) for number in range(3)], [{**sample(n), "response": ""} for n in range(100, 150)]
    lines = [json.dumps(each) for each in (*good, *empty)] + ["{not json"] * 3
    (folder / "long.jsonl").write_text("\n".join(lines) + "\n")


def test_mass_rejection_is_said_by_every_command(command: Command, project: Path, tmp_path: Path) -> None:
    mostly_bad(tmp_path)
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0 and "  ! 53 of 56 records rejected (94.6 %)\n" in out
    status, out, _ = command("plan", "--config", str(project))
    assert status == 0
    assert "! raw_long_sft: 53 of 56 records rejected (94.6 %): 50 x empty response; 3 x malformed JSON\n" in out
    record = json.loads(command("plan", "--json", "--config", str(project))[1])["rejected"]
    assert record["reasons"] == {"empty response": 50, "malformed JSON": 3}
    assert (record["records"], record["rejected"], record["share"]) == (56, 53, 53 / 56)


@pytest.mark.parametrize("name", ["validate", "plan", "run"])
def test_more_rejects_than_allowed_end_every_command(
    command: Command, project: Path, tmp_path: Path, name: str
) -> None:
    mostly_bad(tmp_path)
    change_config(project, long_sft={"max_rejected": 0.5})
    status, _, err = command(name, "--config", str(project))
    assert status == 1 and "Traceback" not in err
    assert "long_sft.max_rejected: 53 of 56 records rejected (94.6 %), more than 0.5 of them" in err
    assert "50 x empty response" in err and "(first at long.jsonl:4)" in err and "3 x malformed JSON" in err
    assert not list(tmp_path.glob("store/**/*.parquet")), "nothing has run"
    change_config(project, long_sft={"max_rejected": 0.95})
    assert command("validate", "--config", str(project))[0] == 0


def write_turns(folder: Path, *turns: str) -> None:
    """A conversation for each user turn."""
    messages = [[{"role": "user", "content": turn}, {"role": "assistant", "content": "red ."}] for turn in turns]
    lines = [json.dumps({"id": f"t{number}", "messages": each}) for number, each in enumerate(messages)]
    (folder / "long.jsonl").write_text("\n".join(lines) + "\n")


def test_contexts_that_are_not_found_are_counted_and_more_than_half_of_them_end_every_command(
    command: Command, project: Path, tmp_path: Path
) -> None:
    text, asked = sample(1)["context"], "recall color"
    write_turns(tmp_path, *[f"{text}\r\n\r\n{asked}"] * 7, f"{text} \x1b[31m {asked}")
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0 and "border of context and instruction: last blank line 7, none 1" in out
    assert f"instruction, {len(asked)} characters: {asked}" in out and "context, 0 characters: (empty)" in out
    assert "\x1b[31m" not in out and "\\x1b[31m" in out
    for name in ("validate", "plan"):
        said = " ".join(command(name, "--config", str(project))[1].split())
        assert "! long_sft.path: 1 of 8 samples have no context (12.5 %)" in said
    write_turns(tmp_path, *[f"{text} {asked}"] * 5, f"{text}\n \n{asked}")
    for name in ("validate", "plan", "run"):
        status, out, err = command(name, "--config", str(project))
        assert status == 1 and "5 of 6 samples have no context" in err and "allow_empty_context" in err
    assert not list(tmp_path.glob("store/**/*.parquet")), "nothing has run"
    change_config(project, long_sft={"allow_empty_context": True})
    status, out, _ = command("validate", "--config", str(project))
    assert status == 0 and "! long_sft.path: 5 of 6 samples have no context" in " ".join(out.split())


def test_validate_and_plan_say_what_will_be_cut_off_or_is_beyond_a_model(command: Command, project: Path) -> None:
    change_config(project, scoring={"max_length": 48})
    file = project.parent / "long" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": 40}))
    out = command("validate", "--config", str(project))[1]
    cut, beyond = [line for line in out.splitlines() if "models.long:" in line]
    assert cut.startswith("  ! models.long: about 8 of 8 samples cut, about ") and cut.endswith("max_length is 48")
    longer = "! models.long: about 8 of 8 samples (100 %) are longer than the 40 positions that its rotary embedding"
    assert beyond.startswith(f"  {longer}")
    out = command("plan", "--config", str(project))[1]
    assert "! models.long: about 8 of 8 samples cut, about " in out and longer in " ".join(out.split())
    record = json.loads(command("plan", "--json", "--config", str(project))[1])["truncation"]["long"]
    assert (record["samples"], record["cut"], record["unscorable"]) == (8, 8, 0)
    assert (record["beyond_positions"]["positions"], record["beyond_positions"]["tokens"]) == (40, 8 * 8)
    assert 0 < record["share"] == record["cut_tokens"] / record["tokens"] < 1
    change_config(project, models={"long": {"path": "nowhere"}}, scoring={"max_length": 512})
    status, out, err = command("validate", "--config", str(project))
    assert status == 1 and "models.long: not estimated" in out and "there is no folder" in err


def test_a_plan_names_everything_that_is_missing(command: Command, project: Path) -> None:
    status, out, _ = command("plan", "--config", str(project))
    assert status == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line.rstrip().endswith("missing"))
    assert list(rows) == [
        "raw_long_sft",
        "perplexity/long",
        "perplexity/short",
        "cam",
        "combined_scores",
        "selected_subset",
        "report",
    ]
    assert rows["cam"].split() == ["all", "2", "missing"]
    assert "to score" in out and "together" in out
    status, out, _ = command("plan", "--config", str(project), "--until", "perplexity/short")
    assert "perplexity/long" not in out and "cam" not in out


def test_plans_of_a_project_that_has_run(command: Command, whole_run: Path, tmp_path: Path) -> None:
    """Nothing to do, a setting, one edited sample."""
    project = tmp_path / "project" / whole_run.name
    shutil.copytree(whole_run.parent, project.parent)
    until = ("--config", str(project), "--until", "selected_subset")
    out = command("plan", *until)[1]
    assert out.startswith(
        "Everything is up to date. `gateau run --config project/gateau.yaml` would do nothing.\nChosen: 8"
    )
    change_config(project, selection={"alpha": 0.4})
    out = command("plan", *until)[1]
    assert "combined_scores" in out and "changed: selection.alpha 0.5 by default → 0.4" in out
    assert "cam" not in out and "to score" not in out
    edited = [sample(number) for number in range(35)] + [{**sample(35), "response": "x ."}]
    write_samples(project.parent / "long.jsonl", edited)
    out = command("plan", *until)[1]
    (row,) = [line for line in out.splitlines() if line.startswith("cam") and "of 4:" in line]
    assert row.split()[1:4] == ["1", "of", "4:"] and row.rstrip().endswith("changed: raw_long_sft")
    (scored,) = [line.split() for line in out.splitlines() if line.startswith("cam") and "of" not in line]
    assert scored[1] == "1", "one sample is scored"
    # In a process of its own, where libraries write to standard output as they like.
    record = json.loads(gateau("plan", "--json", "--config", str(project), folder=tmp_path).stdout)
    assert record["estimates"]["cam"]["samples"] == 1


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_line_of_a_plan_is_wider_than_the_terminal(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    status, out, _ = command("plan", "--config", str(project))
    assert status == 0
    assert max(len(line.rstrip()) for line in out.splitlines()) <= int(columns)
    assert "perplexity/short" in out, "names of assets are never broken"


@pytest.mark.parametrize("name", ["run", "publish"])
def test_a_token_that_is_missing_is_said_before_anything_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    file = make_project(tmp_path, publish={"repository": "me/mine", "license": "other"})
    status, _, err = command(name, "--config", str(file))
    assert status == 1 and "[publish.no_token]" in err
    assert not [*tmp_path.glob("store/**/*.parquet")]
    status, out, _ = command("validate", "--config", str(file))
    assert status == 0 and "HF_TOKEN is not set" in out, "the check of the data needs none"
