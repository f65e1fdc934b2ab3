"""The command and environment that start a training, and what to say when it ended badly."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from gateau_dagster.training.spec import TrainingSpec

MODULE = "resources.training_process"
LAUNCHER_VARIABLE = "GATEAU_LAUNCHER_PID"
"""Process whose end ends the training: an orphan would write where the next run writes."""


def training_command(spec_path: Path, *, processes: int, deepspeed: bool, python: str = sys.executable) -> list[str]:
    """Plain Python for one process without DeepSpeed, else torchrun on this machine, on a free port.

    Args:
        spec_path: file that `TrainingSpec.save` wrote.
        processes: `training.processes`.
        deepspeed: whether the specification has a DeepSpeed configuration.
        python: interpreter.
    """
    program = ["-m", MODULE, str(spec_path)]
    if processes == 1 and not deepspeed:
        return [python, *program]
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *program]


def training_environment(*, processes: int, cuda: bool, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to add to the training's environment; what the user has set in `base` stays.

    Args:
        processes: ranks, which share the machine's cores.
        cuda: whether a GPU is there.
        base: environment that the variables are added to.
    """
    threads = max(1, (os.cpu_count() or 1) // processes)
    added = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if not cuda:
        added |= {"DS_ACCELERATOR": "cpu"}
    return {name: base.get(name, value) for name, value in added.items()} | {LAUNCHER_VARIABLE: str(os.getpid())}


def failure_message(spec: TrainingSpec, returncode: int) -> str:
    """Why the training ended with `returncode` (not 0; negative for a signal), in one line."""
    if spec.failure.exists():
        return spec.failure.read_text(encoding="utf-8").strip()
    cause = f"ended with status {returncode}"
    if returncode == 1:  # torchrun's own, which ends the other ranks before they can tell that one hung up
        cause += " and no rank said why: it could not start, or was killed, often by the system for lack of memory"
    if returncode < 0:
        cause = f"was ended by {signal.Signals(-returncode).name}"
        if -returncode == signal.SIGKILL:
            cause += " (often the system, for lack of memory)"
    return f"the training process {cause}; its log says more. Run again: it goes on from the last complete checkpoint."
