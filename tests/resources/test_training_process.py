"""The entry point of a rank: what it says, to whom, and how it ends. Whole trainings are in tests/training."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.resources import training_process
from gateau_dagster.resources.training_process import Reporter, main, progress_line
from gateau_dagster.storage import fence
from gateau_dagster.storage.fence import Token, exported, holding
from gateau_dagster.storage.files import Files
from gateau_dagster.training.launch import LAUNCHER_VARIABLE, TrainingSpec

METRICS: dict[str, Any] = {
    "step": 3,
    "total": 20,
    "loss": 1.25,
    "learning_rate": 2e-5,
    "grad_norm": 0.5,
    "tokens": 99,
    "tokens_per_second": 1234.5,
    "seconds_left": 17.4,
    "peak_memory_bytes": 3 * 2**30,
}


@pytest.fixture
def spec(tmp_path: Path) -> TrainingSpec:
    made = TrainingSpec(
        mix=tmp_path / "mix.parquet",
        base_model="nowhere",
        output=tmp_path / "output",
        work=tmp_path / "work",
        training=TrainingConfig(),
        fingerprint="f",
    )
    made.save(tmp_path / "spec.json")
    return made


def replace_train(monkeypatch: pytest.MonkeyPatch, train: Any) -> None:
    """`train`: a function, or what it raises."""
    train = mock.Mock(side_effect=train) if isinstance(train, Exception) else train
    monkeypatch.setattr("gateau_dagster.training.train.train", train)
    monkeypatch.setattr(training_process, "signal", type("Signals", (), {"signal": lambda *_: None, "SIGTERM": 15}))


def test_progress_line_with_the_share_of_the_peak() -> None:
    assert "17 s left  MFU 41%  peak 3,072 MiB" in training_process.progress_line(METRICS | {"mfu": 0.413})


def test_progress_line() -> None:
    assert progress_line(METRICS) == (
        "step 3/20  loss 1.2500  lr 2.00e-05  grad norm 0.500  1,234 tokens/s  17 s left  peak 3,072 MiB"
    )
    assert "grad norm" not in progress_line(METRICS | {"grad_norm": None})


def test_every_step_is_sent_and_few_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    sent: list[dict[str, Any]] = []
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reporter = Reporter(said.append, sent.append)
    for step in range(1, 11):
        now[0] += 0.5
        reporter(METRICS | {"step": step, "total": 10})
    assert [message["training_step"]["step"] for message in sent] == list(range(1, 11))
    assert [line.split()[1] for line in said] == ["1/10", "5/10", "9/10", "10/10"]


def test_success_prints_the_lines(
    spec: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(given: TrainingSpec, report: Reporter, **options: Any) -> None:
        assert given == spec
        report(METRICS)

    replace_train(monkeypatch, train)
    assert main([str(tmp_path / "spec.json")]) == 0
    assert capsys.readouterr().out == progress_line(METRICS) + "\n"
    assert not spec.failure.exists()


def test_an_error_of_the_user_is_one_line(
    spec: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_train(monkeypatch, GateauError("training.diverged", "the loss is nan at step 3"))
    assert main([str(tmp_path / "spec.json")]) == 1
    assert capsys.readouterr().err == "error: the loss is nan at step 3\n"
    assert spec.failure.read_text() == "the loss is nan at step 3\n"


def test_a_rank_proves_the_leases_of_its_specification(
    spec: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launcher over ssh does not hand on the environment."""
    files = Files(str(tmp_path / "store"))
    with holding(Token(root=files.root, number=1, lease="ours"), alone=True):
        replace(spec, leases=exported()).save(tmp_path / "spec.json")
    monkeypatch.setattr(fence, "_process", fence._Process())
    files.create("_lease/00000001.json", b'{"lease": "ours"}')
    replace_train(monkeypatch, lambda given, report, **options: files.write("a", given.fingerprint.encode()))
    assert main([str(tmp_path / "spec.json")]) == 0
    assert files.read("a") == b"f"
    Path(files.address("_lease/00000001.json")).write_bytes(b'{"lease": "theirs"}')
    assert main([str(tmp_path / "spec.json")]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and shown.count("\n") == 1 and "has taken over" in shown
    assert not spec.failure.exists(), "its folder is another run's"
    assert sorted(files.sizes()) == ["_lease/00000001.json", "a"]


def test_an_unexpected_error_shows_where_and_no_secret(
    spec: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "tr4cker-0123456789"
    monkeypatch.setenv("TRACKER_API_KEY", key)

    def train(given: TrainingSpec, report: Reporter, **options: Any) -> None:
        raise RuntimeError(f"asked with {key}") from ValueError(key)

    replace_train(monkeypatch, train)
    assert main([str(tmp_path / "spec.json")]) == 1
    shown, told = capsys.readouterr().err, "RuntimeError: asked with ***\n"
    assert "Traceback" in shown and shown.endswith(f"error: {told}") and spec.failure.read_text() == told
    shown += told
    assert shown.count("RuntimeError: asked with ***\n") == 3 and "ValueError: ***" in shown and key not in shown


def test_the_first_reason_is_kept_and_a_dead_rank_is_called_that(
    spec: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons: list[str | None] = ["the loss is nan at step 3", None]

    def train(given: TrainingSpec, report: Reporter, **options: Any) -> None:
        reason = reasons.pop(0)
        if reason is not None:
            given.work.mkdir()
            given.failure.write_text(reason)  # as another rank writes it
        raise RuntimeError("[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]")

    replace_train(monkeypatch, train)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([str(tmp_path / "spec.json")]) == 1
    assert spec.failure.read_text() == "the loss is nan at step 3"
    assert main([str(tmp_path / "spec.json")]) == 1
    assert spec.failure.read_text().startswith("another rank of the training died or does not answer")
    assert "error: another rank" in capsys.readouterr().err


def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replace_train(monkeypatch, None)
    assert main([]) == 1
    assert "usage" in capsys.readouterr().err
    assert main([str(tmp_path / "no.json")]) == 1
    assert "no.json cannot be read: No such file" in capsys.readouterr().err


RANK = """
import time, gateau_dagster.resources.training_process as p
p._end_with_launcher(); print('up', flush=True); time.sleep(60)
"""


def up(code: str, launcher: int, **environment: str) -> subprocess.Popen[str]:
    """A process that runs this, once it has said that it does; started by `launcher`, as far as it knows."""
    environment |= {LAUNCHER_VARIABLE: f"{socket.gethostname()}|{launcher}"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def test_a_training_ends_with_whoever_started_it() -> None:
    launcher = subprocess.Popen(["sleep", "60"])
    orphan = up(RANK, launcher.pid)
    assert orphan.poll() is None
    launcher.kill()  # not waited for: a zombie counts as gone
    assert orphan.wait(timeout=15) == 1
    launcher.wait()


def test_a_rank_ends_with_its_parent() -> None:
    """torchrun, say: killed alone, while whoever started it lives on."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {RANK!r}])"
    parent = up(code, os.getpid(), RANK="0")
    [orphan] = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs([orphan], timeout=15)
    assert left == []


@pytest.mark.parametrize(("cuda", "given", "wanted"), [(False, None, "cpu"), (False, "xpu", "xpu"), (True, None, None)])
def test_deepspeed_is_told_of_a_machine_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, given: str | None, wanted: str | None
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setenv("DS_ACCELERATOR", given or "")
    if given is None:
        monkeypatch.delenv("DS_ACCELERATOR")
    training_process._choose_accelerator()
    assert os.environ.get("DS_ACCELERATOR") == wanted
