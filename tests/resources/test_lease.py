"""A store is known by its own id to all that reach it, and apart from its copies; who works on it is seen."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.lease import holder_of, known_store_id, party, store_id, store_lease
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import EXPIRES_SECONDS, FOLDER, Holder
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.kit.error_codes import refused
from tests.kit.project import make_project


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


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"long_sft": {"path": "a"}, "storage": {"root": str(tmp_path / "store")}}).model_copy(
        update={"folder": tmp_path}
    )


def test_while_a_lease_is_held(config: Config) -> None:
    assert holder_of(config) is None
    for exclusive in (True, False):
        with store_lease(config, "/some/where.yaml", exclusive=exclusive, say=print):
            assert "/some/where.yaml" in (holder_of(config) or "")
        assert holder_of(config) is None


@pytest.mark.parametrize(
    ("boot", "silent", "holds"),
    [("", EXPIRES_SECONDS * 9, True), ("elsewhere", 0, True), ("elsewhere", EXPIRES_SECONDS * 2, False)],
)
def test_a_process_that_cannot_be_seen_holds_a_lease_while_it_renews_it(
    config: Config, boot: str, silent: float, holds: bool
) -> None:
    process = ProcessIdentity.of()
    process = replace(process, boot_id=boot, machine="", host="there") if boot else process
    with store_lease(config, "x.yaml", exclusive=True, say=print):
        files = Files(config.located_root)
        [name] = [each for each in files.names(FOLDER) if each.endswith(".json")]
        found = Holder.from_bytes(files.read(f"{FOLDER}/{name}"))
    assert found is not None
    seen = replace(found, released=False, process=process.to_text(), renewed_at=found.renewed_at - silent)
    files.write(f"{FOLDER}/{name}", seen.to_bytes())
    assert (holder_of(config) is not None) is holds


@pytest.mark.parametrize("rubbish", [b"", b"{}", b"\xff" * 100])
def test_what_is_no_lease_is_nobody(config: Config, rubbish: bytes) -> None:
    Files(config.located_root).write(f"{FOLDER}/00000001.json", rubbish)
    assert holder_of(config) is None
