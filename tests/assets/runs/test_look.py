"""A look that takes longer than a tick goes on; one that fails, in whatever way, is no obstacle to the next one."""

import threading
from pathlib import Path

import pytest

from gateau_dagster.assets.runs.input_sensor import Looks
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.project import make_project

LONG = 60.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load_project(make_project(tmp_path_factory.mktemp("look"), samples=2, shards=1))


def test_a_look_is_taken_up_by_a_later_tick(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, looked = threading.Event(), list[Path]()

    def whole_plan(state: State) -> Plan:
        looked.append(state.config.folder)
        assert go_on.wait(LONG)
        return Plan(work=[])

    monkeypatch.setattr(State, "whole_plan", whole_plan)
    looks = Looks()
    assert looks.plan(config, "a sign", 0.0) is None
    go_on.set()
    found = looks.plan(config, "a sign", LONG)
    assert found is not None and found[1].work == [] and len(looked) == 1


def test_what_was_found_of_another_sign_counts_no_more(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def whole_plan(_: State) -> Plan:
        assert go_on.wait(LONG)
        return Plan(work=[])

    monkeypatch.setattr(State, "whole_plan", whole_plan)
    looks = Looks()
    assert looks.plan(config, "before", 0.0) is None
    go_on.set()
    assert looks.plan(config, "now", LONG) is None, "the look at what was there before is over"
    assert looks.plan(config, "now", LONG) is not None


@pytest.mark.parametrize("error", [GateauError("data.missing", "no input"), RuntimeError("a defect")])
def test_a_look_that_failed_is_over(config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_: State) -> Plan:
        raise error

    looks = Looks()
    with monkeypatch.context() as patch:
        patch.setattr(State, "whole_plan", fails)
        with pytest.raises(type(error), match=str(error)):
            looks.plan(config, "a sign", LONG)
    assert looks.plan(config, "a sign", LONG) is not None
