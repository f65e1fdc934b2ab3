"""The commands and environment of a training, several ranks under Dagster Pipes, and what to say when one hung up."""

import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from dagster import AssetExecutionContext, MaterializeResult, PipesSubprocessClient, asset, materialize
from transformers import AutoModelForCausalLM

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.documents import RECORD_NAME, record_bytes
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.launch import (
    MODULE,
    TrainingSpec,
    failure_message,
    hung_up,
    is_finished,
    read_hostfile,
    share_cores,
    training_command,
    training_environment,
)
from gateau_dagster.training.train import train
from tests.kit.error_codes import refused
from tests.training.builders import (
    ROOT,
    agree,
    finish,
    log_of,
    make_spec,
    rank_process,
    run,
    start,
    wait_for_step,
)

SETTINGS: dict[str, Any] = {"max_steps": 12, "save_steps": 4}


@pytest.mark.long
def test_zero2_on_two_ranks_under_dagster_pipes(tmp_path: Path) -> None:
    one_process = make_spec(tmp_path, name="one", batch_size=1, gradient_accumulation=4, **SETTINGS)
    run(one_process)
    spec = two_ranks(tmp_path, gradient_accumulation=2, **SETTINGS)
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
    agree(spec, one_process)
    rates = [[step["learning_rate"] for step in log_of(each)] for each in (spec, one_process)]
    assert rates[0] == pytest.approx(rates[1])
    assert AutoModelForCausalLM.from_pretrained(spec.output).dtype == torch.float32
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}
    assert [message["training_step"] for message in messages] == log_of(spec)


def test_commands(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    program = ["-m", "gateau_dagster.resources.training_process", str(spec)]
    assert training_command(spec, processes=1, deepspeed=False) == [sys.executable, *program]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    assert training_command(spec, processes=2, deepspeed=False) == [*torchrun, "--nproc-per-node=2", *program]
    assert training_command(spec, processes=1, deepspeed=True) == [*torchrun, "--nproc-per-node=1", *program]


def test_ranks_share_the_cores_of_their_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 ranks on two machines of 64 cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    shared = training_environment(processes=16, cuda=True, base={})
    for environment, threads in (
        (shared | {"LOCAL_WORLD_SIZE": "8"}, "8"),  # of torchrun
        (shared | {"LOCAL_SIZE": "8"}, "8"),  # of DeepSpeed's launcher
        ({"LOCAL_SIZE": "8"}, "8"),  # which hands no such variable to another machine
        (training_environment(processes=16, cuda=True, base={"OMP_NUM_THREADS": "7"}) | {"LOCAL_WORLD_SIZE": "8"}, "7"),
        (training_environment(processes=1, cuda=True, base={}), "64"),
    ):
        share_cores(environment)
        assert environment["OMP_NUM_THREADS"] == threads


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


def test_environment() -> None:
    added = training_environment(processes=1000, cuda=False, base={})
    assert (added["OMP_NUM_THREADS"], added["DS_ACCELERATOR"]) == ("1", "cpu")
    assert added["GATEAU_LAUNCHER"] == f"{socket.gethostname()}|{os.getpid()}"
    assert "DS_ACCELERATOR" not in training_environment(processes=2, cuda=True, base={})


def test_a_result_whose_record_is_damaged_is_made_again(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert not is_finished(spec)
    spec.output.mkdir(parents=True)
    whole = record_bytes({"resume_key": spec.resume_key, "steps": []})
    for data, finished in ((whole, True), (whole[:-9], False), (whole.replace(b"steps", b"stops"), False)):
        (spec.output / RECORD_NAME).write_bytes(data)
        assert is_finished(spec) is finished


BIN = Path(sys.executable).parent
TWO = "--nproc-per-node=2"
LAUNCHERS = {
    "torchrun": ["torchrun", TWO, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"],
    "torchrun in a shell": ["bash", "-c", f"MASTER=127.0.0.1; '{BIN}/torchrun' {TWO} --rdzv-backend=c10d "
                            "--rdzv-endpoint=${MASTER}:0 -m {module} {spec}"],
    "accelerate": ["accelerate", "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
                   "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0", "-m", "{module}", "{spec}"],
    "deepspeed": ["deepspeed", "--num_gpus=2", "--no_local_rank", "--module", "{module}", "{spec}"],
}  # fmt: skip


def two_ranks(folder: Path, **changes: Any) -> TrainingSpec:
    settings: dict[str, Any] = {"processes": 2, "batch_size": 1, "max_steps": 4}
    return make_spec(folder, deepspeed=deepspeed_config("zero2", folder=folder), **settings | changes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compare(spec: TrainingSpec, folder: Path) -> None:
    """With one process: the same losses and weights."""
    alone = make_spec(folder, name="alone", batch_size=2, max_steps=len(log_of(spec)))
    run(alone)
    agree(spec, alone)


@pytest.mark.long
@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers(tmp_path: Path, name: str) -> None:
    launcher = LAUNCHERS[name]
    if name == "deepspeed":
        launcher = [launcher[0], f"--master_port={free_port()}", *launcher[1:]]
    spec = two_ranks(tmp_path, launcher=launcher)
    finish(start(spec, tmp_path / "spec.json"))
    compare(spec, tmp_path)


@pytest.mark.long
def test_hostfile_and_the_death_of_a_rank_that_its_launcher_hides(tmp_path: Path) -> None:
    """DeepSpeed's launcher ends itself by a signal where a rank died, and its runner ends with status 0 then."""
    hosts = tmp_path / "hostfile"
    hosts.write_text("# one machine\nlocalhost slots=2\n")
    spec = replace(two_ranks(tmp_path, max_steps=60, save_steps=2), hostfile=hosts)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 3)
    rank_process(process, 1).kill()
    process.communicate(timeout=300)
    assert not is_finished(spec)
    # The other rank may report first what it has noticed.
    reasons = ("killed, often by the system", "another rank of the training died")
    assert any(reason in failure_message(spec, process.returncode) for reason in reasons)
    finish(start(spec, tmp_path / "spec.json"))
    compare(spec, tmp_path)


def pretended(folder: Path, name: str, script: str) -> None:
    """A program of this name on the PATH of the test's processes."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)


@pytest.mark.long
def test_example_of_torchrun_on_two_machines(tmp_path: Path) -> None:
    """Both are this one: `ssh` only runs the command."""
    pretended(tmp_path, "ssh", f'echo "$*" >> {tmp_path}/ssh.log; exec bash -c "${{@: -1}}"')
    script = str(ROOT / "examples" / "multi_node" / "torchrun_everywhere.sh")
    spec = two_ranks(tmp_path, launcher=[script, "127.0.0.1", "worker-2", "{module}", "{spec}"])
    path = f"{tmp_path / 'bin'}:{BIN}:{os.environ['PATH']}"
    finish(start(spec, tmp_path / "spec.json", PATH=path, GPUS="1", PORT=str(free_port())))
    assert "worker-2 cd " in (tmp_path / "ssh.log").read_text()
    compare(spec, tmp_path)


@pytest.mark.long
def test_example_of_slurm(tmp_path: Path) -> None:
    """One node with two ranks: `srun` runs its command once."""
    pretended(tmp_path, "srun", f'echo "$*" >> {tmp_path}/srun.log; while [[ $1 == --* ]]; do shift; done; exec "$@"')
    pretended(tmp_path, "scontrol", "echo 127.0.0.1")
    example = yaml.safe_load((ROOT / "examples" / "multi_node" / "slurm.yaml").read_text())
    launcher = [
        word.replace(".venv/bin", str(BIN)).replace("per-node=8", "per-node=2").replace("29500", str(free_port()))
        for word in example["training"]["launcher"]
    ]
    spec = two_ranks(tmp_path, launcher=launcher)
    job = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_CPUS_PER_TASK": "2"}
    finish(start(spec, tmp_path / "spec.json", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **job))
    asked = (tmp_path / "srun.log").read_text()
    assert "--kill-on-bad-exit=1" in asked and "--cpus-per-task=2 " in asked  # which srun does not take from sbatch
    compare(spec, tmp_path)


def test_examples_are_valid_configurations() -> None:
    folder = ROOT / "examples" / "multi_node"
    found = sorted(folder.glob("*.yaml"))
    assert len(found) == 4
    for example in found:
        training = TrainingConfig.model_validate(yaml.safe_load(example.read_text())["training"])
        assert training.processes == 16
        assert (training.launcher is None) == (training.hostfile is not None)
    assert read_hostfile(folder / "hostfile") == {"worker-1": 8, "worker-2": 8}


def test_the_launcher_is_looked_for_beside_the_interpreter_and_on_the_path(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    given = training_command(spec, processes=2, deepspeed=True, launcher=["torchrun", TWO])
    assert given == [str(BIN / "torchrun"), TWO, "-m", MODULE, str(spec)]
    shell = training_command(spec, processes=2, deepspeed=True, launcher=["sh", "-c", "srun x ${HEAD} {module} {spec}"])
    assert shell[1:] == ["-c", f"srun x ${{HEAD}} {MODULE} {spec}"]
    with refused("training.launcher", "'sruun'.*PATH"):
        training_command(spec, processes=2, deepspeed=True, launcher=["sruun", "-n2"])
    with refused("training.launcher"):
        training_command(spec, processes=2, deepspeed=True, launcher=[])


def test_hostfile_commands(tmp_path: Path) -> None:
    hosts, spec = tmp_path / "hostfile", tmp_path / "spec.json"
    hosts.write_text("worker-1 slots=8  # GPUs\n\nworker-2 slots=8\n")
    assert read_hostfile(hosts) == {"worker-1": 8, "worker-2": 8}
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(hosts), "--no_local_rank"]
    command = training_command(spec, processes=16, deepspeed=True, hostfile=hosts)
    assert command == [*runner, "--module", MODULE, str(spec)]
    hosts.write_text("localhost slots=2")
    here = training_command(spec, processes=2, deepspeed=True, hostfile=hosts)
    assert here[:6] == runner
    assert here[6:8] == ["--no_ssh_check", "--master_addr=127.0.0.1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"hostfile cannot be read \(No such file or directory\)"),
        ("worker-1 slots=8\nworker-2 slots=8", r"has 16 slots on worker-1, worker-2, but training.processes is 2"),
        ("worker-1", "contains the line 'worker-1'. Write each machine once, as worker-1 slots=8"),
        ("worker-1 slots=two", "contains the line 'worker-1 slots=two'"),
        ("worker-1 slots=1\nworker-1 slots=1", "contains the line 'worker-1 slots=1'"),
        ("# nobody", "names no machine"),
        ("# f\xfcr alle\nworker-1 slots=2", "hostfile is not UTF-8 text"),
    ],
)
def test_a_hostfile_that_cannot_be_used(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "hostfile").write_text(content, encoding="latin-1")
    with pytest.raises(GateauError, match=message):
        training_command(tmp_path / "spec.json", processes=2, deepspeed=True, hostfile=tmp_path / "hostfile")


def test_other_ranks_than_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with refused("training.processes", "2.*4"):
        train(two_ranks(tmp_path), lambda metrics: None)


def test_failure_messages(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    for status, said in (
        (-signal.SIGKILL, "was ended by SIGKILL (often the system"),
        (-signal.SIGTERM, "was ended by SIGTERM"),
        (3, "ended with status 3; its log"),
        (1, "no rank said why: it could not start, or was killed"),
        (0, "ended without a result, and its launcher does not say why"),
    ):
        assert said in failure_message(spec, status)
    assert not spec.failure.exists()
    spec.failure.write_text("\n")
    assert "ended with status 3; its log" in failure_message(spec, 3), "an empty reason is none"
    spec.failure.write_text("the loss is nan\n")
    assert failure_message(spec, 1) == "the loss is nan"


def test_round_trip(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, deepspeed={"zero_optimization": {"stage": 2}}, max_steps=7, adam_betas=(0.8, 0.9))
    spec = replace(spec, revision="main", rope_theta=1e6, template="chat")
    spec.save(tmp_path / "deep" / "spec.json")
    assert TrainingSpec.load(tmp_path / "deep" / "spec.json") == spec
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["spec.json"]


def test_resume_key_follows_the_result_only(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    training = spec.training
    same = [
        replace(spec, work=tmp_path / "elsewhere"),
        replace(spec, training=training.model_copy(update={"save_steps": 99})),
    ]
    other = [
        replace(spec, fingerprint="other"),
        replace(spec, rope_theta=1e6),
        replace(spec, deepspeed={"zero_optimization": {"stage": 2}}),
        replace(spec, training=training.model_copy(update={"processes": 2})),
        replace(spec, training=training.model_copy(update={"learning_rate": 1e-4})),
    ]
    assert {candidate.resume_key for candidate in same} == {spec.resume_key}
    assert len({candidate.resume_key for candidate in [spec, *other]}) == 1 + len(other)


def test_a_probability_of_0_is_no_skip(tmp_path: Path) -> None:
    plain, never, seldom = (
        make_spec(tmp_path, skip=skip) for skip in (None, {"probability": 0.0}, {"probability": 1e-9})
    )
    assert never == plain
    assert (plain.training.side_by_side, seldom.training.side_by_side) == (False, True)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"mix": "a"}', '{"mix": 1, "output": "b", "work": "c"}'])
def test_unusable_files_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "spec.json"
    if content is not None:
        path.write_text(content)
    with refused("training.file_damaged", r"spec\.json"):
        TrainingSpec.load(path)
