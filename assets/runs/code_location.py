"""The code location by its one name: where runs belong that no web server and no daemon has made."""

import sys

from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.definitions.repository_definition.valid_definitions import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

# As in workspace.yaml, in the workspace.yaml of `gateau dev` and in pyproject.toml. Dagster keeps by this name which
# schedules and sensors are turned on.
LOCATION = "gateau_dagster"
MODULE, ATTRIBUTE = "gateau_dagster.definitions", "defs"


def job_of_location(name: str) -> ReconstructableJob:
    """The job by name, so that other processes can load it: those of its steps, for one."""
    repository = ReconstructableRepository.for_module(MODULE, ATTRIBUTE)
    return repository.get_reconstructable_job(name)


def location_origin() -> RemoteRepositoryOrigin:
    """What makes a run of the terminal one of this code location: it stands on the timeline and can be re-executed."""
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=MODULE, attribute=ATTRIBUTE)
    return RemoteRepositoryOrigin(
        code_location_origin=ManagedGrpcPythonEnvCodeLocationOrigin(target, location_name=LOCATION),
        repository_name=SINGLETON_REPOSITORY_NAME,
    )
