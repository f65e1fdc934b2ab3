"""A benchmark's files: on this machine or on S3, whole or named as broken; and texts out of Python files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.features.evaluation.question_files import QuestionFiles
from tests.kit.error_codes import refused
from tests.kit.project import configured

DEEP = "[" * 2_000


def _files(folder: Path, path: Any) -> QuestionFiles:
    config = configured().model_copy(update={"folder": folder})
    return QuestionFiles(config=config, place="place", path=path, cure="get it", plain_texts=True)


def _file(folder: Path, name: str, content: str | bytes) -> tuple[QuestionFiles, SourceFile]:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    files = _files(folder, name)
    return files, files.only()


def test_rows_on_s3_are_those_on_the_disk(bucket: str, tmp_path: Path) -> None:
    text = "".join(json.dumps({"n": number}) + "\n" for number in range(3))
    client: Any = boto3.client("s3")
    client.put_object(Bucket=bucket, Key="set/rows.jsonl", Body=text.encode())
    remote = _files(tmp_path, f"s3://{bucket}/set")
    for files in (_file(tmp_path, "rows.jsonl", text)[0], remote):
        found = [(file.name, number, row) for file, number, row in files.objects()]
        assert found == [("rows.jsonl", number + 1, {"n": number}) for number in range(3)]
    digest = remote.digest()
    client.put_object(Bucket=bucket, Key="set/rows.jsonl", Body=b"{}\n")
    assert remote.digest() != digest


def test_a_remote_address_is_not_asked_for_before_a_run(tmp_path: Path) -> None:
    remote = _files(tmp_path, ["s3://nowhere/x", "hf://datasets/nobody/nothing"])
    remote.check()
    with refused("evaluation.benchmark_files", "place: is required: get it"):
        replace(remote, path=None).check()
    with refused("data.missing", "place: .*; get it"):
        replace(remote, path="nowhere.jsonl").check()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1}\n{broken\n', r"place: x\.jsonl:2: malformed JSON.*; get it"),
        ("[1]\n[2]\n", r"place: x\.jsonl:1 is not an object"),
        ("", r"place: x\.jsonl: empty file"),
    ],
)
def test_a_file_without_one_of_its_rows_is_refused(content: str, words: str, tmp_path: Path) -> None:
    with refused("evaluation.benchmark_data", words):
        list(_file(tmp_path, "x.jsonl", content)[0].objects())


def test_texts_and_objects_are_whole_files(tmp_path: Path) -> None:
    files, file = _file(tmp_path, "a.txt", "one\ntwo ")
    assert files.text(file) == "one\ntwo "
    files, file = _file(tmp_path, "a.json", '{"a": [1]}')
    assert files.mapping(file) == {"a": [1]}
    for name, content in {
        "b.json": "[1]",
        "c.json": "{",
        "d.json": b"\xff{}",
        "e.json": DEEP,
        "b.yaml": "- 1",
        "c.yaml": "{",
        "d.yaml": "a: 2024-02-31",
        "e.yaml": DEEP,
    }.items():
        files, file = _file(tmp_path, name, content)
        with refused("evaluation.benchmark_data", rf"place: {name}"):
            files.mapping(file)


def test_texts_of_python_files_are_read_and_not_run(tmp_path: Path) -> None:
    code = "x = 'one'\nraise SystemExit\ndef f(a):\n    x = 'two'\n    y = x + a\n    return 'three'\n"
    files, file = _file(tmp_path, "code.py", code)
    assert files.assigned(file, "x") == ["one", "two"] and files.assigned(file, "x", inside="f") == ["two"]
    assert files.texts_in(file, "f") == ["two", "three"]
    for name, inside in (("y", None), ("x", "g")):
        with refused("evaluation.benchmark_data", r"code\.py"):
            files.assigned(file, name, inside=inside)
    for content in ("def (", f"x = {'-' * 20_000}1", DEEP):
        files, file = _file(tmp_path, "bad.py", content)
        with refused("evaluation.benchmark_data", r"bad\.py"):
            files.texts_in(file, "f")
