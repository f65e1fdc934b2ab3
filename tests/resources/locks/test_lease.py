"""A store is known by its own id: to every configuration and machine that reaches it, and apart from its copies."""

import shutil
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.locks.lease import known_store_id, party, store_id
from tests.error_codes import refused
from tests.project import make_project


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Config, Config]:
    """Two checkouts of a project that share a store."""
    store = {"root": str(tmp_path / "store")}
    one, other = (make_project(tmp_path / name, samples=2, shards=1, storage=store) for name in ("one", "other"))
    return load_project(one), load_project(other)


def test_two_parties_know_the_store_that_they_share(configs: tuple[Config, Config]) -> None:
    one, other = configs
    assert party(one, "gateau.yaml") != party(other, "gateau.yaml")
    assert store_id(one) == store_id(other) == store_id(one)


def test_a_copy_in_the_place_of_a_store_is_another_one(configs: tuple[Config, Config], tmp_path: Path) -> None:
    """As on a second machine, where the disk was copied with all that is on it."""
    one, _ = configs
    before = store_id(one)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store").rename(tmp_path / "aside")
    (tmp_path / "copy").rename(tmp_path / "store")
    assert store_id(one) != before


def test_of_many_that_ask_first_all_get_the_same(bucket: str, configs: tuple[Config, Config]) -> None:
    storage = configs[0].storage.model_copy(update={"root": f"s3://{bucket}/store"})
    one, other = (each.model_copy(update={"storage": storage}) for each in configs)
    assert store_id(one) == store_id(other)


@pytest.mark.parametrize("damage", [b"", b"0123456789abcde", b"\xb1" + b"0" * 31, b"0" * 31 + b"g"])
def test_an_id_that_is_none_is_named_with_what_to_do(configs: tuple[Config, Config], damage: bytes) -> None:
    one, _ = configs
    before = store_id(one), party(one, "gateau.yaml")
    files = Path(one.located_root) / "_lease" / "id", one.work_folder / "id"
    for file in files:
        file.write_bytes(damage)
    for ask in (store_id, known_store_id, lambda config: party(config, "gateau.yaml")):
        with refused("storage.id_damaged", "32"):
            ask(one)
    for file in files:
        file.unlink()
    assert not {store_id(one), party(one, "gateau.yaml")} & {*before}
