"""Extend Dagster's run launcher to end runs of the terminal, which have no code server to ask."""

from dagster import DefaultRunLauncher

from gateau_dagster.assets.steps.dead_runs import end_dead_runs, process_of

_CODE_SERVER = ".dagster/grpc_info"  # Dagster's tag of a run that a code server started, which can end it


class RunLauncher(DefaultRunLauncher):
    """The run launcher that dagster.yaml names. A run of `gateau run` polls its own status, and ends within seconds."""

    def terminate(self, run_id: str) -> bool:
        """Request the run's end, and return whether it is being ended."""
        run = self._instance.get_run_by_id(run_id)
        # Runs of Dagster's own command line have no code location and poll no status.
        if run is None or run.is_finished or run.remote_job_origin is None or _CODE_SERVER in run.tags:
            return super().terminate(run_id)
        if process_of(self._instance, run) is None:
            return super().terminate(run_id)
        self._instance.report_run_canceling(run)
        end_dead_runs(self._instance)  # ends it if its process is gone and cannot poll
        return True
