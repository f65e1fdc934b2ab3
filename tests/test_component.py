"""The component of Dagster: several pipelines in one code location, beside a user's own assets."""

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance
from dagster.components.component_scaffolding import scaffold_object
from dagster.components.core.component_tree import ComponentTree
from dagster.components.testing import create_defs_folder_sandbox

from gateau_dagster import GateauPipeline
from gateau_dagster.assets.runs.automation import inputs_sensor
from gateau_dagster.config import Prefixes
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.configuration import ConfigurationResource
from tests.kit.error_codes import refused
from tests.kit.project import ROOT, command_environment, gateau, make_demo, make_project
from tests.test_docs import blocks

FIRST, SECOND = ["first"], ["team", "second-one"]


def of_the_page(language: str, text: str) -> str:
    """The block of docs/how-to/dagster.md with this text."""
    page = blocks(["docs/how-to/dagster.md"])
    return next(block.text for block in page if block.language == language and text in block.text)


class Located:
    """A code location with the component twice, and an asset of the user's own."""

    def __init__(self, defs: dg.Definitions, file: Path) -> None:
        self.defs, self.file = defs, file
        self.repository = defs.get_repository_def()

    def run(self, instance: DagsterInstance, *keys: list[str], **options: Any) -> dg.ExecuteInProcessResult:
        job = self.defs.resolve_implicit_global_asset_job_def()
        subset = job.get_subset(asset_selection={dg.AssetKey(key) for key in keys})
        return subset.execute_in_process(instance=instance, **options)


@pytest.fixture(scope="module")
def located(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Located]:
    folder = tmp_path_factory.mktemp("located")
    notify = {"notify": {"webhook": "GATEAU_TEST_WEBHOOK"}}
    file = make_project(folder / "data", samples=6, shards=2, execution=notify)
    with create_defs_folder_sandbox() as sandbox, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEAU_CONFIG", "/no/such/file.yaml")
        first, second = sandbox.defs_folder_path / "first", sandbox.defs_folder_path / "second"
        sandbox.scaffold_component(
            component_cls=GateauPipeline, defs_path=first, scaffold_params={"config": os.path.relpath(file, first)}
        )
        attributes = {"config": str(file), "key_prefix": SECOND, "group_prefix": "ours"}
        sandbox.scaffold_component(
            component_cls=GateauPipeline,
            defs_path=second,
            defs_yaml_contents={"type": "gateau_dagster.GateauPipeline", "attributes": attributes},
        )
        (sandbox.defs_folder_path / "published.py").write_text(of_the_page("python", "published"))
        with sandbox.build_all_defs() as defs:
            assert os.environ["GATEAU_CONFIG"] == "/no/such/file.yaml", "neither read nor written"
            yield Located(defs, file)


def test_all_of_it_is_there_twice_and_apart(located: Located) -> None:
    declared = [[*key.split("/")] for key in pipeline_of(load_project(located.file)).by_key]
    graph = located.defs.resolve_asset_graph()
    expected = {dg.AssetKey([*prefix, *key]) for prefix in (FIRST, SECOND) for key in declared}
    assert graph.materializable_asset_keys == expected | {dg.AssetKey("published")}
    assert graph.get(dg.AssetKey("published")).parent_keys == {dg.AssetKey(["first", "selected_subset"])}
    groups = {key.path[0]: set() for key in graph.get_all_asset_keys()}
    for key in graph.get_all_asset_keys():
        groups[key.path[0]].add(graph.get(key).group_name)
    assert {"first_scoring", "first_input"} <= groups["first"] and {"ours_scoring", "ours_input"} <= groups["team"]
    assert not groups["first"] & groups["team"]
    sensors = {each.name for each in located.repository.sensor_defs}
    assert {"first__dead_runs", "team__second_one__dead_runs", "first__failures"} <= sensors and len(sensors) == 10
    jobs = {job.name for job in located.repository.get_all_jobs() if not job.name.startswith("__")}
    assert {"first__refresh", "first__everything", "team__second_one__refresh"} <= jobs and len(jobs) % 2 == 0
    assert {each.job_name for each in located.repository.schedule_defs} == {
        "first__refresh",
        "team__second_one__refresh",
    }


def test_a_run_makes_and_records_the_assets_of_one(located: Located) -> None:
    first, second = [*FIRST, "raw_long_sft"], [*SECOND, "raw_long_sft"]
    with DagsterInstance.ephemeral() as instance:
        assert located.run(instance, second, partition_key="1").success
        events = {key.to_user_string() for key in instance.all_asset_keys()}
        assert events == {"team/second-one/raw_long_sft"}
        assert instance.get_materialized_partitions(dg.AssetKey(second)) == {"1"}
        checks = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [dg.AssetCheckKey(dg.AssetKey(second), "unique_ids")]
        )
        assert [record.evaluation.passed for record in checks.values() if record.evaluation] == [True]
        state = state_of(config=load_project(located.file))
        assert [work.partitions for work in state.plan_until("raw_long_sft").work] == [["0"]], "as `gateau plan` says"
        assert located.run(instance, first, partition_key="1").success, "which is on record and computes nothing"
        event = instance.get_latest_materialization_event(dg.AssetKey(first))
        assert event is not None and event.asset_materialization is not None
        assert "up_to_date" in event.asset_materialization.metadata
        assert located.run(instance, ["published"]).success


def test_a_failed_step_names_its_own_configuration(located: Located) -> None:
    with DagsterInstance.ephemeral() as instance:
        failed = located.run(instance, [*FIRST, "combined_scores"], raise_on_error=False)
        failure = next(each for each in failed.all_events if each.is_step_failure).step_failure_data.user_failure_data
    assert failure is not None and "--config" in (failure.description or "")
    assert failure.metadata["assets"].value == "combined_scores"


def test_an_edit_shows_on_the_assets_of_the_pipeline_whose_sensor_looks(located: Located) -> None:
    config = load_project(located.file).prefixed(Prefixes(keys=tuple(SECOND)))
    resource = ConfigurationResource(config_file=str(located.file), key_prefix=SECOND)
    with DagsterInstance.ephemeral() as instance:
        with dg.build_sensor_context(instance, resources={"team__second_one__configuration": resource}) as context:
            inputs_sensor(config).evaluate_tick(context)
        observed = {key.to_user_string() for key in instance.all_asset_keys()}
    assert observed and all(key.startswith("team/second-one/input/") for key in observed)


@pytest.mark.parametrize("prefix", ["2024", "a b", ["a", ""], "_a", "é", "a/../b", "a/."])
def test_a_prefix_that_names_cannot_begin_with_is_refused(prefix: str | list[str]) -> None:
    with pytest.raises(ValueError, match="begin with a letter"):
        GateauPipeline(key_prefix=prefix)


@pytest.mark.parametrize("prefix", ["a b", "a-b", "é", "a//b", "/a", "a\n", "\ud800"])
def test_a_prefix_that_no_group_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and _"):
        GateauPipeline(group_prefix=prefix)


@pytest.mark.parametrize("prefix", ["", "a", "9_a", "team/a", "team/"])
def test_a_prefix_that_dagster_takes_is_taken(prefix: str) -> None:
    dg.AssetSpec("x", group_name=f"{GateauPipeline(group_prefix=prefix).group_prefix}_input")


def test_a_scaffolded_python_file_returns_the_component(tmp_path: Path) -> None:
    scaffold_object(tmp_path / "1-a", "gateau_dagster.GateauPipeline", None, "python", None)
    load = runpy.run_path(str(tmp_path / "1-a" / "component.py"))["load"]
    assert load(None) == GateauPipeline(config="demo", key_prefix="gateau_1_a")


def test_a_configuration_that_cannot_be_read_is_named_with_its_component(tmp_path: Path) -> None:
    context = ComponentTree.for_test().load_context
    with refused("config.unreadable") as error:
        GateauPipeline(config="../missing.yaml").build_defs(context)
    message = str(error.value)
    assert message.startswith(f"{context.path}: config: ") and error.value.__suppress_context__
    assert "--config" not in message, "a component has no such option"


def test_a_path_of_no_configuration_is_named_with_its_component(tmp_path: Path) -> None:
    context = ComponentTree.for_test().load_context
    (tmp_path / "empty.yaml").write_text("")
    for config, code in {
        str(tmp_path): "config.unreadable",
        ".": "config.unreadable",
        str(tmp_path / "empty.yaml"): "config.no_sections",
        str(tmp_path / "empty.yaml" / "x"): "config.unreadable",
        "": "config.path",
        " ": "config.path",
        "a\0b": "config.path",
        "\ud800": "config.path",
        "x" * 300: "config.path",
        "~nobody-here/x.yaml": "config.path",
    }.items():
        with refused(code) as error:
            GateauPipeline(config=config).build_defs(context)
        message = str(error.value)
        assert message.startswith(str(context.path)) and "--config" not in message and len(message.splitlines()) == 1


@pytest.mark.parametrize("second", ["first", "team/a-b"])
def test_components_whose_names_clash_are_named_by_their_prefix(second: str) -> None:
    with create_defs_folder_sandbox() as sandbox:
        for name, prefix in (("one", second.replace("-", "_")), ("two", second)):
            attributes = {"config": "demo", "key_prefix": prefix}
            sandbox.scaffold_component(
                component_cls=GateauPipeline,
                defs_path=sandbox.defs_folder_path / name,
                defs_yaml_contents={"type": "gateau_dagster.GateauPipeline", "attributes": attributes},
            )
        with pytest.raises(Exception, match="definitions") as found, sandbox.build_all_defs():
            pass
    cause = found.value.__cause__
    assert isinstance(cause, GateauError) and cause.code == "component.key_prefix"
    assert "2 components" in str(cause)


@pytest.mark.long
@pytest.mark.timeout(1800)  # a dozen processes of Dagster
def test_in_a_project_of_create_dagster(tmp_path: Path) -> None:
    """The commands of docs/how-to/dagster.md; the project's modules are found as if it was installed."""
    folder = tmp_path / "my-project"
    environment = {
        "DAGSTER_HOME": str(tmp_path),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "GATEAU_CONFIG": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{folder / 'src'}",
    }

    def run(script: str, place: Path = folder) -> str:
        command, given = ["bash", "-ec", script], command_environment(**environment)
        done = subprocess.run(command, cwd=place, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = run(of_the_page("bash", "create-dagster"), tmp_path)
    assert "second__refresh" in shown and "gateau_dagster.GateauPipeline" in run("dg list components --json")
    defs = folder / "src/my_project/defs"
    (defs / "published.py").write_text(of_the_page("python", "published"))
    (defs / "first" / "defs.yaml").write_text(of_the_page("yaml", "gateau_dagster.GateauPipeline"))
    make_demo(folder)
    run(of_the_page("bash", "dg launch"))
    made = {"first/raw_long_sft": 4, "second/raw_long_sft": 1}
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        for key, shards in made.items():
            assert len(instance.get_materialized_partitions(dg.AssetKey(key.split("/")))) == shards
        assert instance.get_latest_materialization_event(dg.AssetKey("published")) is not None
    plan = gateau("plan", "--until", "raw_long_sft", folder=folder)
    assert "Everything is up to date" in plan.stdout
