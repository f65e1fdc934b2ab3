"""The training benchmark on tiny models: both sides learn the same, and a difference is an error."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import training

LOSS_TOKENS, VOCABULARY = 4096, 2400  # memory that is far above what an allocator keeps at hand
LOGITS_BYTES = 4 * LOSS_TOKENS * VOCABULARY
SMALLEST = f"--layers 1 --hidden 16 --heads 2 --kv-heads 1 --intermediate 24 --vocabulary {VOCABULARY}"
OPTIONS = f"{SMALLEST} --documents 6 --longest 40 --shrink 200 --pack-length 64 --rows 3".split()
OPTIONS += ["--repetitions", "2", "--loss-tokens", str(LOSS_TOKENS)]
OPTIONS += ["--lever-tokens", "2048", "--lever-intermediate", "64"]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace processes by calls: two would take seconds to start."""
    monkeypatch.setattr(training.common, "in_a_process", lambda work, *given: work(*given))


@pytest.mark.usefixtures("in_this_process")
def test_it_measures_both_sides_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "training.json"
    assert training.main([*OPTIONS, "--all-logits", "--out", str(file)]) == 0
    found = json.loads(file.read_text())
    assert set(found["seconds"]) == {"padded", "packed", "padded, all logits"}
    assert all(len(times) == 2 for times in found["seconds"].values())
    assert found["useful_tokens"] < found["padded_tokens"]
    assert found["loss_difference"] <= 1e-5 and min(found["losses"].values()) > 1
    assert set(found["ratio"]) == {"padded", "padded, all logits"}
    peaks = found["loss_peak_bytes"]
    assert 0 < peaks["chunked"] < peaks["plain"] and peaks["plain"] > LOGITS_BYTES
    levers = found["levers"]
    assert levers["loss_difference"] <= 1e-5 and levers["memory_ratio"]["count"] == 2
    assert all(len(levers[what]["on"]) == 2 for what in ("peak_bytes", "seconds"))
    assert set(found["drift"]) == {"none", "offload_activations", "tiled_mlp", "both"}
    assert found["drift"]["offload_activations"] == found["drift"]["none"] > 1e-4
    printed = capsys.readouterr().out
    assert "a pass over 2048 tokens" in printed
    assert "packed against padded: " in printed and "memory of the loss, chunked / plain: " in printed


@pytest.mark.long
def test_the_loss_is_measured_in_processes_of_their_own() -> None:
    plain, chunked = (
        training.common.in_a_process(training.loss_peak, training.parse(OPTIONS), way) for way in ("plain", "chunked")
    )
    assert LOGITS_BYTES < plain < 8 * LOGITS_BYTES
    assert 0 < chunked < plain


@pytest.mark.usefixtures("in_this_process")
def test_a_difference_of_the_losses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = training.packed_batches

    def one_label_less(*arguments: Any, **options: Any) -> list[Any]:
        batches = list(right(*arguments, **options))
        batches[0]["labels"][0, -1] = -100
        return batches

    monkeypatch.setattr(training, "packed_batches", one_label_less)
    assert training.main(OPTIONS) == 1


def test_lengths_come_from_conversations_of_either_form(tmp_path: Path) -> None:
    long, short = tmp_path / "long.jsonl.gz", tmp_path / "short.json"
    messages = [{"role": "user", "content": "u" * 400}, {"role": "assistant", "content": "a" * 80}]
    long.write_bytes(gzip.compress(json.dumps({"messages": messages}).encode()))
    turns = [{"from": "human", "value": "h" * 20}, {"from": "gpt", "value": "g" * 12}]
    short.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    assert training.read_lengths(long) == [(120, 20)]
    assert training.read_lengths(short) == [(8, 3)]
    short.write_text("[]")
    with pytest.raises(ValueError, match=r"short\.json holds no conversation"):
        training.read_lengths(short)
