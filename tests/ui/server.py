"""`gateau dev` as a real process, in a process group of its own, and what Dagster says of its runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dagster import DagsterInstance

from gateau_dagster.assets.runs.launching import LOCATION
from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG
from gateau_dagster.pipeline.asset import UP_TO_DATE
from tests.kit.project import command_environment

Found = TypeVar("Found")

_RUNS = "{runsOrError {... on Runs {results {runId jobName status tags {key value}}}}}"
_CHECKS = "checks {name executionForLatestMaterialization {evaluation {success}}}"
_FOUND = f"{{assetNodes {{assetKey {{path}} assetChecksOrError {{... on AssetChecks {{{_CHECKS}}}}}}}}}"
_STALE = "{assetNodes {assetKey {path} staleStatus staleCauses {reason}}}"


class Server:
    """The served code location."""

    def __init__(self, *, url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.url, self.log, self.process = url, log, process

    def graphql(self, query: str) -> dict[str, Any]:
        """What Dagster answers."""
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=90) as reply:
            answer = json.load(reply)
        assert "errors" not in answer, answer
        return answer["data"]

    def runs(self, job: str | None = None) -> list[dict[str, Any]]:
        """Runs, the latest first, with their tags as a dict."""
        found = self.graphql(_RUNS)["runsOrError"]["results"]
        runs = [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]
        return [run for run in runs if job is None or run["jobName"] == job]

    def run(self, run_id: str) -> dict[str, Any]:
        """One of them."""
        return next(run for run in self.runs() if run["runId"] == run_id)

    def launch(self, job: str) -> str:
        """What the Launchpad's button does: the id of the run."""
        selector = f'{{repositoryLocationName: "{LOCATION}", repositoryName: "__repository__", jobName: "{job}"}}'
        answer = self.graphql(
            f"mutation {{launchRun(executionParams: {{selector: {selector}}}) "
            "{__typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"
        )["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def execute_again(self, run_id: str, strategy: str) -> str:
        """What "Re-execute all" (ALL_STEPS) and "from failure" (FROM_FAILURE) do: the id of the new run."""
        answer = self.graphql(
            f'mutation {{launchRunReexecution(reexecutionParams: {{parentRunId: "{run_id}", strategy: {strategy}}}) '
            "{__typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"
        )["launchRunReexecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def events(self, run_id: str) -> tuple[str, list[str]]:
        """What the events on a run's page say, and the runs that they link to."""
        links = "metadataEntries {... on PipelineRunMetadataEntry {runId}}"
        fields = f"... on MessageEvent {{message}} ... on EngineEvent {{{links}}}"
        question = f'{{logsForRun(runId: "{run_id}") {{... on EventConnection {{events {{{fields}}}}}}}}}'
        found = self.graphql(question)["logsForRun"]["events"]
        entries = [entry for event in found for entry in event.get("metadataEntries", [])]
        said = "\n".join(event.get("message", "") for event in found)
        return said, [entry["runId"] for entry in entries if "runId" in entry]

    def terminate(self, run_id: str) -> str:
        """What "Terminate" does: the type of the answer."""
        answer = self.graphql(f'mutation {{terminateRun(runId: "{run_id}") {{__typename}}}}')
        return answer["terminateRun"]["__typename"]

    def reload(self) -> None:
        """Reload the code location, as the button "Reload definitions" does."""
        mutation = f'reloadRepositoryLocation(repositoryLocationName: "{LOCATION}")'
        answer = self.graphql(f"mutation {{{mutation} {{__typename}}}}")["reloadRepositoryLocation"]
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def children(self, run_id: str) -> list[dict[str, Any]]:
        """The runs of `everything` that a run of `refresh` made."""
        return [run for run in self.runs("everything") if run["tags"].get("gateau/refresh") == run_id]

    def at_work(self, run_id: str) -> dict[str, Any]:
        """Waits until a step of the run that a run of `refresh` made has begun."""

        def working() -> dict[str, Any] | None:
            found = [run for run in self.children(run_id) if run["status"] == "STARTED"]
            return next((run for run in found if "Started execution of step" in self.events(run["runId"])[0]), None)

        return self.wait(working, f"a step of what run {run_id} made")

    def ended(self, run_id: str, *, seconds: float = 240) -> dict[str, Any]:
        """Waits for a run to end."""

        def done() -> dict[str, Any] | None:
            run = self.run(run_id)
            return run if run["status"] in {"SUCCESS", "FAILURE", "CANCELED"} else None

        return self.wait(done, f"run {run_id} to end", seconds=seconds)

    def not_fresh(self) -> dict[str, str]:
        """The assets that Dagster itself labels as missing or stale, and why."""
        return {
            "/".join(node["assetKey"]["path"]): f"{node['staleStatus']}: {node['staleCauses']}"
            for node in self.graphql(_STALE)["assetNodes"]
            if node["staleStatus"] != "FRESH"
        }

    def out_of_date(self) -> set[str]:
        """The assets whose check `up_to_date` has failed, as the graph shows it."""
        found = set()
        for node in self.graphql(_FOUND)["assetNodes"]:
            for check in node["assetChecksOrError"].get("checks", []):
                done = check["executionForLatestMaterialization"]
                if check["name"] == UP_TO_DATE and done and done["evaluation"] and not done["evaluation"]["success"]:
                    found.add("/".join(node["assetKey"]["path"]))
        return found

    def wait(self, look: Callable[[], Found | None], what: str, *, seconds: float = 120) -> Found:
        """Looks until there is something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := look():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.3)
        logs = (self.log, self.log.parent / ".gateau" / "dev.log")
        lines = [line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()[-40:]]
        raise AssertionError(f"waited for {what}; the server's last lines:\n" + "\n".join(lines))


def process_of(server: Server, run: dict[str, Any]) -> int:
    """The process that works on a run, by a tag that Dagster's pages hide."""
    with DagsterInstance.from_config(str(server.log.parent / ".gateau" / "dagster")) as instance:
        found = instance.get_run_by_id(run["runId"])
        assert found is not None
        return int(found.tags[PROCESS_TAG].split("|")[1])


@contextmanager
def serve(file: Path) -> Iterator[Server]:
    """Starts `gateau dev` on a free port; ends it and all its children."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = file.parent / "dev.log"
    command = [sys.executable, "-m", "gateau_dagster.cli", "dev", "--config", str(file), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=file.parent,
            env=command_environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(url=f"http://127.0.0.1:{port}", log=log, process=process)
    try:
        server.wait(lambda: _serves(server), "gateau dev to serve", seconds=90)
        yield server
    finally:
        _end(process)


def _serves(server: Server) -> bool:
    try:
        return bool(server.graphql("{assetNodes {id}}")["assetNodes"])
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """In its own way, which ends Dagster's processes, too; by force if it takes long."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
