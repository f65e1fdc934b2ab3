"""A benchmark's files: on this machine or on S3, whole or named as broken; and texts out of Python files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from gateau_dagster.data.sources import SourceFile, resolve_files
from gateau_dagster.evaluation.question_files import (
    QuestionFiles,
    assigned,
    json_of,
    rows_of,
    text_of,
    texts_in,
    yaml_of,
)
from tests.error_codes import refused

from .builders import configured

DEEP = "[" * 100_000


def _file(folder: Path, name: str, content: str | bytes) -> SourceFile:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return resolve_files(name, folder)[0]


def test_rows_on_s3_are_those_on_the_disk(bucket: str, tmp_path: Path) -> None:
    config = configured().model_copy(update={"folder": tmp_path})
    text = "".join(json.dumps({"n": number}) + "\n" for number in range(3))
    client: Any = boto3.client("s3")
    client.put_object(Bucket=bucket, Key="set/rows.jsonl", Body=text.encode())
    here = [_file(tmp_path, "rows.jsonl", text)]
    remote = QuestionFiles(config=config, place="place", path=f"s3://{bucket}/set", cure="get it")
    there = remote.find()
    found = [[(file.name, number, row) for file, number, row in rows_of(files, "place")] for files in (here, there)]
    assert found[0] == found[1] == [("rows.jsonl", number + 1, {"n": number}) for number in range(3)]
    digest = remote.digest()
    client.put_object(Bucket=bucket, Key="set/rows.jsonl", Body=b"{}\n")
    assert remote.digest() != digest


def test_a_remote_address_is_not_asked_for_before_a_run(tmp_path: Path) -> None:
    config = configured().model_copy(update={"folder": tmp_path})
    remote = QuestionFiles(
        config=config, place="place", path=["s3://nowhere/x", "hf://datasets/nobody/nothing"], cure="get it"
    )
    remote.check()
    with refused("evaluation.benchmark_files"):
        replace(remote, path=None).check()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1}\n{broken\n', r"place: x\.jsonl:2: malformed JSON.*Download the file again"),
        ("[1]\n[2]\n", r"place: x\.jsonl:1 is not an object"),
        ("", r"place: x\.jsonl: empty file"),
    ],
)
def test_a_file_without_one_of_its_rows_is_refused(content: str, words: str, tmp_path: Path) -> None:
    with refused("evaluation.benchmark_data", words):
        list(rows_of([_file(tmp_path, "x.jsonl", content)], "place"))


def test_texts_and_objects_are_whole_files(tmp_path: Path) -> None:
    assert text_of(_file(tmp_path, "a.txt", "one\ntwo "), "place") == "one\ntwo "
    assert json_of(_file(tmp_path, "a.json", '{"a": [1]}'), "place") == {"a": [1]}
    for name, content in (("b.json", "[1]"), ("c.json", "{"), ("d.json", b"\xff{}"), ("e.json", DEEP)):
        with refused("evaluation.benchmark_data", rf"place: {name}"):
            json_of(_file(tmp_path, name, content), "place")
    for name, content in (("b.yaml", "- 1"), ("c.yaml", "{"), ("d.yaml", "a: 2024-02-31"), ("e.yaml", DEEP)):
        with refused("evaluation.benchmark_data", rf"place: {name}"):
            yaml_of(_file(tmp_path, name, content), "place")


def test_texts_of_python_files_are_read_and_not_run(tmp_path: Path) -> None:
    code = "x = 'one'\nraise SystemExit\ndef f(a):\n    x = 'two'\n    y = x + a\n    return 'three'\n"
    file = _file(tmp_path, "code.py", code)
    assert assigned(file, "x", "place") == ["one", "two"] and assigned(file, "x", "place", inside="f") == ["two"]
    assert texts_in(file, "f", "place") == ["two", "three"]
    for name, inside in (("y", None), ("x", "g")):
        with refused("evaluation.benchmark_data", r"code\.py"):
            assigned(file, name, "place", inside=inside)
    for content in ("def (", f"x = {'-' * 100_000}1", DEEP):
        with refused("evaluation.benchmark_data", r"bad\.py"):
            texts_in(_file(tmp_path, "bad.py", content), "f", "place")
