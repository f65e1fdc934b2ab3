"""`make test-kills`: a hundred kills at random moments end with the tables and the checkpoint of an undisturbed run.

Chains of runs on one project: each is started, disturbed at a random moment, and started again; the last one of a chain
is left alone, and what it leaves in the store is held against a run that nothing disturbed. The project is a small one;
with `KILLS_OF=demo` it is the demo, which takes 90 minutes on two cores.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.kit.process_list import descendants
from tests.kit.project import begun, change_config, copied, gateau
from tests.runs.test_kill import assert_as_undisturbed, assert_nothing_is_held
from tests.ui.server import Server, serve

pytestmark = [pytest.mark.kills, pytest.mark.timeout(3600)]

OF_DEMO = os.environ.get("KILLS_OF") == "demo"
# A chain ends with a run that nothing disturbs: the demo's is long, so its chains are few and long.
CHAINS, KILLS_A_CHAIN = (8, 11) if OF_DEMO else (18, 5)
UI_CHAINS, TERMINATIONS_A_CHAIN = (2, 6) if OF_DEMO else (2, 5)
ENDS = {"kill -9": signal.SIGKILL, "Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}
# Processes of a run by a word of their command line; the driver is the command itself.
TARGETS = {"driver": "", "worker": "multiprocessing.spawn", "rank": "training_process"}
LATEST_MOMENT = 80.0 if OF_DEMO else 10.0  # seconds after the start; a run that is not ended takes about as long


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Path:
    """The configuration file of what nothing disturbed."""
    return request.getfixturevalue("whole_demo" if OF_DEMO else "whole_run")


@dataclass(kw_only=True)
class Tally:
    """What was ended, and how, over all chains."""

    kills: Counter[str] = field(default_factory=Counter)
    done_before: int = 0

    def show(self) -> None:
        figures = {"kills": sum(self.kills.values()), **self.kills, "done before": self.done_before}
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")


TALLY = Tally()


@pytest.fixture(scope="module", autouse=True)
def tally() -> object:
    yield
    TALLY.show()


def disturb(run: subprocess.Popen[str], rng: random.Random) -> bool:
    """Waits for a random moment and ends something; False if the run was done before."""
    how, what = rng.choice(list(ENDS)), rng.choice(list(TARGETS))
    try:
        run.wait(rng.uniform(0.2, LATEST_MOMENT))
    except subprocess.TimeoutExpired:
        pass
    else:
        return False
    if what != "driver":
        # There are workers and ranks only at times.
        deadline = time.monotonic() + LATEST_MOMENT
        while not (found := descendants(run.pid, TARGETS[what])) and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if run.poll() is not None:
            return False
        if found:
            time.sleep(rng.uniform(0, 1))
            try:
                rng.choice(found).send_signal(ENDS[how])
            except psutil.NoSuchProcess:
                return False
            TALLY.kills[f"{how} of a {what}"] += 1
            run.wait(12 * LATEST_MOMENT)
            return True
    if how == "kill -9":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        os.kill(run.pid, ENDS[how])
    TALLY.kills[f"{how} of the driver"] += 1
    run.wait(30)
    return True


@pytest.mark.parametrize("seed", range(CHAINS))
def test_runs_that_are_ended_at_random(whole: Path, tmp_path: Path, seed: int) -> None:
    file, rng = copied(whole, tmp_path / "project"), random.Random(seed)
    change_config(file, scoring={"workers": 2})
    kills = 0
    while kills < KILLS_A_CHAIN:
        if disturb(begun("run", "--config", str(file), folder=file.parent, out=subprocess.DEVNULL), rng):
            kills += 1
            continue
        TALLY.done_before += 1
        assert_as_undisturbed(file, whole)
        shutil.rmtree(file.parent / "store")  # again from the beginning
    gateau("run", "--config", str(file), folder=file.parent)
    assert_as_undisturbed(file, whole)
    assert_nothing_is_held(file)


@pytest.mark.parametrize("seed", range(UI_CHAINS))
def test_runs_that_are_terminated_in_the_ui(whole: Path, tmp_path: Path, seed: int) -> None:
    file, rng = copied(whole, tmp_path / "project"), random.Random(100 + seed)
    with serve(file) as server:
        for _ in range(TERMINATIONS_A_CHAIN):
            run = launch_refresh(server)
            time.sleep(rng.uniform(0.5, LATEST_MOMENT))
            terminate(server, run)
            TALLY.kills["terminated in the UI"] += 1
            assert server.ended(run)["status"] in {"CANCELED", "SUCCESS"}
    gateau("run", "--config", str(file), folder=file.parent)
    assert_as_undisturbed(file, whole)
    assert_nothing_is_held(file)


def launch_refresh(server: Server) -> str:
    """What the Launchpad's button does."""
    selector = '{repositoryLocationName: "gateau_dagster", repositoryName: "__repository__", jobName: "refresh"}'
    answer = server.graphql(
        f"mutation {{launchRun(executionParams: {{selector: {selector}}}) "
        "{__typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"
    )
    return answer["launchRun"]["run"]["runId"]


def terminate(server: Server, run: str) -> None:
    """What the run's button does, to it and to the run that it made."""
    for each in [*(child["runId"] for child in server.children(run)), run]:
        server.graphql(f'mutation {{terminateRun(runId: "{each}") {{__typename}}}}')
