"""Several machines, in namespaces of this one: each has its own network, processes, host name, /tmp/ray and /dev/shm.

What runs on one sees the others by their names, and nothing of what else runs on this machine; nothing outlives it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.project import command_environment

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
    command = [*_AROUND, sys.executable, "-m", "tests.examples.deployment.machines", str(folder)]
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
