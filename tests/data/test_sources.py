"""Input files, local, on S3 and on the hub: which are meant, and when they have changed."""

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import s3fs

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index, read_shards
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import (
    SourceFile,
    card_files,
    content_signature,
    input_signature,
    matching_files,
    passed_over,
    resolve_files,
)
from gateau_dagster.errors import GateauError, TransientError
from tests.kit.error_codes import refused

from .hub_server import Datasets, Given, hub_server
from .inputs import explicit, jsonl, packed, parquet, put

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
    absolute = resolve_files(str(folder / "data/long*"), Path("/"))
    assert [file.name for file in absolute] == ["long1.jsonl.gz", "long2.jsonl"]
    brackets = folder / "a [1]"
    brackets.mkdir()
    (brackets / "x.jsonl").write_bytes(b"{}")
    assert found("*.jsonl", brackets) == ["x.jsonl"]


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
    seen = []
    for name in ("a", "a", "z"):
        s3_put("sig/a.jsonl", jsonl(explicit(name)))
        files = resolve_files("s3://data-bucket/sig/*", tmp_path)
        seen.append((input_signature(files), content_signature(files, tmp_path / "c.json")))
    assert seen[0] == seen[1] and not {*seen[0]} & {*seen[2]}
    assert not (tmp_path / "c.json").exists(), "remote files are known by their stamp"


def test_s3_through_the_other_variable(
    s3_put: Put, s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_put("v/a.jsonl", b"{}")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_environment)
    assert len(resolve_files("s3://data-bucket/v/a.jsonl", tmp_path)) == 1


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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("d/x.jsonl", "d/a/y.jsonl", "d/a/b/z.jsonl", "d/.hidden/h.jsonl", "d/a/.q.jsonl", "e/w.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "d/**/*.jsonl",
            "d/**",
            "**/*.jsonl",
            "**/**/y.jsonl",
            "**/a/**/*.jsonl",
            "d/*/**/*.jsonl",
            "[de]/**/?.jsonl",
        ),
        *("d/**/b/*.jsonl", "{tree}/**/z.jsonl", "{tree}/d/*", "d/[ax]*", "e/../d/**/x.jsonl", "f/**/*", "d/**/"),
    ],
)
def test_a_glob_means_what_it_means_elsewhere(tree: Path, pattern: str) -> None:
    pattern = pattern.format(tree=tree)
    known = {tree / name for name in glob.glob(pattern, root_dir=tree, recursive=True)}  # noqa: PTH207
    found = matching_files(pattern, tree)
    assert len(found) == len(set(found))
    assert set(found) == {path for path in known if path.is_file()}


def test_links_are_followed_and_those_that_lead_round_end(tree: Path) -> None:
    """Two links back in each tree: of those ways that the system follows there are 2^40."""
    for name in ("d/self", "d/again", "d/a/up", "d/a/b/up"):
        (tree / name).symlink_to(tree / "d")
    (tree / "d/loop").symlink_to("loop")
    (tree / "d/up.jsonl").symlink_to("a")
    assert {path.name for path in matching_files("d/**/*.jsonl", tree)} == {"x.jsonl", "y.jsonl", "z.jsonl"}
    assert len(matching_files("d/**/*.jsonl", tree)) == 3
    assert len(resolve_files("d", tree)) == 3
    (tree / "d/other").symlink_to(tree / "e")
    assert tree / "d/other/w.jsonl" in matching_files("d/**/*.jsonl", tree)
    assert str(tree / "d/other/w.jsonl") in [file.address for file in resolve_files("d", tree)]


@pytest.mark.parametrize("pattern", ["d", "d/**/*.jsonl"])
@pytest.mark.parametrize("name", ["a/lost.jsonl", "a/part2"])
def test_a_link_that_leads_nowhere_is_said(tree: Path, pattern: str, name: str) -> None:
    """A file of git-annex or DVC that was not fetched, a disk that is not mounted."""
    (tree / "d" / name).symlink_to("/elsewhere/there")
    with refused("data.broken_link", f"d/{name}: .* /elsewhere/there,"):
        resolve_files(pattern, tree)
    (tree / "d" / name).rename(tree / "d/a/README.md")
    assert len(resolve_files(pattern, tree)) == 3, "what is no data is not asked for"


@pytest.mark.parametrize("pattern", ["d", "d/**/*.jsonl"])
def test_a_closed_folder_is_said(tree: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "d/lost+found").mkdir()
    closed = {tree / "d/lost+found"}
    monkeypatch.setattr("os.access", lambda path, mode: path not in closed)
    assert len(resolve_files(pattern, tree)) == 3
    closed.add(tree / "d/a/b")
    with refused("storage.permission", "d/a/b"):
        resolve_files(pattern, tree)


@pytest.mark.parametrize("path", ["", " ", "a\0b", "x" * 10_000, "s3://", ["d", ""]])
def test_what_is_no_path_means_no_file(tree: Path, path: str | list[str]) -> None:
    with refused("config.path"):
        resolve_files(path, tree)


CARD = b"""---
license: mit
configs:
- config_name: other
  data_files: other.jsonl
- config_name: default
  data_files:
  - split: test_sft
    path: data/test_sft-*
  - split: train_sft
    path: data/train_sft-*
  - split: train_gen
    path: data/train_gen-*
---
# A data set
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Datasets]:
    datasets: Datasets = {
        "lab/plain": {"long.jsonl": jsonl(explicit("a"), explicit("b")), "README.md": b"# no front matter"},
        "lab/splits": {
            f"data/{split}.jsonl.gz": packed(jsonl(explicit(split)), ".gz") for split in ("train", "test", "dev")
        },
        "lab/card": {
            "README.md": CARD,
            **{
                f"data/{name}-00000.parquet": parquet([explicit(name)])
                for name in ("train_sft", "train_gen", "test_sft")
            },
        },
        "lab/csv": {"train.csv": b"a,b"},
    }
    given: dict[str, Given] = {"lab/private": (403, b"{}", {}), "lab/down": (500, b"{}", {})}
    with hub_server(datasets, given) as endpoint:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        # Derived from the end point when huggingface_hub is imported.
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield datasets


def names(files: list[SourceFile]) -> list[str]:
    return [file.address for file in files]


def test_names_addresses_and_globs(hub: Datasets, tmp_path: Path) -> None:
    """The name of a data set means its train split."""
    assert names(resolve_files("lab/plain", tmp_path)) == ["hf://datasets/lab/plain/long.jsonl"]
    assert names(resolve_files("lab/splits", tmp_path)) == ["hf://datasets/lab/splits/data/train.jsonl.gz"]
    assert names(resolve_files("lab/card", tmp_path)) == ["hf://datasets/lab/card/data/train_sft-00000.parquet"]
    before = input_signature(resolve_files("lab/plain", tmp_path))
    assert input_signature(resolve_files("lab/plain", tmp_path)) == before
    hub["lab/plain"]["long.jsonl"] = jsonl(explicit("a"), explicit("c"))
    assert input_signature(resolve_files("lab/plain", tmp_path)) != before
    found = resolve_files("hf://datasets/lab/splits/data/*.gz", tmp_path)
    assert [file.stem for file in found] == ["dev", "test", "train"]
    assert names(resolve_files("hf://datasets/lab/splits/data/dev.jsonl.gz", tmp_path)) == [found[0].address]
    assert names(resolve_files("hf://datasets/lab/splits", tmp_path)) == names(found)


def test_index_and_texts_from_the_hub(hub: Datasets, tmp_path: Path) -> None:
    config = LongSftConfig(path=["lab/plain", "lab/splits", "lab/card"], shards=2)
    index = build_index(config, tmp_path)
    assert set(index.accepted["sample_id"]) == {"a", "b", "train", "train_sft"}
    raw = {row["sample_id"]: row for _, frame, _ in read_shards(config, index, [0, 1]) for row in frame.to_dicts()}
    assert raw["train_sft"]["context"] == "a document for train_sft"
    assert raw["train_sft"]["source"] == "train_sft-00000"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("lab/unknown", "neither a file under"),
        ("hf://datasets/lab/unknown/x.jsonl", "no such data set"),
        ("hf://datasets/lab/plain@nobranch/long.jsonl", "no such data set, revision or file"),
        ("hf://datasets/lab/plain/nothere.jsonl", "no such data set, revision or file"),
        ("hf://datasets/lab/plain/*.parquet", "matches no data file"),
        ("hf://datasets/lab", "Write hf://datasets/owner/name/file"),
        ("lab/csv", "has no jsonl, json or parquet file"),
        ("s3://no-such-bucket/x.jsonl", "s3://no-such-bucket/x.jsonl: the bucket does not exist"),
        ("s3://no-such-bucket/*.jsonl", "matches no data file: .* that the bucket exists"),
        ("s3://data-bucket/nothing.jsonl", "there is no such file. Check the address"),
        ("s3://data-bucket/nothing*.jsonl", "matches no data file"),
    ],
)
@pytest.mark.usefixtures("hub", "s3_put")
def test_what_is_not_there(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(GateauError, match=reason) as caught:
        resolve_files(path, tmp_path)
    assert not isinstance(caught.value, TransientError)


def test_a_hub_that_fails_may_be_tried_again(hub: Datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransientError, match="cannot be used"):
        resolve_files("hf://datasets/lab/down/x.jsonl", tmp_path)
    with refused("hub.refused", "HF_TOKEN") as one:
        resolve_files("hf://datasets/lab/private/x.jsonl", tmp_path)
    assert not isinstance(one.value, TransientError)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match="Check the network, HF_ENDPOINT and HF_TOKEN"):
        resolve_files("lab/plain", tmp_path)


def test_a_card_s_patterns_and_folder_mean_what_they_mean_to_the_hub(hub: Datasets, tmp_path: Path) -> None:
    content = jsonl(explicit("a"))
    hub["lab/depth"] = {
        "README.md": b"---\nconfigs:\n- config_name: default\n  data_files: ['**/*.jsonl', ./b/*.json]\n---\n",
        **dict.fromkeys(("a.jsonl", "b/c/d.jsonl", "b/e.json", "b/c/f.json"), content),
    }
    hub["lab/folders"] = {
        "README.md": b"---\nconfigs:\n- config_name: en\n  data_dir: ./en\n- config_name: de\n  data_dir: de\n---\n",
        **dict.fromkeys(("en/train/a.jsonl", "en/test/b.jsonl", "de/train/c.jsonl", "english/train.jsonl"), content),
    }
    hub["lab/both"] = {
        "README.md": b"---\nconfigs:\n- config_name: en\n  data_dir: en\n  data_files: '*.jsonl'\n---\n",
        **dict.fromkeys(("en/a.jsonl", "en/b/c.jsonl", "d.jsonl"), content),
    }
    below = {
        name: [file.address.split(f"{name}/")[1] for file in resolve_files(name, tmp_path)]
        for name in ("lab/depth", "lab/folders", "lab/both")
    }
    assert below["lab/depth"] == ["a.jsonl", "b/c/d.jsonl", "b/e.json"]
    assert below["lab/folders"] == ["en/train/a.jsonl"]
    assert below["lab/both"] == ["en/a.jsonl"]


@pytest.mark.parametrize(
    "front",
    [
        *("configs: [", "configs: [null]", "configs: [{data_files: 3}]", "license: !!int ''", "since: 2024-99-99"),
        *("configs: [{data_files: [{split: train, path: null}]}]", "configs: [{data_files: 'data/**train*'}]"),
    ],
)
def test_a_card_that_cannot_be_read_is_said(hub: Datasets, tmp_path: Path, front: str) -> None:
    hub["lab/odd"] = {"README.md": f"---\n{front}\n---\n".encode(), "train.jsonl": jsonl(explicit("a"))}
    with refused("data.hub_split", "hf://datasets/lab/odd/") as one:
        resolve_files("lab/odd", tmp_path)
    assert not isinstance(one.value, TransientError)


@pytest.mark.parametrize(
    ("card", "patterns"),
    [
        (CARD, ["data/train_sft-*"]),
        (b"---\nconfigs:\n- data_files: {test: x, train: [y, z]}\n---\n", ["y", "z"]),
        (b"---\nconfigs: null\n---\n", []),
        (b"---\nconfigs:\n- config_name: a\n  data_files:\n  - split: train\n    path: [x, y]\n---\n", ["x", "y"]),
        (b"---\nconfigs:\n- config_name: a\n  data_files: [x.jsonl]\n---\n", ["x.jsonl"]),
        (b"---\nconfigs:\n- config_name: a\n  data_files:\n  - split: test\n    path: x\n---\n", []),
        (b"---\nlicense: mit\n---\n", []),
        (b"# no front matter", []),
    ],
)
def test_train_split_in_the_card(card: bytes, patterns: list[str]) -> None:
    assert card_files(card) == ("", patterns)
