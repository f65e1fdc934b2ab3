"""The commands and environment of a training, several ranks under Dagster Pipes, and what to say when one hung up."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dagster import AssetExecutionContext, MaterializeResult, PipesSubprocessClient, asset, materialize
from transformers import AutoModelForCausalLM

from gateau_dagster.storage.training_record import RECORD_NAME, record_bytes
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.launch import hung_up, is_finished, share_cores, training_command, training_environment
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import train
from tests.training.builders import make_spec
from tests.training.processes import ROOT, log_of, weights_differ

SETTINGS: dict[str, Any] = {"max_steps": 12, "save_steps": 4}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    """The same global batches of four in one process."""
    spec = make_spec(tmp_path_factory.mktemp("one"), batch_size=1, gradient_accumulation=4, **SETTINGS)
    train(spec, lambda metrics: None)
    return spec


def ranks(folder: Path, stage: str) -> TrainingSpec:
    """Two ranks, two accumulation steps."""
    config = deepspeed_config(stage, folder=folder)
    return make_spec(folder, deepspeed=config, processes=2, batch_size=1, gradient_accumulation=2, **SETTINGS)


def compare(spec: TrainingSpec, reference: TrainingSpec) -> None:
    """The loss curve to 1e-5, the weights to 1e-4 (issue 5's bounds), and the output is one whole model."""
    got, want = log_of(spec), log_of(reference)
    assert [step["step"] for step in got] == [step["step"] for step in want]
    assert [step["loss"] for step in got] == pytest.approx([step["loss"] for step in want], abs=1e-5, rel=0)
    assert [step["learning_rate"] for step in got] == pytest.approx([step["learning_rate"] for step in want])
    assert weights_differ(spec, reference) <= 1e-4
    assert AutoModelForCausalLM.from_pretrained(spec.output).dtype == torch.float32
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}


@pytest.mark.long
def test_zero2_on_two_ranks_under_dagster_pipes(tmp_path: Path, one_process: TrainingSpec) -> None:
    spec = ranks(tmp_path, "zero2")
    spec.save(tmp_path / "spec.json")
    messages: list[Any] = []

    @asset
    def checkpoint(context: AssetExecutionContext) -> MaterializeResult:
        invocation = PipesSubprocessClient().run(
            context=context,
            command=training_command(tmp_path / "spec.json", processes=2, deepspeed=True),
            env=training_environment(processes=2, cuda=False),
            cwd=str(ROOT),
        )
        messages.extend(invocation.get_custom_messages())
        return invocation.get_materialize_result()

    assert materialize([checkpoint]).success
    compare(spec, one_process)
    assert [message["training_step"] for message in messages] == log_of(spec)


def test_commands(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    program = ["-m", "resources.training_process", str(spec)]
    assert training_command(spec, processes=1, deepspeed=False) == [sys.executable, *program]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    assert training_command(spec, processes=2, deepspeed=False) == [*torchrun, "--nproc-per-node=2", *program]
    assert training_command(spec, processes=1, deepspeed=True) == [*torchrun, "--nproc-per-node=1", *program]


def test_ranks_share_the_cores_of_their_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 ranks on two machines of 64 cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):  # of torchrun, of DeepSpeed's launcher
        rank = training_environment(processes=16, cuda=True, base={}) | {name: "8"}
        share_cores(rank)
        assert rank["OMP_NUM_THREADS"] == "8"
    elsewhere = {"LOCAL_SIZE": "8"}  # DeepSpeed's launcher hands no such variable to another machine
    share_cores(elsewhere)
    assert elsewhere["OMP_NUM_THREADS"] == "8"
    chosen = training_environment(processes=16, cuda=True, base={"OMP_NUM_THREADS": "7"}) | {"LOCAL_WORLD_SIZE": "8"}
    share_cores(chosen)
    assert chosen["OMP_NUM_THREADS"] == "7"
    alone = training_environment(processes=1, cuda=True, base={})
    share_cores(alone)
    assert alone["OMP_NUM_THREADS"] == "64"


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234", True),
        ("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", True),
        ("Application timeout caused pair closure", True),
        (
            "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error\nncclRemoteError: ",
            True,
        ),
        ("NCCL communicator was aborted on rank 1.", True),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)", True),
        ("Distributed package doesn't have NCCL built in", False),
        ("NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nCuda failure 'invalid device ordinal'", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_an_error_that_tells_of_another_rank(monkeypatch: pytest.MonkeyPatch, error: str, gone: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert hung_up(RuntimeError(error)) == gone
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not hung_up(RuntimeError(error))


def test_environment_keeps_what_the_user_set() -> None:
    added = training_environment(processes=1000, cuda=False, base={})
    assert (added["OMP_NUM_THREADS"], added["DS_ACCELERATOR"]) == ("1", "cpu")
    assert added["GATEAU_LAUNCHER"] == f"{socket.gethostname()}|{os.getpid()}"
    assert training_environment(processes=2, cuda=False, base={"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert "DS_ACCELERATOR" not in training_environment(processes=2, cuda=True, base={})


def test_a_result_whose_record_is_damaged_is_made_again(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert not is_finished(spec)
    spec.output.mkdir(parents=True)
    whole = record_bytes({"resume_key": spec.resume_key, "steps": []})
    for data, finished in ((whole, True), (whole[:-9], False), (whole.replace(b"steps", b"stops"), False)):
        (spec.output / RECORD_NAME).write_bytes(data)
        assert is_finished(spec) is finished
