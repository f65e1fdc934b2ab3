"""The compose file as it is, and several machines in namespaces of this one."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kit.project import ROOT, command_environment

DEPLOYMENT = ROOT / "examples" / "deployment"
COMPOSE = DEPLOYMENT / "compose"
# ${NAME}, ${NAME:-otherwise} and ${NAME:?message}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """A value with its variables, as `docker compose` puts them in.

    Raises:
        KeyError: one that has to be set is not.
    """

    def found(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        given = variables.get(name, "")
        if given or how is None:
            return given
        if how == "?":
            raise KeyError(f"{name}: {rest}")
        return rest

    if isinstance(value, str):
        return _VARIABLE.sub(found, value)
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service. volumes: paths in the container, and what lies there: a path of the compose folder, or a volume's
    name."""

    name: str
    command: list[str]
    health: list[str]
    environment: dict[str, str]
    volumes: dict[str, str]
    keys: dict[str, Any]


def services(variables: Mapping[str, str], file: Path = COMPOSE / "compose.yaml") -> dict[str, Service]:
    """All of them, by name."""
    content = interpolated(yaml.safe_load(file.read_text()), variables)
    return {name: _service(name, keys) for name, keys in content["services"].items()}


def _service(name: str, keys: dict[str, Any]) -> Service:
    mounts = [text.split(":") for text in keys.get("volumes", [])]
    return Service(
        name=name,
        command=keys.get("command", []),
        health=keys.get("healthcheck", {}).get("test", ["CMD"])[1:],
        environment={key: str(value) for key, value in keys.get("environment", {}).items()},
        volumes={parts[1]: parts[0] for parts in mounts if len(parts) > 1},
        keys=keys,
    )


class Here:
    """A copy of the compose folder in which its services are processes of this machine.

    addresses: what `host:port` in the file is here. Paths in a container are below the folder, each where the volume or
    the file lies that is mounted there.
    """

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        self.folder, self._addresses = folder, dict(addresses)
        shutil.copytree(COMPOSE, folder, dirs_exist_ok=True)

    def text(self, service: Service, text: str) -> str:
        """A word of its command or of its environment."""
        for there, here in self._addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(there)}\b", here, text)
        for there, source in sorted(service.volumes.items(), key=lambda each: len(each[0]), reverse=True):
            if text == there or text.startswith(f"{there}/"):
                return str(self._place(source)) + text.removeprefix(there)
        return text.replace("0.0.0.0", "127.0.0.1")

    def command(self, service: Service, words: list[str]) -> list[str]:
        """Its command, or another one in it; a port of its own is the one that `addresses` says."""
        own = {
            there.split(":")[1]: here.split(":")[1]
            for there, here in self._addresses.items()
            if there.startswith(f"{service.name}:")
        }
        return [self.text(service, own.get(word, word)) for word in words]

    def environment(self, service: Service) -> dict[str, str]:
        """What its processes find."""
        return {name: self.text(service, value) for name, value in service.environment.items()}

    def mount(self, service: Service) -> None:
        """Lays the files that are mounted into a volume there."""
        for there, source in service.volumes.items():
            around = next((path for path in service.volumes if there.startswith(f"{path}/")), None)
            if around is not None and self._place(source).is_file():
                target = self._place(service.volumes[around]) / Path(there).relative_to(around)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._place(source), target)

    def _place(self, source: str) -> Path:
        return self.folder / (source if source.startswith("./") else f"volume-{source}")


_AROUND = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
]
_MACHINE = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
# $1: name, $2: address; the cable comes from outside.
_BOOT = """\
set -e
hostname "$1"
mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && mount -t tmpfs none /dev/shm
until ip link show eth0 > /dev/null 2>&1; do sleep 0.1; done
ip link set lo up
ip addr add "$2/24" dev eth0
ip link set eth0 up
ip route add default dev eth0
"""


def missing() -> str:
    """What keeps this machine from it; empty if nothing does."""
    if os.geteuid() != 0:
        return "machines of their own need root"
    without = [name for name in ("ip", "unshare", "setpriv", "hostname") if shutil.which(name) is None]
    return f"{', '.join(without)} not installed (apt-get install iproute2 util-linux hostname)" if without else ""


def run_on_machines(
    folder: Path, scripts: Mapping[str, str], *, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a shell script on each machine, by its name, in `folder`; all end when the first one's script does.

    The scripts find this process's Python and its programs first on their PATH. What they print is in `<name>.log`, the
    first one's in the result.
    """
    (folder / "machines.json").write_text(json.dumps(dict(scripts)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [*_AROUND, sys.executable, "-m", "tests.examples.deployment.builders", str(folder)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=command_environment(PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as around:
        try:
            said, _ = around.communicate(timeout=seconds)
        finally:
            around.kill()  # the namespaces, and all in them, end with it
    return subprocess.CompletedProcess(command, around.returncode, said)


def main(folder: Path) -> int:
    """The exit status of the first script. Within `_AROUND`."""
    scripts = json.loads((folder / "machines.json").read_text())
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(scripts, start=1)}
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
    servers = folder / "resolv.conf"
    servers.write_text("nameserver 127.0.0.1\n")  # it refuses at once; one that nobody answers for would be waited for
    for file in (hosts, servers):
        subprocess.run(["mount", "--bind", file, f"/etc/{file.name}"], check=True)
    own = Path("/proc/self/ns/net").readlink()
    subprocess.run(["ip", "link", "add", "switch", "type", "bridge"], check=True)
    subprocess.run(["ip", "link", "set", "switch", "up"], check=True)
    processes = []
    for number, (name, script) in enumerate(scripts.items()):
        log = (folder / f"{name}.log").open("wb") if number else None
        process = subprocess.Popen(
            [*_MACHINE, "sh", "-c", _BOOT + script, "sh", name, addresses[name]], stdout=log, stderr=log
        )
        _plug(process, number, own)
        processes.append(process)
    status = processes[0].wait()
    for process in processes[1:]:
        process.kill()
    return status


def _plug(process: subprocess.Popen[bytes], number: int, own: Path) -> None:
    """Lays a cable from the machine to the switch, once it has its own network."""
    while Path(f"/proc/{process.pid}/ns/net").readlink() == own:
        assert process.poll() is None, "the machine did not start"
        time.sleep(0.02)
    near = f"cable{number}"
    for command in (
        f"link add {near} master switch type veth peer name far{number}",
        f"link set {near} up",
        f"link set far{number} netns {process.pid} name eth0",
    ):
        subprocess.run(["ip", *command.split()], check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
