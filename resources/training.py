"""Launch a training run as a separate process, and show its progress in the Dagster run."""

# Why Popen within a Pipes session: Dagster's own client signals its child only, and then waits for it. Here the whole
# tree of launchers and ranks ends within seconds. The waiting thread also looks whether somebody has asked the run to
# end, since Dagster raises that only once.
#
# What it costs: each training run is a new process, which imports its libraries and loads the model again. After a kill
# of the run, the ranks of this machine end by themselves (training_process.py).

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from pydantic import Field

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.interruption import end_tree
from gateau_dagster.progress import TimedProgress
from gateau_dagster.training.launch import (
    TrainingSpec,
    failure_message,
    is_finished,
    training_command,
    training_environment,
)
from gateau_dagster.training.readiness import check_device, check_packages

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_HEEDS = 5.0
_SECONDS_TO_END = 1.5


class TrainingResource(dg.ConfigurableResource):
    """Runs a training specification through Dagster Pipes: log lines and metrics arrive as they happen."""

    forward_termination: bool = Field(default=True, description="End the training when the run is terminated.")

    def run(
        self,
        context: dg.AssetExecutionContext,
        spec: TrainingSpec,
        spec_file: Path,
        progress: TimedProgress,
        heed: Callable[[], None],
    ) -> None:
        """Train until the output folder is complete.

        Args:
            context: of the step.
            spec: of the training.
            spec_file: receives the specification.
            progress: receives steps.
            heed: called every few seconds by the waiting thread; raises if the run is to end.

        Raises:
            GateauError: the training could not start or failed; the message is its reason. A new run resumes it.
        """
        command = self._command(spec, spec_file)
        elsewhere = spec.training.launcher is not None or spec.hostfile is not None
        cuda = elsewhere or _cuda_available()
        check_packages(spec.training)
        check_device(spec.training, cuda=cuda)
        spec.save(spec_file)
        spec.failure.unlink(missing_ok=True)
        environment = training_environment(processes=spec.training.processes, cuda=cuda)
        with _followed(spec.log, progress):
            status = self._run(context, command, environment, heed)
        if status != 0:
            raise GateauError("training.process_failed", failure_message(spec, status))
        if not is_finished(spec):  # a launcher may succeed though a signal ended its ranks
            raise GateauError("training.process_failed", failure_message(spec, 0))

    def _run(
        self,
        context: dg.AssetExecutionContext,
        command: list[str],
        environment: Mapping[str, str],
        heed: Callable[[], None],
    ) -> int:
        """Return the exit status, negative for a signal. Dagster's own client waits for a slow launcher."""
        reader, injector = dg.PipesTempFileMessageReader(), dg.PipesEnvContextInjector()
        with dg.open_pipes_session(context, context_injector=injector, message_reader=reader) as session:
            known = {**os.environ, **environment, **session.get_bootstrap_env_vars()}
            # A tracker without a key would prompt for it, and wait.
            process = subprocess.Popen(command, env=known, stdin=subprocess.DEVNULL)
            try:
                return _status(process, heed)
            finally:
                if self.forward_termination:
                    end_tree(process, patience=_SECONDS_TO_END)

    @staticmethod
    def _command(spec: TrainingSpec, spec_file: Path) -> list[str]:
        return training_command(
            spec_file,
            processes=spec.training.processes,
            deepspeed=spec.deepspeed is not None,
            launcher=spec.training.launcher,
            hostfile=spec.hostfile,
        )


def _status(process: subprocess.Popen[bytes], heed: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(_SECONDS_BETWEEN_HEEDS)
        except subprocess.TimeoutExpired:
            heed()


@contextmanager
def _followed(log: Path, progress: TimedProgress) -> Iterator[None]:
    """Report the last line of the metrics log while the training runs, and its start until there is one."""
    from gateau_dagster.training.metrics import read_log

    # The log is on a disk that all ranks share. Messages of Pipes go through a temporary file of this machine.
    stop = threading.Event()

    def follow() -> None:
        known, since = 0, time.monotonic()
        while not stop.wait(_SECONDS_BETWEEN_LOOKS):
            steps = read_log(log)
            if not steps:
                progress(0, None, "steps", "the training starts")
                continue
            if len(steps) != known:
                known, since = len(steps), time.monotonic()
            last = steps[-1]
            note = f"loss {last['loss']:.4f}, {last['tokens_per_second']:,.0f} tokens/s"
            left = max(0.0, last["seconds_left"] - (time.monotonic() - since))
            progress(last["step"], last["total"], "steps", note, left=left)

    thread = threading.Thread(target=follow, daemon=True, name="training-progress")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _cuda_available() -> bool:
    import torch

    return torch.cuda.is_available()
