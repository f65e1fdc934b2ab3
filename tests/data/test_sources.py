"""Input files, local and on S3: which are meant, and when they have changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import SourceFile, content_signature, input_signature, passed_over, resolve_files
from gateau_dagster.errors import GateauError, TransientError
from tests.error_codes import refused

from .inputs import explicit, jsonl, packed, put

Put = Callable[[str, bytes], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "data/long2.jsonl",
        "data/long1.jsonl.gz",
        "data/deep/x.parquet",
        "data/notes.txt",
        "data/.hid/h.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    return tmp_path


def found(path: str | list[str], folder: Path) -> list[str]:
    return [Path(file.address).relative_to(folder).as_posix() for file in resolve_files(path, folder)]


def test_paths_globs_and_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("data/long2.jsonl", folder) == ["data/long2.jsonl"]
    assert found("data/long*", folder) == ["data/long1.jsonl.gz", "data/long2.jsonl"]
    assert found("data/**/*.parquet", folder) == ["data/deep/x.parquet"]
    assert found("data", folder) == ["data/deep/x.parquet", "data/long1.jsonl.gz", "data/long2.jsonl"]
    assert found("data/*.txt", folder) == ["data/notes.txt"]
    assert found(["data/long2.jsonl", "data/long*"], folder) == ["data/long2.jsonl", "data/long1.jsonl.gz"]
    monkeypatch.chdir(folder / "data")
    assert [file.name for file in resolve_files("../data/long2.jsonl", Path())] == ["long2.jsonl"]
    assert [file.name for file in resolve_files(str(folder / "data/long*"), Path("/"))] == found_names(folder)


def found_names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "data").glob("long*"))


def test_folder_with_brackets_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a [1]"
    folder.mkdir()
    (folder / "x.jsonl").write_bytes(b"{}")
    assert found("*.jsonl", folder) == ["x.jsonl"]


@pytest.mark.parametrize("path", ["nope.jsonl", "data/nope*.jsonl", "data/nope", "/nope/x.json"])
def test_no_match_is_an_error(folder: Path, path: str) -> None:
    with refused("data.missing") as caught:
        resolve_files(["data/long2.jsonl", path], folder)
    assert repr(path) in str(caught.value)


def test_parts_of_a_name() -> None:
    file = SourceFile(address="/d/my.long.JSONL.gz", size=1, stamp="")
    assert (file.name, file.stem, file.format, file.compression) == ("my.long.JSONL.gz", "my.long", "jsonl", "gz")
    other = SourceFile(address="s3://b/x.txt", size=1, stamp="")
    assert (other.stem, other.format, other.compression) == ("x", None, None)


def test_labels_tell_files_of_one_name_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_bytes(b"{}")
    (tmp_path / "b" / "y.jsonl").write_bytes(b"{}")
    assert [file.label for file in resolve_files(".", tmp_path)] == ["a/x.jsonl", "b/x.jsonl", "y.jsonl"]


def test_names_that_are_no_text_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.jsonl")).write_bytes(jsonl(explicit("a"), 1))
    file = resolve_files("*.jsonl", tmp_path)[0]
    assert (file.label, file.stem) == ("caf\\udce9.jsonl", "caf\\udce9")
    index = build_index(LongSftConfig(path="*.jsonl"), tmp_path)
    assert index.accepted["source"].to_list() == ["caf\\udce9"]


def test_signature_sees_size_time_and_set_of_files(folder: Path) -> None:
    seen = {input_signature(resolve_files("data", folder))}
    path = folder / "data/long2.jsonl"
    os.utime(path, ns=(1, 1))
    seen.add(input_signature(resolve_files("data", folder)))
    path.write_bytes(b"{} ")
    os.utime(path, ns=(1, 1))
    seen.add(input_signature(resolve_files("data", folder)))
    path.unlink()
    seen.add(input_signature(resolve_files("data", folder)))
    assert len(seen) == 4
    assert input_signature(resolve_files("data", folder)) in seen


def test_s3(s3_put: Put, tmp_path: Path) -> None:
    s3_put("in/b.jsonl.zst", packed(jsonl(explicit("b")), ".zst"))
    s3_put("in/a.jsonl", jsonl(explicit("a")))
    s3_put("in/notes.txt", b"x")
    files = resolve_files("s3://data-bucket/in/*.jsonl*", tmp_path)
    assert [file.address for file in files] == ["s3://data-bucket/in/a.jsonl", "s3://data-bucket/in/b.jsonl.zst"]
    assert [file.address for file in resolve_files("s3://data-bucket/in", tmp_path)] == [file.address for file in files]
    assert resolve_files("s3://data-bucket/in/a.jsonl", tmp_path)[0].stamp == files[0].stamp
    index = build_index(LongSftConfig(path="s3://data-bucket/in/"), tmp_path)
    assert index.accepted["sample_id"].to_list() == ["a", "b"]


@pytest.mark.parametrize("name", ["data[1].jsonl", "data*.jsonl", "data?.jsonl"])
def test_a_file_of_that_name_comes_before_what_a_pattern_matches(s3_put: Put, tmp_path: Path, name: str) -> None:
    for each, record in ((name, "here"), ("data1.jsonl", "other"), (f"of {name}/a.jsonl", "below")):
        s3_put(f"named/{each}", jsonl(explicit(record)))
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(jsonl(explicit(record)))
    for path in (f"s3://data-bucket/named/{name}", str(tmp_path / name)):
        assert [file.address for file in resolve_files(path, tmp_path)] == [path]
        assert build_index(LongSftConfig(path=path), tmp_path).accepted["sample_id"].to_list() == ["here"]
        folder = path.replace(name, f"of {name}")
        assert [file.address for file in resolve_files(folder, tmp_path)] == [f"{folder}/a.jsonl"]


def test_s3_signature_follows_the_content(s3_put: Put, tmp_path: Path) -> None:
    s3_put("sig/a.jsonl", jsonl(explicit("a")))
    before = input_signature(resolve_files("s3://data-bucket/sig/*", tmp_path))
    s3_put("sig/a.jsonl", jsonl(explicit("a")))
    assert input_signature(resolve_files("s3://data-bucket/sig/*", tmp_path)) == before
    s3_put("sig/a.jsonl", jsonl(explicit("z")))
    assert input_signature(resolve_files("s3://data-bucket/sig/*", tmp_path)) != before


def test_s3_through_the_other_variable(
    s3_put: Put, s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_put("v/a.jsonl", b"{}")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_environment)
    assert len(resolve_files("s3://data-bucket/v/a.jsonl", tmp_path)) == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://no-such-bucket/x.jsonl", "s3://no-such-bucket/x.jsonl: the bucket does not exist"),
        ("s3://no-such-bucket/*.jsonl", "matches no data file: .* that the bucket exists"),
        ("s3://data-bucket/nothing.jsonl", "there is no such file. Check the address"),
        ("s3://data-bucket/nothing*.jsonl", "matches no data file"),
    ],
)
def test_s3_without_the_thing(s3_put: Put, tmp_path: Path, address: str, reason: str) -> None:
    with pytest.raises(GateauError, match=reason) as caught:
        resolve_files(address, tmp_path)
    assert not isinstance(caught.value, TransientError)


def test_s3_without_a_server_may_be_tried_again(
    s3_put: Put, tmp_path: Path, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match=r"does not answer \(Could not connect .*AWS_ENDPOINT_URL"):
        resolve_files("s3://data-bucket/x.jsonl", tmp_path)


def test_s3_without_credentials(s3_put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with refused("storage.credentials", "AWS_ACCESS_KEY_ID.*AWS_SECRET_ACCESS_KEY"):
        resolve_files("s3://data-bucket/x.jsonl", tmp_path)


def test_a_lost_server_is_no_damaged_file(
    s3_put: Put, tmp_path: Path, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_put("lost/x.jsonl.zst", b"anything")
    file = resolve_files("s3://data-bucket/lost/x.jsonl.zst", tmp_path)[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(TransientError):
        list(read_records(file))


def test_a_local_file_that_vanished(tmp_path: Path) -> None:
    file = put(tmp_path / "x.jsonl", jsonl(explicit("a")))
    (tmp_path / "x.jsonl").unlink()
    with refused("data.missing", r"x\.jsonl"):
        list(read_records(file))


def signature(folder: Path, cache: Path) -> str:
    return content_signature(resolve_files("*.jsonl", folder), cache)


def test_content_and_names_count_but_not_times(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "digests.json"
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    first = signature(tmp_path, cache)
    os.utime(path, ns=(5, 5))
    assert signature(tmp_path, cache) == first
    path.write_bytes(b"two")
    changed = signature(tmp_path, cache)
    assert changed != first
    path.rename(tmp_path / "b.jsonl")
    assert signature(tmp_path, cache) not in {first, changed}


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, path = tmp_path / "digests.json", tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    os.utime(path, ns=(5, 5))
    first = signature(tmp_path, cache)
    written = cache.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(5, 5))  # same size and time: nothing tells that it was written
    assert signature(tmp_path, cache) == first
    assert cache.stat().st_mtime_ns == written
    second = content_signature(resolve_files("*.jsonl", tmp_path), cache, "content")
    assert second != first, "unless all of it is read"
    assert signature(tmp_path, cache) == second, "which is remembered"
    cache.write_text("{damaged", encoding="utf-8")
    assert signature(tmp_path, cache) != first


def test_remote_files_are_known_by_their_stamp(s3_put: Callable[[str, bytes], None], tmp_path: Path) -> None:
    seen = []
    for body in (b"one", b"one", b"two"):
        s3_put("content/a.jsonl", body)
        seen.append(content_signature(resolve_files("s3://data-bucket/content/*", tmp_path), tmp_path / "c.json"))
    assert seen[0] == seen[1] != seen[2]
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("path", ["saved", "saved/*", "saved/part.arrow", "saved/train", "saved/dataset_info.json"])
@pytest.mark.parametrize("beside", ["", "good.jsonl"])
def test_what_save_to_disk_wrote_is_named_with_the_cure(tmp_path: Path, path: str, beside: str) -> None:
    nested = path.endswith("/train") or not beside
    place = tmp_path / "saved" / "train" if nested else tmp_path / "saved"
    place.mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    for name in ("part.arrow", "state.json", "dataset_info.json"):
        (place / name).write_text("{}")
        (tmp_path / "saved" / name).write_text("{}")
    if beside:
        (tmp_path / "saved" / beside).write_text("{}\n")
    with refused("data.saved_to_disk", "save_to_disk.*to_parquet.*to_json"):
        resolve_files(path, tmp_path)
    if beside:
        assert [file.name for file in resolve_files("saved/*.jsonl", tmp_path)] == [beside]


def test_data_of_other_types_in_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.csv", "c.xlsx", "d.txt", "e.jsonl.bz2", "README.txt", "notes.md"):
        (tmp_path / name).write_text("{}\n")
    (sentence,) = passed_over("long_sft.path", str(tmp_path), tmp_path)
    assert "4 files that are passed over" in sentence and "b.csv, c.xlsx, d.txt, e.jsonl.bz2" in sentence
    assert passed_over("long_sft.path", str(tmp_path / "a.jsonl"), tmp_path) == []
    (tmp_path / "a.jsonl").unlink()
    with refused("data.missing", r"b\.csv"):
        resolve_files(str(tmp_path), tmp_path)
