"""What a training said of itself is read as it was written, or counts as missing."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.storage import Store
from gateau_dagster.storage.training_record import (
    RECORD_NAME,
    local_training_record,
    read_training_log,
    read_training_record,
    record_bytes,
)

RECORD: dict[str, Any] = {"resume_key": "k", "steps": [{"step": 1, "loss": 2.5, "grad_norm": float("inf")}]}


def test_the_training_log_of_a_published_model(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert read_training_log(store) == []
    for data in (record_bytes(RECORD), json.dumps(RECORD).encode()):  # records of old have no digest
        store.files.write(f"checkpoint/{RECORD_NAME}", data)
        assert read_training_log(store) == RECORD["steps"]
        assert read_training_record(store, "checkpoint") == RECORD
    assert not [record for record in caplog.records if record.name.startswith("gateau")]


def test_no_flipped_bit_is_taken_for_the_truth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, whole = tmp_path / RECORD_NAME, record_bytes(RECORD)
    with caplog.at_level(logging.ERROR):
        for bit in range(8 * len(whole)):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            found = local_training_record(tmp_path)
            assert not found or {name: found[name] for name in RECORD} == RECORD, "white space, or the digest's name"


@pytest.mark.parametrize("content", [b"", b"0", b"[1]", b"null", b'{"steps": [', b"\xff", b"[" * 100_000])
def test_a_torn_one_is_named_and_counts_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / RECORD_NAME).write_bytes(content)
    assert read_training_log(Store(str(tmp_path))) == []
    [said] = caplog.messages
    assert f"checkpoint/{RECORD_NAME} is damaged and counts as missing" in said
