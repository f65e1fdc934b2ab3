"""Specify a training run in one JSON file, build the command and environment that start it, and explain how it failed.

Training runs in separate processes.
"""

# Why separate processes: several ranks need them in any case. If the system kills a rank for lack of memory, the run is
# still there to report it. The price is that each attempt imports the libraries and loads the base model again.
#
# Why a file: a launcher may start ranks on other machines, and need not pass on the environment. All launchers can pass
# a path. For the same reason a rank writes its failure to a file: the status of a launcher says little, and torchrun's
# is 1 for any failure.

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gateau_dagster.config.base import without_effect
from gateau_dagster.config.models import Template
from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.readable import plural
from gateau_dagster.storage.documents import local_training_record
from gateau_dagster.storage.files import replace_text

# Raise it when the same mix and settings train another model.
CODE_VERSION = "3"


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """One training run. Paths are local; `fingerprint` identifies the result and decides which work may be resumed."""

    mix: Path
    base_model: str
    output: Path
    work: Path
    training: TrainingConfig
    fingerprint: str
    template: Template = "gateau"
    revision: str | None = None
    rope_theta: float | None = None
    trust_remote_code: bool = False
    hostfile: Path | None = None
    deepspeed: dict[str, Any] | None = None
    """The resolved DeepSpeed configuration (`deepspeed_config`); `training.deepspeed` is not read again."""
    provenance: dict[str, str] = field(default_factory=dict)
    """The model card's lines on the data."""
    data: dict[str, Path] = field(default_factory=dict)
    """The files for trackers (`training.report_data`), by the names that they have there."""
    leases: str = ""
    """The store's leases, for ranks whose launcher does not pass on the environment; see `fence.exported`."""

    @property
    def log(self) -> Path:
        """Return the path of the metrics, one JSON object per line and step."""
        return self.work / "metrics.jsonl"

    @property
    def failure(self) -> Path:
        """Return the path of the file in which a failed rank writes, in one line, why the last attempt ended."""
        return self.work / "failure.txt"

    @property
    def resume_key(self) -> str:
        """Return the key of attempts that may resume each other, with the same result, number and kind of ranks."""
        # The resolved DeepSpeed configuration and the mix itself count, not the keys that lead to them.
        elsewhere = dict.fromkeys(("deepspeed", "mix", "truncation", "trim"), True)
        without = without_effect(self.training, "mix", "checkpoint") | elsewhere
        training = self.training.model_dump(mode="json", exclude=without)
        passes = self.training.passes_per_step
        base = [self.base_model, self.revision, self.rope_theta, self.template, self.deepspeed, passes]
        return text_digest((self.fingerprint, json.dumps([training, base], sort_keys=True)))

    def save(self, path: Path) -> None:
        """Write the JSON file atomically.

        Raises:
            GateauError: the file cannot be written.
        """
        content = asdict(self) | {"training": self.training.model_dump(mode="json")}
        replace_text(path, json.dumps(content, indent=1, default=str))

    @classmethod
    def load(cls, path: Path) -> "TrainingSpec":
        """Read what `save` wrote.

        Raises:
            GateauError: there is no such file, or it is not a specification.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            paths = {name: Path(content.pop(name)) for name in ("mix", "output", "work")}
            data = {name: Path(path) for name, path in content.pop("data").items()}
            hostfile, training = content.pop("hostfile"), TrainingConfig.model_validate(content.pop("training"))
            return cls(training=training, hostfile=hostfile and Path(hostfile), data=data, **paths, **content)
        except OSError as error:
            raise GateauError(
                "training.file_damaged", f"the training specification {path} cannot be read: {error.strerror}"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise GateauError(
                "training.file_damaged",
                f"{path} is not a training specification ({error}): `{gateau_command('run')}` writes one",
            ) from error


MODULE = "gateau_dagster.resources.training_process"
LAUNCHER_VARIABLE = "GATEAU_LAUNCHER"
"""Names the host and process that end training when they end: an orphan would write where the next run writes."""
SHARE_VARIABLE = "GATEAU_SHARE_CORES"
"""Set if the user has not chosen OMP_NUM_THREADS: a rank may then choose it for its machine."""
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")  # set by torchrun and accelerate; by DeepSpeed's launcher
_HUNG_UP = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("Timed out waiting", "Application timeout caused pair closure"),  # gloo's
    *("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout"),
)
_BLOCK_BYTES = 4096


def training_command(
    spec_path: Path,
    *,
    processes: int,
    deepspeed: bool,
    launcher: Sequence[str] | None = None,
    hostfile: Path | None = None,
    python: str = sys.executable,
) -> list[str]:
    """Return the command: Python for one process without DeepSpeed, else torchrun on this machine with a free port.

    Args:
        spec_path: file that `TrainingSpec.save` wrote; ranks on other machines read it at the same path.
        processes: `training.processes`.
        deepspeed: whether the specification has a DeepSpeed configuration.
        launcher: `training.launcher`, instead of torchrun. It is followed by `-m`, the module and the file, unless it
            contains `{module}` and `{spec}`.
        hostfile: for DeepSpeed's launcher, instead of torchrun.
        python: interpreter.

    Raises:
        GateauError: there is no such launcher or hostfile, or the hostfile's slots are not `processes`.
    """
    if launcher is not None:
        return _own_launcher(launcher, spec_path, python=python)
    if hostfile is not None:
        return _deepspeed_runner(hostfile, spec_path, processes=processes, python=python)
    program = ["-m", MODULE, str(spec_path)]
    if processes == 1 and not deepspeed:
        return [python, *program]
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *program]


def _own_launcher(launcher: Sequence[str], spec_path: Path, *, python: str) -> list[str]:
    """Return the user's command with the program's full path, because an inactive environment is not on the PATH."""
    if not launcher:
        raise GateauError("training.launcher", "training.launcher is an empty list: name a command, or remove it")
    places = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which(launcher[0], path=places)
    if program is None:
        raise GateauError(
            "training.launcher",
            f"training.launcher: no program {launcher[0]!r} is on the PATH or beside {python}. Install it, or "
            "give its full path.",
        )
    words = [program, *launcher[1:]]
    filled = [word.replace("{module}", MODULE).replace("{spec}", str(spec_path)) for word in words]
    return filled if filled != words else [*words, "-m", MODULE, str(spec_path)]


def _deepspeed_runner(hostfile: Path, spec_path: Path, *, processes: int, python: str) -> list[str]:
    slots = read_hostfile(hostfile)
    if sum(slots.values()) != processes:
        raise GateauError(
            "training.processes",
            f"training.hostfile: {hostfile} has {plural(sum(slots.values()), 'slot')} on {', '.join(slots)}, but "
            f"training.processes is {processes}. It counts the processes on all machines: make them equal.",
        )
    command = [python, "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile), "--no_local_rank"]
    if set(slots) <= {"localhost", "127.0.0.1", socket.gethostname()}:
        # The runner would ask ssh for this machine's address, and use a port that another training run may use.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command += ["--no_ssh_check", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return [*command, "--module", MODULE, str(spec_path)]


def read_hostfile(path: Path) -> dict[str, int]:
    """Return machines and their slots, in order, from lines `name slots=8`; empty lines and `#` comments are ignored.

    Raises:
        GateauError: the file cannot be read, names no machine or one twice, or has another kind of line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise GateauError(
            "training.hostfile", f"training.hostfile: {path} cannot be read ({error.strerror}). Correct the path."
        ) from error
    except ValueError as error:
        raise GateauError(
            "training.hostfile", f"training.hostfile: {path} is not UTF-8 text ({error}). Save it as UTF-8."
        ) from error
    slots: dict[str, int] = {}
    for line in lines:
        words = line.split("#")[0].split()
        if not words:
            continue
        name, _, count = words[-1].partition("=")
        if len(words) != 2 or name != "slots" or not count.isdecimal() or int(count) < 1 or words[0] in slots:
            raise GateauError(
                "training.hostfile",
                f"training.hostfile: {path} contains the line {line.strip()!r}. Write each machine once, as worker-1 "
                "slots=8",
            )
        slots[words[0]] = int(count)
    if not slots:
        raise GateauError(
            "training.hostfile",
            f"training.hostfile: {path} names no machine. Write one line per machine: worker-1 slots=8",
        )
    return slots


def training_environment(*, processes: int, cuda: bool, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to add to the environment of training; variables that the user has set in `base` stay.

    Args:
        processes: number of ranks on all machines. They share this machine's cores until `share_cores` corrects it.
        cuda: whether this machine, or a machine that the ranks will run on, may have a GPU.
        base: the environment to which the variables are added.
    """
    # Without the variable, torchrun allows each of several ranks one thread, and torch by itself all cores.
    threads = max(1, (os.cpu_count() or 1) // processes)
    added = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if not cuda:
        added |= {"DS_ACCELERATOR": "cpu"}
    own = {LAUNCHER_VARIABLE: f"{socket.gethostname()}|{os.getpid()}"}
    if "OMP_NUM_THREADS" not in base:
        own[SHARE_VARIABLE] = "1"
    return {name: base.get(name, value) for name, value in added.items()} | own


def share_cores(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit a rank's threads to its share of this machine's cores, unless the user has chosen their number.

    Call it before torch is imported. Nothing changes if the launcher does not report how many ranks run here.
    """
    here = next((environment[name] for name in _RANKS_HERE if name in environment), None)
    if here is not None and (SHARE_VARIABLE in environment or "OMP_NUM_THREADS" not in environment):
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // int(here)))


def is_finished(spec: TrainingSpec) -> bool:
    """Return whether the output folder holds exactly the result of this training run."""
    return local_training_record(spec.output).get("resume_key") == spec.resume_key


def hung_up(error: BaseException) -> bool:
    """Return whether this error of gloo or NCCL only means that another rank has ended, or does not answer."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return several and not isinstance(error, GateauError) and any(sign in str(error) for sign in _HUNG_UP)


def record_failure(spec: TrainingSpec, message: str) -> None:
    """Write the reason for `recorded_failure`: completely, or not at all.

    Raises:
        GateauError, OSError: the reason cannot be written.
    """
    replace_text(spec.failure, message + "\n")


def recorded_failure(spec: TrainingSpec) -> str:
    """Return the reason that a rank recorded for the end of the last attempt; empty if there is none."""
    return spec.failure.read_text(encoding="utf-8").strip() if spec.failure.exists() else ""


def failure_message(spec: TrainingSpec, returncode: int) -> str:
    """Return in one line why training ended with `returncode` (negative for a signal) and without a result."""
    reason = recorded_failure(spec)
    if reason:
        return reason
    try:  # what prevented a rank from recording its reason prevents this process, too
        replace_text(spec.failure, " " * _BLOCK_BYTES)
    except (GateauError, OSError) as error:
        return f"the training could not say why it ended: {error}"
    spec.failure.unlink()
    cause = f"ended with status {returncode}"
    if returncode == 1:  # torchrun's own, which ends the other ranks before they can report that one hung up
        cause += " and no rank said why: it could not start, or was killed, often by the system for lack of memory"
    elif returncode == 0:  # DeepSpeed's runner returns this for ranks that a signal ended
        cause = "ended without a result, and its launcher does not say why: ranks were killed, often by the system for "
        cause += "lack of memory"
    elif returncode < 0:
        cause = f"was ended by {signal.Signals(-returncode).name}"
        if -returncode == signal.SIGKILL:
            cause += " (often the system, for lack of memory)"
    return f"the training process {cause}; its log says more. Run again: it goes on from the last complete checkpoint."
