"""Define the sensor `inputs`, which shows a changed input or model on the graph before anything runs.

Dagster's own staleness labels compare direct upstreams only, and ignore their partitions. So the sensor records the
version of each input, and the result of the check `up_to_date` for every asset.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
from dagster import AssetCheckEvaluation, DagsterInstance

# Dagster returns this type from public methods of the instance's event log, but exports its name nowhere else.
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from gateau_dagster.assets.runs.checked import staleness
from gateau_dagster.assets.runs.checks import evaluation, latest_record
from gateau_dagster.assets.steps.event_log import observe_inputs
from gateau_dagster.assets.steps.failures import redacted_failure
from gateau_dagster.assets.steps.partitions import asset_key, own_options, own_resource
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.asset import UP_TO_DATE
from gateau_dagster.pipeline.input_versions import glance
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.storage.stamp import fingerprint


class StoreComparison:
    """A comparison of the store with the configuration, in a thread; `sign`: the signature from `sign_of`."""

    def __init__(self, config: Config, sign: str) -> None:
        self.sign, self.state = sign, State(config=config)
        self._plan: Plan | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._compare, daemon=True, name="inputs-look")
        self._thread.start()

    def _compare(self) -> None:
        try:
            self._plan = self.state.whole_plan()
        except Exception as error:  # raised again by `found`
            self._error = error

    def has_ended(self, seconds: float) -> bool:
        """Wait up to `seconds`, and return whether the comparison has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def found(self) -> tuple[State, Plan]:
        """Return the state and its whole plan; call it only after the end.

        Raises:
            GateauError: for the reasons of `State.whole_plan`; unforeseen errors are raised unchanged.
        """
        if self._plan is None:
            assert self._error is not None
            raise self._error
        return self.state, self._plan


def sign_of(config: Config, last_run: str) -> str:
    """Return a signature that changes with configuration, inputs, models and the last run. It reads no content.

    Raises:
        GateauError: an input is missing or cannot be reached.
    """
    return fingerprint({"config": config.model_dump(mode="json"), "inputs": glance(config), "run": last_run})


class Looks:
    """One comparison at a time per configuration, kept across ticks."""

    def __init__(self) -> None:
        self._at_work: dict[tuple[Path, tuple[str, ...]], StoreComparison] = {}

    def plan(self, config: Config, sign: str, seconds: float) -> tuple[State, Plan] | None:
        """Return the plan for this signature, or None while a comparison is running or was of another signature.

        Raises:
            GateauError: for the reasons of `State.whole_plan`.
        """
        name = (config.work_folder, config.prefixes.keys)
        look = self._at_work.get(name)
        if look is None:
            look = self._at_work[name] = StoreComparison(config, sign)
        if not look.has_ended(seconds):
            return None
        del self._at_work[name]  # a failed one, too: the next tick starts another
        return look.found() if look.sign == sign else None


_SECONDS = 20.0  # a tick has a minute
_looks = Looks()


def inputs_sensor(config: Config) -> dg.SensorDefinition:
    """Return the sensor `inputs`, which compares sizes and times only, until one of them changes."""

    @dg.sensor(
        **own_options(config, "inputs", "configuration"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows on the graph whether input or models changed: the inputs' versions, and the check "
        "`up_to_date` of every asset. Launches nothing.",
    )
    @redacted_failure()
    def inputs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        instance, configuration = context.instance, own_resource(context, config, "configuration")
        try:
            sign = sign_of(configuration.config, _last_run(instance))
            if sign == context.cursor:
                return dg.SkipReason("input, models and store did not change")
            found = _looks.plan(configuration.config, sign, _SECONDS)
            if found is None:
                return dg.SkipReason("reads the changes; a later tick reports what is out of date")
            changed = observe_inputs(instance, found[0])
        except GateauError as error:
            return dg.SkipReason(f"cannot read the state: {error}")
        new = [*new_findings(instance, *found)]
        for each in new:
            instance.report_runless_asset_event(each)
        context.update_cursor(sign)
        return dg.SkipReason(f"{plural(changed, 'new version')} of inputs, {plural(len(new), 'new finding')}")

    return inputs


def _last_run(instance: DagsterInstance) -> str:
    """Return the id and status of the last run, since its outputs are seen after it."""
    return "; ".join(f"{run.run_id} {run.status.value}" for run in instance.get_runs(limit=1))


def new_findings(instance: DagsterInstance, state: State, plan: Plan) -> Iterator[AssetCheckEvaluation]:
    """Yield the results of `up_to_date` that are not on record yet; assets that were never made are skipped."""
    checks = {
        dg.AssetCheckKey(asset_key(state.config, asset.key), UP_TO_DATE): asset for asset in state.pipeline.assets
    }
    known = _on_record(instance, [*checks])
    for check, asset in checks.items():
        result = staleness(state, asset, plan.of(asset.key))
        target = latest_record(instance, check.asset_key, None)
        if target is None or asset.key not in state.pipeline.required:
            continue
        before = known.get(check)
        if before is None or (before.passed, before.metadata) != (result.passed, dict(result.metadata)):
            yield evaluation(check, result, target)


def _on_record(
    instance: DagsterInstance, checks: Sequence[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, AssetCheckEvaluation]:
    """Return the latest evaluation of each check; none if a run has planned it since."""
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
    ended = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    return {
        key: record.evaluation
        for key, record in records.items()
        if record.status in ended and record.evaluation is not None
    }
