"""Who works on a store, as those see it who only look."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.resources.locks.lease import holder_of, store_lease
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import EXPIRES_SECONDS, FOLDER, Holder
from gateau_dagster.storage.process_identity import ProcessIdentity


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
