"""The compose file as it is: each service's command and environment, and what they are on this machine."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.project import ROOT

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
