from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.data.sources import SourceFile, card_files, input_signature, resolve_files
from gateau_dagster.errors import GateauError, TransientError
from tests.error_codes import refused

from .hub_server import Datasets, hub_server
from .inputs import explicit, jsonl, packed, parquet

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
        "lab/private": {},
        "lab/down": {},
    }
    with hub_server(datasets, {"lab/private": 403, "lab/down": 500}) as endpoint:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        # Derived from the end point when huggingface_hub is imported.
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield datasets


def names(files: list[SourceFile]) -> list[str]:
    return [file.address for file in files]


def test_a_data_sets_name_means_its_train_split(hub: Datasets, tmp_path: Path) -> None:
    assert names(resolve_files("lab/plain", tmp_path)) == ["hf://datasets/lab/plain/long.jsonl"]
    assert names(resolve_files("lab/splits", tmp_path)) == ["hf://datasets/lab/splits/data/train.jsonl.gz"]
    assert names(resolve_files("lab/card", tmp_path)) == ["hf://datasets/lab/card/data/train_sft-00000.parquet"]


def test_addresses_and_globs(hub: Datasets, tmp_path: Path) -> None:
    found = resolve_files("hf://datasets/lab/splits/data/*.gz", tmp_path)
    assert [file.stem for file in found] == ["dev", "test", "train"]
    assert names(resolve_files("hf://datasets/lab/splits/data/dev.jsonl.gz", tmp_path)) == [found[0].address]
    assert names(resolve_files("hf://datasets/lab/splits", tmp_path)) == names(found)


def test_index_and_texts_from_the_hub(hub: Datasets, tmp_path: Path) -> None:
    config = LongSftConfig(path=["lab/plain", "lab/splits", "lab/card"], shards=2)
    index = build_index(config, tmp_path)
    assert set(index.accepted["sample_id"]) == {"a", "b", "train", "train_sft"}
    raw = {
        row["sample_id"]: row
        for _, frame, _ in read_shards(config, tmp_path, index, [0, 1])
        for row in frame.to_dicts()
    }
    assert raw["train_sft"]["context"] == "a document for train_sft"
    assert raw["train_sft"]["source"] == "train_sft-00000"


def test_a_changed_file_changes_the_signature(hub: Datasets, tmp_path: Path) -> None:
    before = input_signature(resolve_files("lab/plain", tmp_path))
    assert input_signature(resolve_files("lab/plain", tmp_path)) == before
    hub["lab/plain"]["long.jsonl"] = jsonl(explicit("a"), explicit("c"))
    assert input_signature(resolve_files("lab/plain", tmp_path)) != before


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
    ],
)
def test_what_is_not_there(hub: Datasets, tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(GateauError, match=reason) as caught:
        resolve_files(path, tmp_path)
    assert not isinstance(caught.value, TransientError)


def test_a_hub_that_fails_may_be_tried_again(hub: Datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("hf://datasets/lab/down/x.jsonl", "hf://datasets/lab/private/x.jsonl"):
        with pytest.raises(TransientError, match="cannot be used"):
            resolve_files(path, tmp_path)
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
