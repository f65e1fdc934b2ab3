"""`gateau validate` ends with 1 for everything that would end a run, and prints all of it first."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from tests.kit.project import change_config, make_project, sample, write_samples
from tests.kit.tiny_models import tokenizer

SERVER = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "key": "NO_SUCH_KEY"}
UNASKED: dict[str, Any] = {"evaluation": {"judge": SERVER, "engine": SERVER}}
JUDGED: dict[str, Any] = {**UNASKED, "selection": {"compare": ["judge"]}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": {"long": {"path": "nowhere"}}}, "models.long.path: there is no folder"),
        ({"scoring": {"device": "cuda:7", "max_length": 512}}, "scoring.device: cuda:7 is configured"),
        (
            {"scoring": {"attention": "fa3", "max_length": 512}},
            "scoring.attention: fa3 cannot be used: it runs on a GPU",
        ),
        ({"scoring": {"device": "nonsense", "max_length": 512}}, "scoring.device: 'nonsense' is not a device"),
        ({"storage": {"root": "long.jsonl/store"}}, "a part of the path is a file"),
        (JUDGED, "the environment variable NO_SUCH_KEY is not set"),
    ],
)
def test_what_would_end_a_run_ends_validate(
    command: Command, project: Path, change: dict[str, dict[str, Any]], words: str
) -> None:
    assert command("validate")[0] == 0
    change_config(project, **change)
    status, out, err = command("validate")
    assert status == 1 and words in " ".join(err.split())
    assert "8 usable" in out, "what can be looked at is printed"


def test_the_key_of_a_server_that_nothing_asks_may_be_missing(command: Command, project: Path) -> None:
    change_config(project, **UNASKED)
    assert command("validate")[0] == 0


def test_tokenizers_that_differ_end_validate(command: Command, project: Path) -> None:
    tokenizer().save_pretrained(project.parent / "long")
    status, _, err = command("validate")
    assert status == 1 and "models.short and models.long tokenise differently" in " ".join(err.split())


def test_all_findings_are_printed(command: Command, project: Path) -> None:
    change_config(
        project,
        models={name: {"path": f"no_{name}"} for name in ("short", "long")},
        long_sft={"path": "nothing.jsonl"},
        storage={"root": "gateau.yaml/store"},
    )
    status, _, err = command("validate")
    assert status == 1
    for words in ("no_short", "no_long", "nothing.jsonl", "gateau.yaml/store"):
        assert words in err
    assert "4 reasons" in err


def test_looking_at_a_store_leaves_nothing(command: Command, project: Path) -> None:
    assert command("validate")[0] == 0
    assert not (project.parent / "store").exists()


def test_a_bucket_that_is_not_there_ends_validate(command: Command, project: Path, bucket: str) -> None:
    change_config(project, storage={"root": f"s3://{bucket}/store"})
    assert command("validate")[0] == 0
    change_config(project, storage={"root": f"s3://no-{bucket}/store"})
    status, _, err = command("validate")
    assert status == 1 and "the bucket does not exist" in " ".join(err.split())


def test_a_plan_names_a_device_that_is_not_here_before_its_table(command: Command, tmp_path: Path) -> None:
    """Its estimate, which measures the device, ends it afterwards."""
    make_project(tmp_path, samples=4, shards=1, scoring={"device": "cuda"})
    status, out, err = command("plan")
    assert status == 1 and "scoring.device: cuda is configured" in err
    assert out.index("! scoring.device: cuda is configured") < out.index("raw_long_sft")


def test_more_ranks_and_workers_than_cores_are_warned_of(command: Command, project: Path) -> None:
    assert "CPU core" not in command("validate")[1]
    many = (os.cpu_count() or 1) + 1
    change_config(project, scoring={"workers": many, "device": "cpu", "max_length": 512})
    change_config(project, training={"enabled": True, "processes": many})
    said = " ".join(command("validate")[1].split())
    for key in ("training.processes", "scoring.workers"):
        assert f"! {key} is {many}, but this machine has {many - 1} CPU core" in said
    change_config(project, training={"enabled": True, "processes": many, "launcher": ["srun", "python"]})
    assert "training.processes is" not in command("validate")[1], "the ranks are on other machines"


def test_the_cure_of_missing_contexts_names_the_configuration(command: Command, project: Path) -> None:
    write_samples(project.parent / "long.jsonl", [{**sample(number), "context": ""} for number in range(8)])
    other = project.rename(project.with_name("other.yaml"))
    err = " ".join(command("validate", "--config", str(other))[2].split())
    assert re.search(r"`gateau validate --config \S*other\.yaml` shows how a sample is read", err), err
